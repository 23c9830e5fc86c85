"""What a checkpoint on disk tells, and what a claim makes of it: nothing twice, nothing lost, nothing guessed."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from offsetstore.cli.commands import cli
from offsetstore.errors import ConfigurationError, UncertainBatch
from offsetstore.offsets import OffsetRange, StoredOffset, Token, TopicPartition
from offsetstore.protocol.starting import Reason, StartPolicy
from offsetstore.store.adoption import LocalFiles, QueryCheckpoint, read, read_adoption
from offsetstore.testing import InMemoryOffsetStore
from offsetstore.testing.broker import StaticBroker

P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
GROUP = "billing"
PAGE = (Path(__file__).parents[3] / "docs" / "adopting.md").read_text(encoding="utf-8")


class Checkpoint:
    """Writes the files as Spark does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, *lines: str, before: str = "") -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(before + "\n".join(lines), encoding="utf-8")
        (file.parent / f".{file.name}.crc").write_bytes(b"crc")

    def began(self, *sources: dict[str, dict[str, int]]) -> None:
        for number, source in enumerate(sources):
            self.write(f"sources/{number}/0", "v1", json.dumps(source), before="\0")

    def batch(self, number: int, *sources: dict[str, dict[str, int]] | None, committed: bool = True) -> None:
        lines = ["-" if source is None else json.dumps(source) for source in sources]
        self.write(f"offsets/{number}", "v1", '{"batchWatermarkMs":0}', *lines)
        if committed:
            self.write(f"commits/{number}", "v1", '{"nextBatchWatermarkMs":0}')


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    made = Checkpoint(tmp_path / "old job")
    made.began({"payments": {"0": 5, "1": 5}})
    for number in range(9, 12):
        made.batch(number, {"payments": {"0": number * 2, "1": number * 3}})
    return made


@pytest.fixture
def uncertain(checkpoint: Checkpoint) -> Checkpoint:
    """Batch 12 read something of partition 0, and all of the new partition 2."""
    checkpoint.batch(12, {"payments": {"0": 30, "1": 33, "2": 4}}, committed=False)
    return checkpoint


@pytest.fixture
def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 3}, end=100)


def stored(store: InMemoryOffsetStore) -> dict[TopicPartition, int]:
    return {tp: row.next_offset for tp, row in store.offsets(GROUP).items()}


def told(store: InMemoryOffsetStore) -> list[tuple[Any, ...]]:
    events = [event for event in store.history(GROUP) if event.event != "claim"]
    return [(event.event, event.topic_partition, event.from_offset, event.to_offset) for event in events]


@pytest.mark.behaviour("START-20")
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_the_last_committed_batch_is_adopted_whatever_kafka_has_which_does_not_win_at_the_next_start_either(
    store: InMemoryOffsetStore, broker: StaticBroker, checkpoint: Checkpoint, form: str
) -> None:
    """Somebody's tool has committed for the group once."""
    broker.set_committed({P0: 60, P1: 3})
    path = str(checkpoint.path) if form == "{}" else str(checkpoint.path).replace(" ", "%20")
    claim = store.claim(GROUP, broker, adopt_checkpoint=form.format(path), mirror_every=None)

    assert stored(store) == {P0: 22, P1: 33, P2: 0}
    assert claim.starting is not None
    assert claim.starting.starts[P0].reason is Reason.CHECKPOINT
    assert claim.starting.starts[P2].reason is Reason.NEW_PARTITION
    assert told(store)[:2] == [("adopt", P0, None, 22), ("adopt", P1, None, 33)]
    reason = store.history(GROUP)[1].reason
    assert reason.endswith(("old job, batch 11", "old%20job, batch 11"))

    store.claim(GROUP, broker, adopt_checkpoint=form.format(path), mirror_every=None)
    assert stored(store) == {P0: 22, P1: 33, P2: 0}


