"""Consumers that share the partitions of a topic, on PostgreSQL and Kafka."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetstore import BatchInfo, Flush, OffsetRange, OffsetStore, Record, TopicPartition
from offsetstore.cli.commands import cli
from offsetstore.consumer import Consumer, Context, Kept, commits
from offsetstore.errors import ConfigurationError, PartitionLost
from offsetstore.local.kafka import KafkaBroker
from offsetstore.protocol.events import BatchEnded, MirrorTried, PauseChanged
from offsetstore.protocol.observers import Observers
from offsetstore.store.fleet import join
from tests.integration.conftest import Query
from tests.integration.consumer.conftest import Cluster, numbers, owners
from tests.support.background import in_background
from tests.support.consumer_groups import reset_by_tool
from tests.support.consumer_job import consumer_of, parse
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "consumer-moving.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.usefixtures("results")


@dataclass
class Running:
    """A consumer that runs in a thread."""

    consumer: Consumer
    ended: Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self.ended = in_background(self.consumer.run)

    def stop(self) -> None:
        self.consumer.stop()
        self.ended.result(timeout=150)


@pytest.fixture
def starts(store: OffsetStore, cluster: Cluster) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(kafka: dict[str, Any] | None = None, patience: float | None = None, **changes: Any) -> Running:
        made = consumer_of(store, cluster.bootstrap, cluster.topic, kafka=kafka, **changes)
        if patience is not None:  # when partitions are taken away
            made.request, made.drain = replace(made.request, takeover_timeout=patience), patience
        running.append(Running(made))
        return running[-1]

    yield start
    for one in running:
        one.consumer.stop()
    for one in running:
        one.ended.exception(timeout=150)


def wait_for(query: Query, cluster: Cluster, *others: Running) -> None:
    """Wait until as many rows as records are there, and compare."""

    def is_done() -> bool:
        for one in others:
            if one.ended.done():
                one.ended.result()
        return query("SELECT count(*) FROM results")[0][0] >= cluster.count

    wait_until(is_done, timeout=90.0)
    assert numbers(query) == list(range(cluster.count))


def stored(store: OffsetStore) -> int:
    return sum(row.next_offset for row in store.offsets("billing").values())


def noted(info: BatchInfo) -> str:
    """The metadata of each flush."""
    return "a note"


def committed(cluster: Cluster) -> dict[int, tuple[int, str | None]]:
    """What Kafka has of the group, by partition: offset and metadata."""
    with ConfluentConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": "billing"}) as reader:
        asked: Any = [KafkaPartition(tp.topic, tp.partition) for tp in cluster.tps]
        found: Any = reader.committed(asked, timeout=30)
        return {one.partition: (one.offset, one.metadata) for one in found}


@pytest.mark.behaviour("CONS-5", "CONS-8", "CONS-14")
def test_what_is_stored_is_committed_to_kafka_with_a_stamp_and_at_once_when_partitions_are_given_back(
    store: OffsetStore,
    cluster: Cluster,
    query: Query,
    starts: Callable[..., Running],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits, "INTERVAL", 0.2)
    recorder = Recorder()
    store.observers = Observers([recorder])
    cluster.produce(400)
    first = starts(metadata=noted)
    wait_for(query, cluster, first)
    wait_until(lambda: {at for at, _ in committed(cluster).values()} == {100})
    query("UPDATE kafka_partitions SET pinned = true")  # as a reset does
    cluster.produce(200)
    second = starts(metadata=noted)
    wait_for(query, cluster, first, second)
    wait_until(lambda: owners(query) == 2, timeout=60.0)
    wait_until(lambda: query("SELECT count(*) FROM kafka_partitions WHERE pinned") == [(0,)])
    monkeypatch.setattr(commits, "INTERVAL", 600.0)  # what follows is committed at the end alone
    first.stop()
    wait_until(lambda: owners(query) == 1, timeout=60.0)
    cluster.produce(100)
    wait_for(query, cluster, second)
    second.stop()
    copies = committed(cluster)
    assert {tp.partition: row.next_offset for tp, row in store.offsets("billing").items()} == {
        partition: at for partition, (at, _) in copies.items()
    }
    assert all(text is not None and re.fullmatch(r"offsetstore:2:.*;\"a note\"", text) for _, text in copies.values())
    assert any(told.offsets for told in recorder.of(MirrorTried, "done"))
    assert not recorder.of(MirrorTried, "failed")


def old_consumer(cluster: Cluster, count: int, query: Query) -> None:
    """Another program in the group: it writes so many records, commits their offsets, and leaves."""
    settings: Any = {"bootstrap.servers": cluster.bootstrap, "group.id": "billing", "enable.auto.commit": False,
                     "auto.offset.reset": "error"}  # fmt: skip
    if not query("SELECT 1 FROM results LIMIT 1"):
        settings["auto.offset.reset"] = "earliest"
    with ConfluentConsumer(settings) as consumer:
        consumer.subscribe([cluster.topic])
        for _ in range(count):
            message = consumer.poll(30)
            assert message is not None
            query(f"INSERT INTO results VALUES ({int(message.value() or b'')})")
        consumer.commit(asynchronous=False)


def run_from_page(line: str, url: str, cluster: Cluster) -> str:
    """Run a command of docs/consumer-moving.md with this test's topic and broker; return what it shows."""
    assert line in PAGE
    words = shlex.split(line.partition(" > ")[0].replace("payments", cluster.topic))
    words = [cluster.bootstrap if word == "localhost:9092" else word for word in words]
    done = CliRunner(env={"OFFSETSTORE_URL": url}).invoke(cli, words[1:])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.behaviour("CONS-14")
