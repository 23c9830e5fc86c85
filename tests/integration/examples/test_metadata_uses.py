"""examples/metadata: each use of a note goes on where a process that failed has left it; and docs/metadata-uses.md."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Engine, event

from examples.metadata import checkpoint, rebalance, replay, retries, stages, switch, tracing, workflow
from offsetstore import Append, Execute, OffsetStore, Record, TopicPartition, Transaction, Work
from offsetstore.errors import AdvanceMismatch, OffsetOutOfRange, PlanChanged
from offsetstore.testing import FailpointReached, StaticBroker, deliver, failpoint
from tests.integration.conftest import Query
from tests.support.examples import EXAMPLES, ROOT

pytestmark = pytest.mark.behaviour("META-2")

P0, P1 = (TopicPartition("payments", number) for number in range(2))
PAGE = (ROOT / "docs" / "metadata-uses.md").read_text("utf-8")
RESULTS = "CREATE TABLE results (topic text, partition int, record_offset bigint, value text)"
BOOKED = """
CREATE TABLE booked (
    topic text, partition int, record_offset bigint, workflow text, PRIMARY KEY (topic, partition, record_offset)
)
"""
Write = Callable[[Work, Iterable[pa.RecordBatch]], None]


def records(
    *pairs: tuple[str, str], partition: int = 0, begin: int = 0, topic: str = "payments", step: int = 1
) -> list[Record]:
    return [
        Record(topic, partition, begin + n * step, key.encode(), value.encode()) for n, (key, value) in enumerate(pairs)
    ]


def deliver_in_parts(
    store: OffsetStore, transform: Callable[[Any], pa.RecordBatch], write: Write, *parts: list[Record], **more: Any
) -> None:
    """Each part by a claim of its own; the first try fails before COMMIT, the second after it, and it is replayed."""
    for part in parts:
        for point in ("before_commit", "after_commit"):
            with failpoint(point), pytest.raises(FailpointReached):
                deliver(store.claim("billing", topics=["payments"]), part, transform, Execute(write), **more)
        deliver(store.claim("billing", topics=["payments"]), part, transform, Execute(write), **more)


def kept(number: int) -> Callable[[Any], pa.RecordBatch]:
    """The transform of a version of the rules."""

    def transform(records: Any) -> pa.RecordBatch:
        value: Any = pa.array([f"rules {number}"] * len(records))
        place = {name: records[name] for name in ("topic", "partition")}
        return pa.record_batch({**place, "record_offset": records["offset"], "value": value})

    return transform


def test_stages_of_a_complex_event(store: OffsetStore, query: Query) -> None:
    query("CREATE TABLE alarms (login text, record_offset bigint)")
    first = records(("ann", "refused"), ("ann", "refused"), ("bo", "refused"), ("bo", "in"))
    second = records(("ann", "refused"), ("bo", "refused"), begin=4)
    third = records(("ann", "in"), ("ann", "in"), ("bo", "in"), begin=6) + records(("cleo", "in"), partition=1)

    deliver_in_parts(store, stages.parse, stages.watch, first, second, third)

    assert query("SELECT * FROM alarms") == [("ann", 6)]
    assert store.find_metadata("billing", "payments") == {P0: {}, P1: {}}


def test_tracing(store: OffsetStore, query: Query, caplog: pytest.LogCaptureFixture) -> None:
    query(RESULTS)
    caplog.set_level(logging.INFO, tracing.__name__)
    found: list[object] = []
    for begin in (0, 1):
        note = tracing.traced(store, "billing", "payments")
        claim, part = store.claim("billing", topics=["payments"]), records(("ann", "1"), begin=begin)
        deliver(claim, part, kept(1), Append("results"), metadata=note)
        found.append(store.find_metadata("billing", "payments", 0))
    (_, trace, span, _), (_, other_trace, other_span, _) = [str(each).split("-") for each in found]
    assert trace == other_trace
    assert span != other_span
    assert [told.getMessage() for told in caplog.records if told.name == tracing.__name__] == [
        f"trace {trace} span {span}: payments-0 from 0 until 1",
        f"trace {trace} span {other_span}: payments-0 from 1 until 2",
    ]


class Killed(Exception):
    """Stands for SIGKILL."""


def test_a_workflow_over_services(store: OffsetStore, query: Query) -> None:
    query(BOOKED)
    calls: list[tuple[str, str, int]] = []
    kills: list[str] = []

    def call(step: str, workflow_id: str, order: Record) -> None:
        calls.append((step, workflow_id, order.offset))
        if step in kills:  # the service has done it, and the process does not hear of it
            kills.remove(step)
            raise Killed

    for order in records(("ann", "lamp"), ("bo", "desk"), step=2):  # with a hole, as of compaction
        kills = [*workflow.STEPS]
        for _ in workflow.STEPS:
            with pytest.raises(Killed):
                workflow.book(store, store.claim("billing", topics=["payments"]), order, call)
        workflow.book(store, store.claim("billing", topics=["payments"]), order, call)
    booked = query("SELECT record_offset, workflow FROM booked ORDER BY record_offset")
    assert [offset for offset, _ in booked] == [0, 2]
    for offset, workflow_id in booked:
        steps = [step for step, called_id, of in calls if of == offset and called_id == workflow_id]
        assert [*dict.fromkeys(steps)] == [*workflow.STEPS]
        assert len(steps) == 6, "each kill has repeated one call"
    assert len({workflow_id for _, workflow_id, _ in calls}) == 2
    made = len(calls)
    with pytest.raises(AdvanceMismatch):  # a record that is done
        workflow.book(store, store.claim("billing", topics=["payments"]), records(("ann", "lamp"))[0], call)
    assert len(calls) == made
    assert store.find_metadata("billing", "payments", 0) is None


def test_retries_that_are_counted_in_the_note(store: OffsetStore, query: Query) -> None:
    query("CREATE TABLE days (payments bigint, amount numeric)")

    def handle(tx: Transaction, record: Record) -> None:
        tx.connection.exec_driver_sql("INSERT INTO days VALUES (1, 1)")
        if record.value == b"bad":
            raise ValueError("not a number")

    good, bad, last = records(("ann", "1"), ("ann", "bad"), ("ann", "3"), step=2)  # with holes, as of compaction

    def attempt(record: Record) -> float:
        return retries.attempt(store, store.claim("billing", topics=["payments"]), record, handle)

    assert attempt(good) == 0
    assert [attempt(bad) for _ in range(2)] == [2, 4]
    assert store.find_metadata("billing", "payments", 0) == {"attempts": 2, "error": "ValueError"}
    assert [attempt(bad) for _ in range(3)] == [8, 16, 0]
    assert attempt(last) == 0
    assert query("SELECT count(*)::int FROM days") == [(2,)]
    [letter] = store.letters("billing").letters
    assert letter.offset == 2
    full = store.letter("billing", P0, 2)
    assert full.error.text == "failed 5 times: ValueError"
    assert full.payload is not None
    assert full.payload.value == b"bad"
    assert store.find_metadata("billing", "payments", 0) is None


def test_a_checkpoint_within_a_unit_of_work(store: OffsetStore, query: Query) -> None:
    query("CREATE TABLE days (payments bigint, amount numeric)")
    first = records(("ann", "1.50"), ("bo", "2"))
    second = records(("ann", "0.50"), ("close", ""), ("cleo", "7"), begin=2)

    deliver_in_parts(store, checkpoint.parse, checkpoint.settle, first, second)

    assert [(count, str(amount)) for count, amount in query("SELECT * FROM days")] == [(3, "4.00")]
    assert store.find_metadata("billing", "payments", 0) == {"payments": 1, "amount": "7"}


def test_what_a_member_knows_is_handed_to_the_next_one(store: OffsetStore, query: Query) -> None:
    query("CREATE TABLE used (meter text, units bigint)")
    first = records(("m1", "100"), ("m1", "103")) + records(("m2", "7"), partition=1)
    second = records(("m1", "110"), begin=2) + records(("m2", "8"), partition=1, begin=1)

    deliver_in_parts(store, rebalance.parse, rebalance.subtract, first, second)

    assert sorted(query("SELECT * FROM used")) == [("m1", 3), ("m1", 7), ("m2", 1)]
    assert store.find_metadata("billing", "payments") == {P0: {"m1": 110}, P1: {"m2": 8}}


def test_selective_replay(store: OffsetStore, engine: Engine, query: Query) -> None:
    query(RESULTS)

    def process(rules: int, *parts: list[Record]) -> None:
        note = replay.rules_since(store, "billing", rules)
        with store.claim("billing", topics=["payments"]) as claim:
            for part in parts:
                deliver(claim, part, kept(rules), Append("results"), metadata=note)

    log = records(*[("ann", "1")] * 6) + records(*[("bo", "1")] * 4, partition=1)
    process(6, log[:2], log[6:9])
    process(7, log[2:3], log[3:5])

    query("INSERT INTO results VALUES ('refunds', 0, 5, 'of another topic')")

    def repeat() -> dict[TopicPartition, int]:
        return replay.repeat(store, engine, "billing", "payments", rules=7, broker=broker)

    before = query("SELECT * FROM results ORDER BY topic, partition, record_offset")
    broker: Any = StaticBroker.with_logs({"payments": {0: (3, 6), 1: (0, 4)}})
    with pytest.raises(OffsetOutOfRange):  # Kafka no longer has the records
        repeat()
    broker = StaticBroker.with_topics({"payments": 2}, end=6)
    with store.claim("billing", topics=["payments"]), pytest.raises(RuntimeError, match="stop it first"):
        repeat()
    assert query("SELECT * FROM results ORDER BY topic, partition, record_offset") == before

    def write_meanwhile(_: object) -> None:  # a job starts and writes between DELETE and reset
        process(7, log[5:6])

    event.listen(engine, "commit", write_meanwhile, once=True)
    with pytest.raises(PlanChanged):
        repeat()
    assert repeat() == {P0: 2}
    assert repeat() == {}
    process(8, log[2:6], log[9:])

    assert query("DELETE FROM results WHERE topic = 'refunds' RETURNING value") == [("of another topic",)]
    found = query("SELECT partition, record_offset, value FROM results ORDER BY partition, record_offset")
    rules = [6, 6, 8, 8, 8, 8, 6, 6, 6, 8]
    assert found == [(one.partition, one.offset, f"rules {n}") for one, n in zip(log, rules, strict=True)]
    assert store.find_metadata("billing", "payments") == {P0: {"rules": 8, "since": 2}, P1: {"rules": 8, "since": 3}}


def test_a_switch_for_the_records_after_it(store: OffsetStore, query: Query) -> None:
    query("CREATE TABLE payments (payer text, amount numeric(12, 2))")
    first = records(("ann", "1"), ("fee", "on"), ("bo", "2")) + records(("dan", "5"), partition=1)
    second = records(("cleo", "3"), ("fee", "off"), ("ann", "4"), begin=3)

    deliver_in_parts(store, switch.parse, switch.charge, first, second)

    paid = query("SELECT payer, amount::text FROM payments ORDER BY amount")
    assert paid == [("ann", "1.00"), ("bo", "2.20"), ("cleo", "3.30"), ("ann", "4.00"), ("dan", "5.00")]


def of_two_topics(first: str, second: str) -> list[Record]:
    return [
        record for topic in ("payments", "refunds") for record in records(("ann", first), (topic, second), topic=topic)
    ]


@pytest.mark.parametrize(
    ("table", "parse", "write", "pairs", "notes"),
    [
        (
            "CREATE TABLE alarms (login text, record_offset bigint)",
            stages.parse,
            stages.watch,
            ("refused", "refused"),
            [{"ann": 1, "payments": 1}, {"ann": 1, "refunds": 1}],
        ),
        (
            "CREATE TABLE days (payments bigint, amount numeric)",
            checkpoint.parse,
            checkpoint.settle,
            ("1", "2"),
            [{"payments": 2, "amount": "3"}] * 2,
        ),
        (
            "CREATE TABLE used (meter text, units bigint)",
            rebalance.parse,
            rebalance.subtract,
            ("1", "2"),
            [{"ann": 1, "payments": 2}, {"ann": 1, "refunds": 2}],
        ),
    ],
    ids=["stages", "checkpoint", "rebalance"],
)
def test_partitions_of_two_topics_with_one_number_are_told_apart(  # noqa: PLR0917
    store: OffsetStore,
    query: Query,
    table: str,
    parse: Callable[[Any], pa.RecordBatch],
    write: Write,
    pairs: tuple[str, str],
    notes: list[object],
) -> None:
    query(table)
    deliver(store.claim("billing", topics=["payments", "refunds"]), of_two_topics(*pairs), parse, Execute(write))
    assert [store.find_metadata("billing", topic, 0) for topic in ("payments", "refunds")] == notes


def test_a_switch_of_another_topic_is_not_this_one_s(store: OffsetStore, query: Query) -> None:
    query("CREATE TABLE payments (payer text, amount numeric(12, 2))")
    both = records(("fee", "on"), ("ann", "1")) + records(("bo", "0.1"), ("bo", "1"), topic="refunds")
    deliver(store.claim("billing", topics=["payments", "refunds"]), both, switch.parse, Execute(switch.charge))
    paid = query("SELECT payer, amount::text FROM payments ORDER BY amount")
    assert paid == [("bo", "0.10"), ("bo", "1.00"), ("ann", "1.10")]


def test_each_block_of_the_page_is_in_its_example_and_each_example_on_the_page() -> None:
    linked: set[str] = set()
    for section in PAGE.split("\n## ")[1:]:
        found = re.findall(r"\]\(\.\./examples/metadata/(\w+\.py)\)", section)
        for block in re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE):
            [name] = found
            assert block in (EXAMPLES / "metadata" / name).read_text("utf-8"), name
            linked.add(name)
    assert linked == {file.name for file in (EXAMPLES / "metadata").glob("*.py")}