@pytest.mark.behaviour("START-20")
def test_a_batch_that_began_and_was_not_committed_is_named_and_skipped_if_that_is_asked_for(
    store: InMemoryOffsetStore, broker: StaticBroker, uncertain: Checkpoint
) -> None:
    with pytest.raises(UncertainBatch) as caught:
        store.claim(GROUP, broker, adopt_checkpoint=str(uncertain.path))

    assert caught.value.topic_partition == P0
    assert caught.value.found == "payments-0 [22, 30), payments-2 [0, 4)"
    assert "batch 12 of the checkpoint" in str(caught.value)
    assert store.owner(GROUP) is None  # nobody was fenced

    store.claim(GROUP, broker, adopt_checkpoint=str(uncertain.path), policy=StartPolicy(on_uncertain="skip"))

    assert stored(store) == {P0: 30, P1: 33, P2: 4}
    assert told(store) == [
        ("adopt", P0, None, 22),
        ("skip", P0, 22, 30),
        ("adopt", P1, None, 33),
        ("adopt", P2, None, 0),
        ("skip", P2, 0, 4),
    ]


@pytest.mark.behaviour("START-20")
def test_a_batch_without_records_is_uncertain_too(
    store: InMemoryOffsetStore, broker: StaticBroker, checkpoint: Checkpoint
) -> None:
    """Windows come out of it."""
    checkpoint.batch(12, {"payments": {"0": 22, "1": 33}}, committed=False)
    with pytest.raises(UncertainBatch, match=r"batch 12 .* found a batch without records"):
        store.claim(GROUP, broker, adopt_checkpoint=str(checkpoint.path))
    store.claim(GROUP, broker, adopt_checkpoint=str(checkpoint.path), policy=StartPolicy(on_uncertain="replay"))
    assert stored(store) == {P0: 22, P1: 33, P2: 0}


@pytest.mark.behaviour("START-20")
def test_a_job_that_never_committed_a_batch_began_somewhere_all_the_same(
    store: InMemoryOffsetStore, broker: StaticBroker, tmp_path: Path
) -> None:
    made = Checkpoint(tmp_path)
    made.began({"payments": {"0": 5, "1": 5}})
    store.claim(GROUP, broker, adopt_checkpoint=str(tmp_path))
    assert stored(store) == {P0: 5, P1: 5, P2: 0}
    made.batch(0, {"payments": {"0": 8, "1": 5}}, committed=False)
    with pytest.raises(UncertainBatch, match=r"payments-0 \[5, 8\)"):
        store.claim(f"{GROUP}-2", broker, adopt_checkpoint=str(tmp_path))


@pytest.mark.behaviour("START-20")
def test_several_sources_and_topics_are_put_together(store: InMemoryOffsetStore, tmp_path: Path) -> None:
    made = Checkpoint(tmp_path)
    made.began({"a": {"0": 1}, "b": {"0": 2}}, {"c": {"0": 3}})
    made.batch(0, {"a": {"0": 10}, "b": {"0": 20}}, None)
    store.claim(GROUP, StaticBroker.with_topics({"a": 1, "b": 1, "c": 1}, end=100), adopt_checkpoint=str(tmp_path))
    assert [row.next_offset for row in store.offsets(GROUP).values()] == [10, 20, 3]


@pytest.mark.behaviour("START-20")
def test_what_is_stored_is_not_adopted_and_its_uncertain_batch_is_nobodys_business(
    store: InMemoryOffsetStore, broker: StaticBroker, checkpoint: Checkpoint
) -> None:
    store.claim(GROUP, broker, adopt_checkpoint=str(checkpoint.path))
    with store.transaction(claim := store.claim(GROUP, broker)) as tx:
        tx.advance({tp: d.remaining for tp, d in tx.lock({P0: OffsetRange(22, 40)}).items()})
    assert claim.partitions == {P0, P1, P2}
    checkpoint.batch(12, {"payments": {"0": 30, "1": 33}}, committed=False)
    events = len(told(store))

    store.claim(GROUP, broker, adopt_checkpoint=str(checkpoint.path))

    assert stored(store) == {P0: 40, P1: 33, P2: 0}
    assert len(told(store)) == events


