from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.protocol.metadata import MAX_BYTES
from tests.integration.cli.conftest import Run

P0, P1 = (TopicPartition("payments", number) for number in range(2))
REASON = ("--reason", "ticket 17")


@pytest.fixture
def store(offsetstore_database: str, offsetstore_group: str) -> Iterator[OffsetStore]:
    """Where a job has stored 4 with a note for partition 0 of `payments`, and 5 without one for partition 1."""
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim(offsetstore_group, topics=["payments"])
        claim.store_metadata(P0, {"trace": "7f3a"})
        with store.transaction(claim) as tx:
            ranges = {P0: OffsetRange(0, 4), P1: OffsetRange(0, 5)}
            tx.lock(ranges)
            tx.advance(ranges)
        yield store


@pytest.mark.behaviour("META-9")
def test_get_shows_a_topic_or_one_partition(
    run: Run, store: OffsetStore, offsetstore_group: str, offsetstore_database: str
) -> None:
    get = ("metadata", "get", "-g", offsetstore_group, "payments")
    result = run(*get, url=offsetstore_database)
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["partition", "stored", "metadata"],
        ["payments-0", "4", '{"trace":"7f3a"}'],
        ["payments-1", "5", "-"],
    ]
    assert len(run(*get, "1", url=offsetstore_database).stdout.splitlines()) == 2
    assert json.loads(run(*get, "0", "--format", "json", url=offsetstore_database).stdout) == {
        "group": offsetstore_group,
        "topic": "payments",
        "partitions": [{"partition": 0, "stored": 4, "metadata": '{"trace":"7f3a"}'}],
    }
    for given, named in (
        (["-g", "nobody", "payments"], "payments for group 'nobody'"),
        (["-g", offsetstore_group, "refunds"], "refunds for group"),
        (["-g", offsetstore_group, "payments", "7"], "payments-7 for group"),
    ):
        result = run("metadata", "get", *given, url=offsetstore_database)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"The store has no offset of {named}")


@pytest.mark.behaviour("META-4")
def test_set_writes_json_or_text_or_clears(
    run: Run, store: OffsetStore, offsetstore_group: str, offsetstore_database: str
) -> None:
    def write(*arguments: str) -> str:
        result = run(
            "metadata", "set", "-g", offsetstore_group, "payments", "0", *arguments, *REASON, url=offsetstore_database
        )
        assert result.exit_code == 0, result.output
        return result.stdout

    def stored() -> str | None:
        return store.offsets(offsetstore_group)[P0].metadata

    assert write('{"checked": true}') == "Wrote the metadata of payments-0 at offset 4.\n"
    assert store.find_metadata(offsetstore_group, "payments", 0) == {"checked": True}
    write("--text", "as it is: {")
    assert stored() == "as it is: {"
    assert write("--clear") == "Cleared the metadata of payments-0 at offset 4.\n"
    assert stored() is None
    assert json.loads(write("7", "--format", "json")) == {
        "group": offsetstore_group,
        "topic": "payments",
        "partition": 0,
        "stored": 4,
    }
    lines = store.history(offsetstore_group, events=["metadata"])
    assert [(line.topic_partition, line.to_offset, line.reason) for line in lines] == [(P0, 4, "ticket 17")] * 4


def test_set_refuses(run: Run, store: OffsetStore, offsetstore_group: str, offsetstore_database: str) -> None:
    before = store.offsets(offsetstore_group)
    for arguments, code, told in (
        (["not JSON"], 2, "VALUE is not JSON"),
        ([], 2, "Give a VALUE, or --clear"),
        (["1", "--clear"], 2, "Give a VALUE, or --clear"),
        (["--clear", "--text"], 2, "Give a VALUE, or --clear"),
        (["1", "-g", "nobody"], 1, "no offsets of group 'nobody'"),
        ([f'"{"x" * MAX_BYTES}"'], 5, "the metadata is too large"),
    ):
        given = ["-g", offsetstore_group, *REASON, "payments", "0", *arguments]
        result = run("metadata", "set", *given, url=offsetstore_database)
        assert result.exit_code == code, result.output
        assert told in result.stderr
    assert store.offsets(offsetstore_group) == before
