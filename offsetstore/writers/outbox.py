"""Outbox: rows are records for Kafka, which `offsetstore relay` produces after the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection

from offsetstore.errors import ColumnMismatch, ConfigurationError, RowsRefused
from offsetstore.protocol.letters import REJECT
from offsetstore.protocol.outbox import TOPIC_NAMES, OutboxRecord, is_header_name, is_topic
from offsetstore.protocol.ports import Work
from offsetstore.writers.arrow.batches import KAFKA, Stream, as_bytes, has_headers, without_kafka
from offsetstore.writers.arrow.misfits import Misfit

_BYTES: Final = "binary or string"
_EXPECTED: Final = {
    "key": _BYTES,
    "value": _BYTES,
    "headers": "array<struct<key: string, value: binary>>",
    "topic": "string",
}


class Outbox:
    """Puts each row into the outbox as a record, with the columns of Spark's own Kafka sink.

    ``value`` (binary or string; NULL is a tombstone) is needed. ``key`` decides the partition, and ``headers`` is an
    array of structs of ``key`` and ``value``, as from Spark's reader with ``includeHeaders``. Texts become UTF-8.

    With ``propagate=`` and ``_kafka``, the named headers of a row's record follow its own; see docs/context.md.

    :param topic: of all rows; without it, the rows have a column ``topic``.
    :raises ConfigurationError: Kafka allows no topic of this name.
    """

    appends = True
    takes_headers = True

    def __init__(self, topic: str | None = None) -> None:
        if topic is not None and not is_topic(topic):
            raise ConfigurationError(
                "the name of the topic is not valid",
                found=repr(topic),
                expected=TOPIC_NAMES,
            )
        self.topic = topic

    def __repr__(self) -> str:
        return f"Outbox({'' if self.topic is None else repr(self.topic)})"

    def uses_kafka_column(self, schema: pa.Schema) -> bool:
        """Whether it has headers that follow the records. Rows are new records, so nothing else of it matters."""
        return has_headers(schema)

    def check(self, connection: Connection, schema: pa.Schema) -> None:  # noqa: ARG002 - the Protocol's
        """Compare the columns with those of a record.

        :raises ColumnMismatch: one is missing, has another type, or is not of a record.
        """
        schema = without_kafka(schema)
        types: dict[str, Any] = dict(zip(schema.names, schema.types, strict=True))
        problems = [f"{name} appears more than once" for name in sorted({*types}) if schema.names.count(name) > 1]
        problems += [f"{name} is no part of a record" for name in types if name not in _EXPECTED]
        problems += [f"{name} has another type" for name, kind in types.items() if not _fits(name, kind)]
        if "value" not in types:
            problems.append("value is missing")
        if ("topic" in types) is (self.topic is not None):
            problems.append(f"topic is {'also the argument' if self.topic else 'neither a column nor an argument'}")
        if problems:
            raise ColumnMismatch(
                f"the rows do not fit {self!r}: {', '.join(problems)}",
                found={name: str(kind) for name, kind in types.items()},
                expected=_EXPECTED if self.topic is None else {**_EXPECTED, "topic": "none"},
                next_step="Give the sink dead_letters=DeadLetters(), which keeps the records that are rejected."
                if REJECT in types
                else "Correct what transform returns; the key decides the partition.",
            )

    def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
        """Put the rows into the outbox, in order; return how many.

        :raises ColumnMismatch: as `check`.
        :raises RowsRefused: Kafka allows no topic of a row's name, or a header's name is missing or has a zero byte.
        """
        stream = Stream.of(batches)
        if stream is None:
            return 0
        self.check(work.connection, stream.schema)
        before = 0
        for batch in stream:
            for misfit in self.misfits(work.connection, batch):
                misfit.error.row = before + misfit.row + 1
                raise misfit.error
            work.produce_all(self._records(batch))
            before += batch.num_rows
        return stream.rows

    def misfits(self, connection: Connection, batch: pa.RecordBatch) -> list[Misfit]:  # noqa: ARG002 - the Protocol's
        """Find the rows that `write` refuses; see `MisfitsWriter`."""
        found: dict[int, RowsRefused] = {}
        for row, headers in enumerate(_headers(batch)):
            names = [header and header["key"] for header in headers or ()]
            if None in names:
                found[row] = RowsRefused("a header has no name", column="headers")
            elif not all(_is_text_of(name, is_header_name) for name in names):
                found[row] = RowsRefused("the name of a header has a zero byte, or is not UTF-8", column="headers")
        if self.topic is None:
            for row, topic in enumerate(_values(batch, "topic")):
                if topic is None or not _is_text_of(topic, is_topic):
                    found[row] = RowsRefused("Kafka allows no topic of this name", column="topic")
        return [Misfit(row, found[row]) for row in sorted(found)]

    def _records(self, batch: pa.RecordBatch) -> Iterator[OutboxRecord]:
        topics = [self.topic] * batch.num_rows
        if self.topic is None:
            topics = [topic.decode() for topic in _values(batch, "topic")]
        values = (_values(batch, name) for name in ("value", "key"))
        for topic, value, key, headers in zip(topics, *values, _headers(batch), strict=True):
            pairs = None if headers is None else tuple((header["key"].decode(), header["value"]) for header in headers)
            yield OutboxRecord(topic, key, value, pairs)


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """The values of a column, texts as their bytes; all ``None`` without the column."""
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    return as_bytes(cast("Any", batch).column(name)).to_pylist()


def _headers(batch: pa.RecordBatch) -> list[Any]:
    """The headers of each row, and then the propagated ones of its record."""
    own = _values(batch, "headers")
    if not has_headers(batch.schema):
        return own
    following: Any = cast("Any", pc).struct_field(cast("Any", batch).column(KAFKA), "headers")
    return [_joined(*pair) for pair in zip(own, as_bytes(following).to_pylist(), strict=True)]


def _joined(own: Sequence[Any] | None, following: Sequence[Any] | None) -> Sequence[Any] | None:
    if not following:
        return own
    # A row's own header wins: a span that the transform began must not get its parent's header, too (decision 0097).
    names = {header and header["key"] for header in own or ()}
    return [*(own or ()), *(header for header in following if header["key"] not in names)]


def _is_text_of(given: bytes, is_valid: Callable[[str], bool]) -> bool:
    try:
        return is_valid(given.decode())
    except UnicodeDecodeError:
        return False


def _is_bytes(kind: Any) -> bool:
    types = cast("Any", pa).types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or _is_text(kind) or types.is_null(kind))


def _is_text(kind: Any) -> bool:
    types = cast("Any", pa).types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _fits(name: str, kind: Any) -> bool:
    """Whether a record's column may have this type; True for any other column."""
    if name in {"key", "value"}:
        return _is_bytes(kind)
    if name == "topic":
        return _is_text(kind)
    return name != "headers" or _is_headers(kind)


def _is_headers(kind: Any) -> bool:
    types = cast("Any", pa).types
    if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_struct(kind.value_type):
        return bool(types.is_null(kind))
    fields: dict[str, Any] = {field.name: field.type for field in kind.value_type}
    return fields.keys() == {"key", "value"} and _is_text(fields["key"]) and _is_bytes(fields["value"])
