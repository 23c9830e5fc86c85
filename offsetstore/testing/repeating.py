"""Whether a transform makes the same rows of a record each time, and whatever records come with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, cast
from uuid import UUID

from offsetstore.errors import ConfigurationError
from offsetstore.lazy import find
from offsetstore.processing.handling import Handler, Record
from offsetstore.testing.records import as_consumed, coordinates

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

    from offsetstore.consumer.delivery import ArrowTransform
    from offsetstore.spark.outputs import SparkTransform

_KAFKA: Final = "_kafka"
_PLACE: Final = ("topic", "partition", "offset")
_UUID: Final = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_TIME: Final = "now() or current_timestamp(): take the record's timestamp"
_ID: Final = "uuid(): make the id from topic, partition and offset"
_NUMBER: Final = "monotonically_increasing_id(), row_number() or a place in the batch: take the record's offset"
_CHANCE: Final = "rand(), or a sum of floats in the order of a shuffle"
_OTHERS: Final = "the order of a shuffle, as in first() or collect_list(), or a join with a table that changes"
_SEVERAL: Final = "rows made from several records: groupBy, distinct, a window"

_Row: TypeAlias = tuple[tuple[str, str], ...]
"""The columns of a row with their values, as text: to compare NaN, lists and maps alike."""
_Place: TypeAlias = tuple[Any, ...]
"""The output's name, and the record's coordinates; without these if the transform has dropped ``_kafka``."""
_Compute: TypeAlias = Callable[[Sequence[Record]], "_Made"]


def replay_twice(
    transform: ArrowTransform | SparkTransform,
    records: Sequence[Record],
    *,
    spark: object | None = None,
    crops: int = 5,
    seed: int = 0,
) -> None:
    """Prove that a transform makes the same rows of each record again, as a replay after a crash needs it.

    It runs the transform on all records, then on all again, and then on two parts of them, cut in each partition at a
    random offset, as a batch is cropped that is stored in part. Rows are compared by the coordinates in ``_kafka``. If
    the transform drops this column, all rows of a run are compared, and a difference is narrowed down to a record.
    Numbers that are equal count as equal, whatever types Arrow infers for a part.

    All runs are in one process and follow each other at once. So it can't find ``hash()`` of a text, which differs in
    each process, ``date.today()``, which differs on another day, or a value that is computed once and cached.

    ::

        records = [Record("payments", 0, offset, b"ana", b"12.50") for offset in range(20)]
        replay_twice(parse, records)                # a consumer's transform
        replay_twice(parse, records, spark=spark)   # a Spark job's

    :param transform: the function that the job has, without its sink. Nothing is written.
    :param records: at most a few hundred, of one or more partitions.
    :param spark: the session of a Spark job's transform, which gets a DataFrame. Without it, the transform gets a
        ``pyarrow.RecordBatch``.
    :param crops: how often the records are cut.
    :param seed: of the cuts.
    :raises AssertionError: the rows differ. It names the record, the columns and the usual cause.
    :raises ConfigurationError: there are no records, the transform is a `Handler`, whose calls may have effects, or it
        has not returned a ``RecordBatch`` (on Spark a DataFrame), or a mapping of names to these.
    """
    if isinstance(cast("object", transform), Handler):
        raise ConfigurationError(
            "replay_twice can't repeat a handler: its calls may have effects",
            found="Handler",
            expected="a transform",
            next_step="Call the handler's function twice with the same Record, and compare what it returns.",
        )
    ordered = sorted(records, key=coordinates)
    if not ordered:
        raise ConfigurationError("replay_twice needs records", found="none", expected="some")
    compute = (
        _in_process(cast("Any", transform)) if spark is None else _on_spark(cast("Any", transform), spark, ordered)
    )
    whole = compute(ordered)
    if (found := whole.difference(compute(ordered))) is not None:
        _fail(
            _narrowed(compute, ordered) if whole.is_untraced else found,
            "a second run on the same records",
            in_parts=False,
        )
    random = Random(seed)  # noqa: S311 - no secret
    for _ in range(crops if len({*map(coordinates, ordered)}) > 1 else 0):
        at, below, above = _cut(ordered, random)
        if (found := whole.difference(compute(below).joined(compute(above)))) is not None:
            cuts = ", ".join(f"{topic}-{number} at {offset}" for (topic, number), offset in sorted(at.items()))
            _fail(found, f"runs on parts of the records, cut {cuts} (seed={seed}),", in_parts=True)


@dataclass(frozen=True, slots=True)
class _Difference:
    """Rows that one run has made and another has not.

    :param place: the record's, or ``None`` if it is not known.
    """

    place: _Place | None
    only_first: Sequence[_Row]
    only_second: Sequence[_Row]
    values: Mapping[_Row, Mapping[str, object]]


@dataclass(slots=True)
class _Made:
    """What a run has made: how often each row of each record."""

    by_place: dict[_Place, Counter[_Row]] = field(default_factory=dict[_Place, Counter[_Row]])
    values: dict[_Row, Mapping[str, object]] = field(default_factory=dict[_Row, Mapping[str, object]])
    is_untraced: bool = False

    def add(self, name: str, table: Table | RecordBatch) -> None:
        self.is_untraced |= _KAFKA not in table.schema.names
        for row in table.to_pylist():
            kafka: Any = row.pop(_KAFKA, None)
            parts = [cast("Any", kafka).get(part) for part in _PLACE] if isinstance(kafka, dict) else [None]
            place: _Place = (name, *parts)
            if None in parts:  # as after an outer join
                self.is_untraced, place = True, (name,)
            texts = tuple((column, _text(value)) for column, value in row.items())
            self.by_place.setdefault(place, Counter())[texts] += 1
            self.values[texts] = row

    def joined(self, other: _Made) -> _Made:
        made = _Made(dict(self.by_place), {**self.values, **other.values}, self.is_untraced or other.is_untraced)
        for place, rows in other.by_place.items():
            made.by_place[place] = made.by_place.get(place, Counter()) + rows
        return made

    def difference(self, other: _Made) -> _Difference | None:
        """The first one, in the order of the records."""
        for place in sorted({*self.by_place, *other.by_place}):
            first, second = (rows.by_place.get(place, Counter[_Row]()) for rows in (self, other))
            if first != second:
                only_first, only_second = ([*(a - b).elements()] for a, b in ((first, second), (second, first)))
                known = place if len(place) > 1 else None
                return _Difference(known, only_first, only_second, {**self.values, **other.values})
        return None


def _in_process(transform: ArrowTransform) -> _Compute:
    batch_of: Callable[..., Any] = find(
        "offsetstore.consumer.records", "batch_of", what="replay_twice without spark=", extra="consumer"
    )

    def compute(records: Sequence[Record]) -> _Made:
        return _collected(transform(batch_of(as_consumed(records))), "to_pylist", lambda made: made)

    return compute


def _on_spark(transform: SparkTransform, spark: Any, all_records: Sequence[Record]) -> _Compute:
    from offsetstore.spark.columns import KAFKA_COLUMNS, kafka_frame, with_coordinates  # noqa: PLC0415 - an extra

    # A query has the column of headers in all batches or in none.
    columns = KAFKA_COLUMNS if any(record.headers for record in all_records) else KAFKA_COLUMNS[:-1]

    def compute(records: Sequence[Record]) -> _Made:
        rows = [
            (
                None if one.key is None else bytearray(one.key),
                None if one.value is None else bytearray(one.value),
                one.topic,
                one.partition,
                one.offset,
                one.timestamp_ms or 0,
                0,
                [*one.headers] or None,
            )
            for one in records
        ]
        made = transform(with_coordinates(kafka_frame(spark, rows, columns)))
        return _collected(made, "toArrow", lambda frame: frame.toArrow())

    return compute


def _collected(made: Any, has: str, as_table: Callable[[Any], Table | RecordBatch]) -> _Made:
    rows = _Made()
    outputs = cast("Mapping[str, Any]", made) if isinstance(made, Mapping) else {"": made}
    for name, output in outputs.items():
        if not hasattr(output, has):
            raise ConfigurationError(
                "the transform returned no rows" + (f" for output {name!r}" if name else ""),
                found=type(output).__name__,
                expected=f"a {'RecordBatch' if has == 'to_pylist' else 'DataFrame'}, or a mapping of names to these",
                next_step="Return the columns without rows where there is nothing to write.",
            )
        rows.add(name, as_table(output))
    return rows


def _cut(records: Sequence[Record], random: Random) -> tuple[dict[tuple[str, int], int], list[Record], list[Record]]:
    """Cut each partition at a random offset, from its first (all are above) to its last and 1 (all are below).

    There is a record on either side. So there must be records with different coordinates.
    """
    offsets: dict[tuple[str, int], list[int]] = {}
    for topic, number, offset in map(coordinates, records):
        offsets.setdefault((topic, number), []).append(offset)
    while True:
        at = {place: random.choice([*of_place, of_place[-1] + 1]) for place, of_place in offsets.items()}
        below = [record for record in records if record.offset < at[record.topic, record.partition]]
        above = [record for record in records if record.offset >= at[record.topic, record.partition]]
        if below and above:
            return at, below, above


def _text(value: object) -> str:
    """The value as text, the same for equal numbers: of 1 and 2.5 Arrow makes floats, of 1 alone an integer."""
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and str(value) != "-0.0" else repr(value)
    if isinstance(value, Decimal):
        return repr(int(value)) if value == value.to_integral_value() else f"{value:f}".rstrip("0")
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {_text(one)}' for name, one in cast('Any', value).items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, cast('Any', value)))}]"
    return repr(value)


def _narrowed(compute: _Compute, records: Sequence[Record]) -> _Difference:
    """Find a record whose rows differ from one run to the next, where the rows don't name their records."""
    found = None
    while len(records) > 1:
        half = len(records) // 2
        for part in (records[:half], records[half:]):
            if (found := compute(part).difference(compute(part))) is not None:
                records = part
                break
        else:
            break  # only together
    found = compute(records).difference(compute(records)) or found
    assert found is not None, "the rows of two runs differed, and now they don't: run it again"
    return _Difference(
        ("", *coordinates(records[0])) if len(records) == 1 else None,
        found.only_first,
        found.only_second,
        found.values,
    )