def test_a_group_goes_from_another_program_to_consumers_and_back_as_the_page_says(  # noqa: PLR0917 - fixtures
    store: OffsetStore,
    cluster: Cluster,
    query: Query,
    starts: Callable[..., Running],
    offsetstore_database: str,
    offsetstore_kafka: KafkaBroker,
    tmp_path: Path,
) -> None:
    cluster.produce(100)
    old_consumer(cluster, 100, query)
    cluster.produce(100)
    query("INSERT INTO results SELECT generate_series(100, 116, 4)")  # five of partition 0: it died before it committed
    [(place, to)] = re.findall(
        r" --group billing (--topic payments:0) --reset-offsets (--to-offset .*)$", PAGE, re.MULTILINE
    )
    reset_by_tool(offsetstore_kafka, "billing", *place.replace("payments", cluster.topic).split(), *to.split())
    shown = run_from_page(
        "offsetstore resolve --group billing --topic payments -b localhost:9092", offsetstore_database, cluster
    )
    rows = [line.split()[:2] for line in shown.splitlines() if line.startswith(cluster.topic)]
    starts_at = [30, 25, 25, 25]
    assert rows == [[str(tp), str(at)] for tp, at in zip(cluster.tps, starts_at, strict=True)]
    running = starts()
    wait_for(query, cluster, running)
    adopted = store.history("billing", events=["adopt"])
    assert sorted((line.topic_partition, line.to_offset) for line in adopted if line.topic_partition) == [
        *zip(cluster.tps, starts_at, strict=True)
    ]
    running.stop()

    # As if it had been killed: Kafka has what the old one committed.
    rewind = [KafkaPartition(tp.topic, tp.partition, 25) for tp in cluster.tps]
    with ConfluentConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": "billing"}) as consumer:
        consumer.commit(offsets=rewind, asynchronous=False)
    printed = run_from_page(
        'offsetstore reset -g billing --all-topics --shift-by 0 --reason "back to the old consumer" --format csv'
        " > offsets.csv",
        offsetstore_database,
        cluster,
    )
    (tmp_path / "offsets.csv").write_text(printed)
    assert "--group billing --reset-offsets --from-file offsets.csv --execute\n" in PAGE
    reset_by_tool(offsetstore_kafka, "billing", "--from-file", str(tmp_path / "offsets.csv"), "--execute")
    cluster.produce(100)
    old_consumer(cluster, 100, query)
    assert numbers(query) == list(range(300))


