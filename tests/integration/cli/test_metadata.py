from __future__ import annotations

from collections.abc import Iterator

import pytest

from offsetstore import OffsetStore, TopicPartition
from offsetstore.protocol.metadata import MAX_BYTES
from tests.integration.cli.conftest import Here, advance

P0, P1 = (TopicPartition("payments", number) for number in range(2))


@pytest.fixture
def store(offsetstore_database: str, offsetstore_group: str) -> Iterator[OffsetStore]:
    """Where a job has stored 4 with a note for partition 0 of `payments`, and 5 without one for partition 1."""
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim(offsetstore_group, topics=["payments"])
        claim.store_metadata(P0, {"trace": "7f3a"})
        advance(store, claim, {P0: 4, P1: 5})
        yield store


@pytest.mark.behaviour("META-9")
def test_get_shows_a_topic_or_one_partition(here: Here, store: OffsetStore, offsetstore_group: str) -> None:
    get = ("metadata", "get", "-g", offsetstore_group)
    assert [line.split() for line in here(*get, "payments").splitlines()] == [
        ["partition", "stored", "metadata"],
        ["payments-0", "4", '{"trace":"7f3a"}'],
        ["payments-1", "5", "-"],
    ]
    assert len(here(*get, "payments", "1").splitlines()) == 2
    assert here.json(*get, "payments", "0") == {
        "group": offsetstore_group,
        "topic": "payments",
        "partitions": [{"partition": 0, "stored": 4, "metadata": '{"trace":"7f3a"}'}],
    }
    for given, named in (
        (("payments", "-g", "nobody"), "the store has no offsets of group 'nobody'"),
        (("refunds",), "the store has no offsets of topic 'refunds' for group"),
        (("payments", "7"), "payments-7: the store has no offset of this partition for group"),
    ):
        assert here.fail(1, *get, *given).startswith(f"Error: {named}")


@pytest.mark.behaviour("META-4")
def test_set_writes_json_or_text_or_clears(here: Here, store: OffsetStore, offsetstore_group: str) -> None:
    command = ("metadata", "set", "-g", offsetstore_group, "--reason", "ticket 17", "payments", "0")
    for arguments, said, stored in (
        (['{"checked": true}'], "Wrote", '{"checked":true}'),
        (["--text", "as it is: {"], "Wrote", "as it is: {"),
        (["--clear"], "Cleared", None),
    ):
        assert here(*command, *arguments) == f"{said} the metadata of payments-0 at offset 4.\n"
        assert store.offsets(offsetstore_group)[P0].metadata == stored
    document = {"group": offsetstore_group, "topic": "payments", "partition": 0, "stored": 4}
    assert here.json(*command, "7") == document
    lines = store.history(offsetstore_group, events=["metadata"])
    assert [(line.topic_partition, line.to_offset, line.reason) for line in lines] == [(P0, 4, "ticket 17")] * 4

    before = store.offsets(offsetstore_group)
    for arguments, code, told in (
        (["not JSON"], 2, "VALUE is not JSON"),
        ([], 2, "Give a VALUE, or --clear"),
        (["1", "--clear"], 2, "Give a VALUE, or --clear"),
        (["--clear", "--text"], 2, "Give a VALUE, or --clear"),
        (["1", "-g", "nobody"], 1, "no offsets of group 'nobody'"),
        ([f'"{"x" * MAX_BYTES}"'], 5, "the metadata is too large"),
    ):
        assert told in here.fail(code, *command, *arguments)
    assert store.offsets(offsetstore_group) == before