def _fail(found: _Difference, what: str, *, in_parts: bool) -> NoReturn:
    name, *place = found.place or ("",)
    of = f"record {place[0]}-{place[1]} at offset {place[2]}" if place else "a record (keep _kafka to see which)"
    output = f", output {name!r}" if name else ""
    lines = [f"the transform is not repeatable: {what} made other rows of {of}{output}"]
    if found.only_first and found.only_second:
        first, second = _closest(found.only_first, found.only_second)
        before, after = found.values[first], found.values[second]
        changed = [column for column in {**before, **after} if _text(before.get(column)) != _text(after.get(column))]
        lines += [f"  column {column}: {before.get(column)!r}, then {after.get(column)!r}" for column in changed]
        causes = [_cause(before.get(column), after.get(column)) for column in changed]
    else:
        gone = bool(found.only_first)
        row = found.values[(found.only_first or found.only_second)[0]]
        lines.append(f"  a row that was {'there is missing' if gone else 'not there appears'}: {dict(row)!r}")
        lines.append(f"  columns: {', '.join(row)}")
        causes = [_OTHERS]
    if in_parts:
        causes.append(_SEVERAL)
    raise AssertionError("\n".join([*lines, *(f"  usual cause: {cause}" for cause in dict.fromkeys(causes))]))


def _closest(first: Sequence[_Row], second: Sequence[_Row]) -> tuple[_Row, _Row]:
    """The two rows that have most in common."""

    def pairs() -> Iterator[tuple[int, _Row, _Row]]:
        for one in first:
            for other in second:
                yield len({*one} & {*other}), one, other

    _, one, other = max(pairs(), key=lambda pair: pair[0])
    return one, other


def _cause(before: object, after: object) -> str:
    values = [value for value in (before, after) if value is not None]
    if all(isinstance(value, (datetime, date, time)) for value in values):
        return _TIME
    if all(isinstance(value, UUID) or (isinstance(value, str) and _UUID.fullmatch(value)) for value in values):
        return _ID
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return _NUMBER
    if all(isinstance(value, float) for value in values):
        return _CHANCE
    return _OTHERS