@pytest.mark.behaviour("CONS-19", "CONS-7")
def test_no_partition_waits_for_long_beside_others_with_a_backlog_and_slow_work_never_keeps_kafka_waiting(
    store: OffsetStore, cluster: Cluster, query: Query, starts: Callable[..., Running]
) -> None:
    """Two with many small records, of which one fetch brings 24 flushes; one with large records, and one with few."""
    recorder = Recorder()
    store.observers = Observers([recorder])
    backlog = {0: 2400, 1: 2400, 2: 12, 3: 24}
    waiting, sizes = deque[tuple[int, int]](), list[int]()
    for partition, count in backlog.items():
        for _ in range(count):
            value = str(cluster.count).encode().ljust(300_000 if partition == 2 else 1)
            if partition == 3:
                waiting.append((partition, cluster.count))
            else:
                cluster.producer.produce(cluster.topic, value, partition=partition)
            cluster.count += 1
        cluster.producer.flush(30)

    def slowly(records: Any) -> Any:
        sizes.append(records.num_rows)
        time.sleep(3.5 if len(sizes) == 2 else 0.02)
        for partition, number in waiting and [waiting.popleft()]:  # the fourth gets one record in each flush
            cluster.producer.produce(cluster.topic, str(number).encode(), partition=partition)
            cluster.producer.poll(0)
        return parse(records)

    kafka = {"max.poll.interval.ms": 2500, "session.timeout.ms": 2500}
    running = starts(kafka, transform=slowly, flush=Flush(rows=100, seconds=0.5, bytes=1 << 20))
    wait_for(query, cluster, running)
    running.stop()
    assert max(sizes) <= 100
    assert sum(sizes) == cluster.count  # none was computed twice: it was never taken for dead
    written = [one.done for one in recorder.of(BatchEnded)]
    assert max(sum(range_.size for range_ in done.values()) for done in written) <= 100
    for partition in (0, 1, 2):
        mine = [number for number, done in enumerate(written) if TopicPartition(cluster.topic, partition) in done]
        # The model proves three. A busy broker may let a partition's turn pass; without turns it is 24.
        assert max(after - before for before, after in zip([-1, *mine], mine, strict=False)) <= 12