@pytest.mark.behaviour("START-20", "OPS-3")
def test_the_same_line_of_code_goes_on_with_a_further_topic_and_when_the_old_checkpoint_is_gone(
    store: InMemoryOffsetStore, broker: StaticBroker, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Another topic of the checkpoint was given up."""
    checkpoint.batch(12, {"payments": {"0": 22, "1": 33}, "refunds": {"0": 4}})
    store.claim(GROUP, broker, adopt_checkpoint=str(checkpoint.path))
    more = StaticBroker.with_topics({"payments": 3, "orders": 1}, end=100)
    store.claim(GROUP, more, adopt_checkpoint=str(checkpoint.path))
    assert stored(store)[TopicPartition("orders", 0)] == 0
    grown = StaticBroker.with_topics({"payments": 4}, end=100)
    store.claim(GROUP, grown, topics=["payments"], adopt_checkpoint=str(tmp_path / "gone"))
    assert {tp: at for tp, at in stored(store).items() if tp.topic == "payments"} == {
        P0: 22, P1: 33, P2: 0, TopicPartition("payments", 3): 0
    }  # fmt: skip


@pytest.mark.behaviour("START-20")
@pytest.mark.parametrize(
    ("location", "topic", "words"),
    [
        ("{}", "payments", "no checkpoint of a streaming query"),
        ("s3a://bucket/checkpoints/billing", "payments", r"HadoopFiles\(spark, location\)"),
        ("{}/old job", "orders", "reads other topics"),
    ],
)
def test_what_is_no_checkpoint_of_the_job_is_refused(  # noqa: PLR0917 - pytest's fixtures
    store: InMemoryOffsetStore, checkpoint: Checkpoint, tmp_path: Path, location: str, topic: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        store.claim(GROUP, StaticBroker.with_topics({topic: 1}, end=9), adopt_checkpoint=location.format(tmp_path))
    assert store.owner(GROUP) is None


KAFKA = r"could not parse .*offsets/11;.*expected offsets of Kafka"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        *((["v1", "{}", line, ""], KAFKA) for line in ('{"logOffset":3}', "17", "", '{"payments":{"0":null}}', "{")),
        *((lines, "expected v1 or v2") for lines in ([], ["v3", "{}", "{}"], ["v1"])),
        (["v1", "{}", '{"payments": {"0": 1}}', '{"payments": {"0": 2}}'], "two sources"),
    ],
)
def test_a_file_that_is_not_as_spark_writes_it_for_kafka_is_refused(
    checkpoint: Checkpoint, lines: list[str], words: str
) -> None:
    checkpoint.write("offsets/11", *lines)
    with pytest.raises(ConfigurationError, match=words):
        read(LocalFiles(str(checkpoint.path)))


# -- offsetstore adopt


def call(*arguments: str) -> Any:
    return CliRunner(env={"OFFSETSTORE_URL": None}).invoke(cli, ["adopt", *arguments])


@pytest.mark.behaviour("START-20")
def test_the_command_shows_what_would_be_adopted(checkpoint: Checkpoint) -> None:
    result = call("--checkpoint", str(checkpoint.path), "--dry-run")
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()[:3]] == [
        ["partition", "start", "committed", "batch", "ends", "uncertain"],
        ["payments-0", "22", "22", "-"],
        ["payments-1", "33", "33", "-"],
    ]
    assert result.stdout.endswith("The store was not read; name a --group to read it.\n")
    assert "Batch 11 is the last one that is committed." in result.stdout


@pytest.mark.behaviour("START-20")
@pytest.mark.parametrize(
    ("decision", "code", "starts"),
    [("fail", 1, [None, 33, None]), ("replay", 0, [22, 33, 0]), ("skip", 0, [30, 33, 4])],
)
def test_the_command_shows_the_uncertain_batch(
    uncertain: Checkpoint, decision: str, code: int, starts: list[int | None]
) -> None:
    given = ["--checkpoint", str(uncertain.path), "--dry-run", "--on-uncertain", decision, "--format", "json"]
    result = call(*given)
    assert result.exit_code == code, result.output
    document = json.loads(result.stdout)
    assert (document["batch"], document["uncertain_batch"]) == (11, 12)
    assert [partition["start"] for partition in document["partitions"]] == starts
    assert document["partitions"][0]["uncertain"] == {"from": 22, "until": 30}
    assert ("payments-0 [22, 30)" in result.stderr) is (code == 1)


def test_the_command_only_shows(checkpoint: Checkpoint) -> None:
    result = call("--checkpoint", str(checkpoint.path))
    assert result.exit_code == 2
    assert "pass --dry-run" in result.stderr


@pytest.mark.behaviour("START-20")
def test_several_batches_without_a_commit_are_uncertain_together(uncertain: Checkpoint) -> None:
    """Spark commits some of the batches alone where progress is tracked asynchronously."""
    uncertain.batch(14, {"payments": {"0": 50, "1": 34, "2": 4}}, committed=False)
    found = read(LocalFiles(str(uncertain.path)))
    assert found is not None
    assert found.uncertain == {P0: OffsetRange(22, 50), P1: OffsetRange(33, 34), P2: OffsetRange(0, 4)}
    with pytest.raises(UncertainBatch, match="batches 12 to 14"):
        found.starts(StartPolicy(), [], ["payments"])


def test_an_adoption_that_is_refused_still_shows_the_partitions_that_are_certain() -> None:
    ends = {P0: 20, P1: 30, P2: 40, TopicPartition("refunds", 0): 50}
    checkpoint = QueryCheckpoint("/old", 11, ends, 12, {P1: OffsetRange(30, 35), P2: OffsetRange(40, 45)})
    stored = {tp: StoredOffset(offset, Token(1, UUID(int=1))) for tp, offset in {P0: 4, P1: 0}.items()}

    refused = read_adoption(checkpoint, stored, "fail")
    assert isinstance(refused.refusal, UncertainBatch)
    assert refused.adopted == {TopicPartition("refunds", 0): 50}
    assert [refused.start(tp) for tp in ends] == [4, 0, None, 50]

    replayed, skipped = read_adoption(checkpoint, stored, "replay"), read_adoption(checkpoint, stored, "skip")
    assert (replayed.refusal, [replayed.start(tp) for tp in ends]) == (None, [4, 0, 40, 50])
    assert (skipped.refusal, [skipped.start(tp) for tp in ends]) == (None, [4, 0, 45, 50])

    without_records = read_adoption(QueryCheckpoint("/old", 11, {P0: 20, P1: 30}, 12, {}), {}, "fail")
    assert without_records.refusal is not None
    assert without_records.adopted == {}


def test_the_page_shows_an_uncertain_batch_and_its_code_adopts_the_job_once_that_is_decided(
    store: InMemoryOffsetStore, broker: StaticBroker, uncertain: Checkpoint
) -> None:
    """docs/adopting.md; its block about other file systems needs Spark."""
    found = re.findall(r"^ *```(console|python)\n(.*?)^ *```$", PAGE, re.DOTALL | re.MULTILINE)
    command, adopt, policies, _other = (
        textwrap.dedent(text).replace("/checkpoints/old-billing", str(uncertain.path)) for _, text in found
    )
    _prompt, _program, *arguments = shlex.split(command.replace(str(uncertain.path), shlex.quote(str(uncertain.path))))
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == 1  # the batch is uncertain
    assert "payments" in shown.output

    def for_spark(_options: object) -> StaticBroker:
        return broker

    names: dict[str, Any] = {"store": store, "kafka": {}, "StartPolicy": StartPolicy}
    names["Broker"] = SimpleNamespace(from_spark=for_spark)
    with pytest.raises(UncertainBatch):
        exec(adopt, names)  # noqa: S102 - the page's own words
    skip, replay = (eval(line, names) for line in policies.splitlines())  # noqa: S307 - the same
    assert (skip, replay) == (StartPolicy(on_uncertain="skip"), StartPolicy(on_uncertain="replay"))
    exec(adopt.replace('")', '", policy=replay)'), {**names, "replay": replay})  # noqa: S102 - the same
    assert stored(store) == {P0: 22, P1: 33, P2: 0}
