"""Outbox: rows become records, or are refused before any is written."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from offsetstore.errors import ColumnMismatch, ConfigurationError, RowsRefused
from offsetstore.protocol.outbox import OutboxRecord, outbox_record
from offsetstore.writers import Outbox
from offsetstore.writers.arrow.misfits import finds_misfits
from tests.integration.writers.writing import batch, kafka

NOBODY: Any = None
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Records:
    """A transaction that keeps what is produced."""

    connection = None

    def __init__(self) -> None:
        self.records: list[OutboxRecord] = []

    def produce_all(self, records: Iterable[OutboxRecord]) -> int:
        found = [outbox_record(*record) for record in records]
        self.records += found
        return len(found)


def written(writer: Outbox, *batches: pa.RecordBatch) -> list[OutboxRecord]:
    work: Any = Records()
    writer.check(NOBODY, batches[0].schema)
    assert writer.write(work, batches) == sum(one.num_rows for one in batches)
    return work.records


def test_rows_become_records_in_their_order_and_a_value_alone_one_of_the_writer_s_topic() -> None:
    rows = batch(
        {
            "key": [b"a", None, b"\xff"],
            "value": ["größer", None, ""],
            "headers": [[{"key": "trace", "value": b"7f"}, {"key": "trace", "value": None}], [], None],
            "topic": ["events", "other.events", "events"],
            "_kafka": kafka(("payments", 0, 1), ("payments", 0, 2), ("payments", 0, 3)),
        },
        {"headers": HEADERS},
    )

    assert written(Outbox(), rows.slice(0, 1), rows.slice(1, 0), rows.slice(1)) == [
        OutboxRecord("events", b"a", "größer".encode(), (("trace", b"7f"), ("trace", None))),
        OutboxRecord("other.events", None, None),
        OutboxRecord("events", b"\xff", b""),
    ]
    assert not Outbox().uses_kafka_column(rows.schema)
    alone = [OutboxRecord("events", None, b"1"), OutboxRecord("events", None, b"2")]
    assert written(Outbox("events"), batch({"value": [b"1", b"2"]})) == alone
    assert written(Outbox("events"), batch({"value": pa.array([], pa.string())})) == []


@pytest.mark.behaviour("CTX-1", "CTX-3")
def test_the_headers_that_follow_a_row_s_record_come_after_its_own_unless_it_has_one_of_that_name() -> None:
    following: Any = [
        [("trace", b"7f"), ("trace", None), ("tenant", b"\xff")],
        [("trace", b"7f"), ("tenant", b"")],
        [],
        None,
        None,
    ]
    places: list[Any] = [None if one is None else {"offset": 1, "headers": as_structs(one)} for one in following]
    places[3] = {"offset": 1, "headers": None}
    rows = batch(
        {
            "value": [b"1", b"2", b"3", b"4", b"5"],
            "headers": [None, as_structs([("trace", b"own"), ("own", None)]), as_structs([("own", b"")]), [], None],
            "_kafka": places,
        },
        {"headers": HEADERS, "_kafka": pa.struct([("offset", pa.int64()), ("headers", HEADERS)])},
    )

    found = [record.headers for record in written(Outbox("events"), rows)]
    assert found == [
        (("trace", b"7f"), ("trace", None), ("tenant", b"\xff")),
        (("trace", b"own"), ("own", None), ("tenant", b"")),
        (("own", b""),),
        None,
        None,
    ]
    alone = rows.drop_columns(["headers"])
    assert Outbox("events").uses_kafka_column(alone.schema)
    assert written(Outbox("events"), alone)[1].headers == (("trace", b"7f"), ("tenant", b""))


def as_structs(headers: Any) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in headers]


@pytest.mark.parametrize(
    ("writer", "columns", "said"),
    [
        (Outbox("events"), {"key": [b"a"]}, "value is missing"),
        (Outbox("events"), {"value": [1]}, "value has another type"),
        (Outbox("events"), {"value": [b""], "headers": [b""]}, "headers has another type"),
        (Outbox("events"), {"value": [b""], "partition": [1]}, "partition is no part of a record"),
        (Outbox("events"), {"value": [b""], "topic": ["events"]}, "topic is also the argument"),
        (Outbox(), {"value": [b""]}, "topic is neither a column nor an argument"),
        (Outbox(), {"value": [b""], "topic": [b"events"]}, "topic has another type"),
        (Outbox("events"), {"value": [b""], "_reject": ["bad"]}, "_reject is no part of a record"),
    ],
)
def test_columns_that_are_not_a_record_s_are_told(writer: Outbox, columns: dict[str, Any], said: str) -> None:
    rows = batch(columns)
    with pytest.raises(ColumnMismatch, match=said) as caught:
        writer.check(NOBODY, rows.schema)
    assert ("dead_letters=" in caught.value.next_step) is ("_reject" in columns)
    with pytest.raises(ColumnMismatch):
        writer.write(Records(), [rows])  # pyright: ignore[reportArgumentType]


def test_rows_that_kafka_can_t_have_are_found_and_refused_before_any_of_their_batch_is_written() -> None:
    good = batch({"value": [b"0"], "topic": ["events"], "headers": [None]}, {"headers": HEADERS})
    bad = batch(
        {
            "value": [b"1", b"2", b"3", b"4", b"5"],
            "topic": ["events", "no topic", None, "events", "events"],
            "headers": [None, None, None, [{"key": None, "value": b""}], [{"key": "a\0b", "value": b""}]],
        },
        {"headers": HEADERS},
    )
    work: Any = Records()

    with pytest.raises(RowsRefused, match="Kafka allows no topic of this name") as caught:
        Outbox().write(work, [good, bad])

    assert (caught.value.row, caught.value.column) == (3, "topic")
    assert [record.value for record in work.records] == [b"0"]
    assert finds_misfits(Outbox())
    found = Outbox().misfits(NOBODY, bad)
    assert [(one.row, one.error.column) for one in found] == [
        (1, "topic"), (2, "topic"), (3, "headers"), (4, "headers")
    ]  # fmt: skip


def test_text_that_is_not_utf_8_is_a_value_or_a_key_and_no_name() -> None:
    """Spark makes such texts of bytes."""

    def unchecked(*values: bytes) -> Any:
        return pa.array(values, pa.binary()).view(pa.string())

    rows = pa.record_batch({"key": unchecked(b"\xff", b"k"), "value": unchecked(b"\xfe", b"v")})
    found = written(Outbox("events"), rows)
    assert found == [OutboxRecord("events", b"\xff", b"\xfe"), OutboxRecord("events", b"k", b"v")]
    arrow: Any = pa
    header = arrow.StructArray.from_arrays([unchecked(b"\xff"), pa.array([b"v"])], ["key", "value"])
    rows = pa.record_batch({
        "value": [b"a", b"b"],
        "topic": unchecked(b"events", b"\xff"),
        "headers": arrow.ListArray.from_arrays(pa.array([0, 1, 1], pa.int32()), header),
    })  # fmt: skip
    assert [(one.row, one.error.column) for one in Outbox().misfits(NOBODY, rows)] == [(0, "headers"), (1, "topic")]
    with pytest.raises(RowsRefused):
        written(Outbox(), rows)


def test_its_topic_is_checked_when_it_is_made_and_it_can_be_sent_to_tasks() -> None:
    with pytest.raises(ConfigurationError, match="the name of the topic is not valid"):
        Outbox("no topic")
    assert repr(pickle.loads(pickle.dumps(Outbox("events")))) == "Outbox('events')"  # noqa: S301
    assert repr(Outbox()) == "Outbox()"