@pytest.mark.behaviour("CONS-3", "CONS-6")
def test_a_partition_that_another_member_takes_too_late_is_taken_again(
    store: OffsetStore,
    cluster: Cluster,
    query: Query,
    starts: Callable[..., Running],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("offsetstore.consumer.consumer._AGAIN", 3.0)
    monkeypatch.setattr("offsetstore.consumer.consumer._HEARD", 3.0)
    running = starts()
    cluster.produce(100)
    wait_for(query, cluster, running)
    other = consumer_of(store, cluster.bootstrap, cluster.topic)
    with join(store, other.request) as late:
        late.assign([cluster.tps[1]])
        cluster.produce(100)
        wait_for(query, cluster, running)
        written = [number % 4 for (number,) in query("SELECT record FROM results ORDER BY ctid")]
        assert written[-25:] == [1] * 25  # the others have gone on meanwhile
        with pytest.raises(PartitionLost), store.transaction(late) as tx:
            tx.lock({cluster.tps[1]: OffsetRange(50, 51)})
    running.stop()


@dataclass
class Gate:
    """Defers all records until it is opened."""

    is_open: bool = False
    asked: Counter[TopicPartition] = field(default_factory=Counter[TopicPartition])

    def apply(self, records: Sequence[Record], context: Context) -> Kept:
        self.asked[context.topic_partition] += 1
        return Kept(len(records) if self.is_open else 0, wait=0.1)


@pytest.mark.behaviour("CONS-5", "CONS-7")
def test_a_partition_that_is_given_back_while_it_is_paused_is_read_when_it_comes_back(
    cluster: Cluster, query: Query, starts: Callable[..., Running]
) -> None:
    gate = Gate()
    cluster.produce(100)
    first = starts(filters=[gate])
    wait_until(lambda: all(gate.asked[tp] > 1 for tp in cluster.tps), timeout=60.0)  # paused between the two
    second = starts(filters=[gate])
    wait_until(lambda: owners(query) == 2, timeout=60.0)
    gate.is_open = True
    wait_for(query, cluster, first, second)
    second.stop()
    cluster.produce(100)
    wait_for(query, cluster, first)
    first.stop()


@pytest.mark.behaviour("CONS-1", "CONS-5", "OPS-2")
def test_a_paused_group_is_polled_and_written_when_it_is_resumed_and_members_come_and_go_meanwhile(
    store: OffsetStore, cluster: Cluster, query: Query, starts: Callable[..., Running]
) -> None:
    cluster.produce(100)
    recorder = Recorder()
    store.observers = Observers([recorder])
    first = starts(patience=100_000.0)
    wait_for(query, cluster, first)
    store.pause("billing", reason="maintenance")
    cluster.produce(350)  # more than one flush
    wait_until(lambda: recorder.of(PauseChanged), timeout=60.0)
    second = starts()
    wait_until(lambda: owners(query) == 2, timeout=60.0)
    first.stop()
    wait_until(lambda: owners(query) == 1, timeout=60.0)
    assert len(numbers(query)) == 100
    store.resume("billing", reason="done")
    wait_for(query, cluster, second)


@contextmanager
def job(url: str, cluster: Cluster, calls: Path, failpoint: str | None = None) -> Generator[subprocess.Popen[str]]:
    """A consumer with a handler, as a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "OFFSETSTORE_FAILPOINT"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.consumer_job", url, cluster.bootstrap, cluster.topic, str(calls)],
        cwd=ROOT,
        env=environment | ({} if failpoint is None else {"OFFSETSTORE_FAILPOINT": failpoint}),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.behaviour("CONS-8")
def test_a_member_whose_instance_id_another_takes_ends_and_says_so(
    starts: Callable[..., Running], cluster: Cluster, query: Query
) -> None:
    cluster.produce(10)
    first = starts(kafka={"group.instance.id": "one"})
    wait_for(query, cluster)
    starts(kafka={"group.instance.id": "one"})
    with pytest.raises(ConfigurationError, match="another member has its place"):
        first.ended.result(timeout=60)
    cluster.produce(10)
    wait_for(query, cluster)


@pytest.mark.behaviour("CONS-1", "CONS-2", "CONS-8", "HAND-7")
def test_a_consumer_that_is_killed_writes_each_record_once_calls_at_most_a_flush_again_and_heeds_sigterm(
    store: OffsetStore, cluster: Cluster, query: Query, offsetstore_database: str, tmp_path: Path
) -> None:
    window, calls = 100, tmp_path / "calls"
    failpoints = ("in_claim:2", "before_commit:3", "after_commit:2")
    cluster.produce(1000)
    with Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": cluster.topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(cluster.topic, b"-1", partition=0)
        producer.flush(30)
        producer.abort_transaction()
    for failpoint in failpoints:
        with job(offsetstore_database, cluster, calls, failpoint) as killed:
            _, told = killed.communicate(timeout=90)
            assert killed.returncode == -signal.SIGKILL, told
    with job(offsetstore_database, cluster, calls) as running:
        wait_for(query, cluster)
        wait_until(lambda: stored(store) == cluster.count + 2)  # beyond what was aborted, and its marker
        running.send_signal(signal.SIGTERM)
        _, told = running.communicate(timeout=60)
        assert running.returncode == 0, told
    made = calls.read_text().splitlines()
    assert len({*made}) == cluster.count
    assert len(made) <= cluster.count + window * len(failpoints)
