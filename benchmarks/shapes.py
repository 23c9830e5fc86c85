"""The records that are measured: how many, what they hold, their table, and how Spark makes rows of them.

Records are the same at each call, and spread evenly over the topic's partitions. The first column is unique: it counts
from 0, or with the flights from 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from offsetstore.demo.flights import ALL, as_json, read_flights
from offsetstore.demo.tables import COLUMNS
from offsetstore.kafka.admin import NewRecord

PARTITIONS: Final = 5
"""Of each shape's topic."""

_SPARK_TYPES: Final = {
    "bigint": "bigint",
    "boolean": "boolean",
    "date": "date",
    "double precision": "double",
    "integer": "int",
    "jsonb": "string",  # from_json leaves an object's JSON as it is, if a string is asked for
    "smallint": "smallint",
    "text": "string",
    "timestamptz": "timestamp",
}
_COORDINATES: Final = {"partition": "integer", "offset": "bigint"}


@dataclass(frozen=True, slots=True)
class Shape:
    """Records, and the table that they go to.

    :param values: yields the first ``count`` records' JSON.
    :param fields: those of the JSON, with PostgreSQL's types, in the order of the table's columns.
    :param with_coordinates: whether rows have the record's partition and offset too, as their last columns.
    :param per_trigger: the reader's ``maxOffsetsPerTrigger``; without it, all records are one micro-batch.
    """

    name: str
    count: int
    values: Callable[[int], Iterator[bytes]]
    fields: Mapping[str, str]
    with_coordinates: bool = True
    per_trigger: int | None = None

    @property
    def table(self) -> str:
        """The results table's name."""
        return self.name.replace("-", "_")

    @property
    def key(self) -> str:
        """The unique column."""
        return next(iter(self.fields))

    @property
    def columns(self) -> dict[str, str]:
        """The table's columns, with PostgreSQL's types."""
        return {**self.fields, **(_COORDINATES if self.with_coordinates else {})}

    @property
    def ddl(self) -> str:
        """The statement that creates the results table, which has no index."""
        columns = ", ".join(f'"{name}" {type_}' for name, type_ in self.columns.items())
        return f"CREATE TABLE {self.table} ({columns})"

    @property
    def spark_schema(self) -> str:
        """The JSON's schema for Spark's from_json."""
        return ", ".join(f"{name} {_spark_type(type_)}" for name, type_ in self.fields.items())

    def records(self) -> Iterator[NewRecord]:
        """Yield the records to produce."""
        for number, value in enumerate(self.values(self.count)):
            yield NewRecord(value, key=str(number).encode(), partition=number % PARTITIONS)

    def rows(self, batch: DataFrame, *kept: str) -> DataFrame:
        """Make rows of Kafka's records.

        :param kept: further columns of the source to keep, such as ``_kafka``.
        """
        parsed = F.from_json(F.col("value").cast("string"), self.spark_schema).alias("parsed")
        others = [*(_COORDINATES if self.with_coordinates else ()), *kept]
        return batch.select(parsed, *others).select("parsed.*", *others)


def _spark_type(type_: str) -> str:
    return type_.replace("numeric", "decimal") if type_.startswith("numeric") else _SPARK_TYPES[type_]


def _moment(number: int) -> str:
    """A moment in 2026, in whole seconds."""
    minutes, second = divmod(number, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    months, day = divmod(days, 28)
    return f"2026-{months % 12 + 1:02}-{day + 1:02}T{hour:02}:{minute:02}:{second:02}Z"


def _payments(count: int) -> Iterator[bytes]:
    """About 90 bytes each."""
    for number in range(count):
        customer, amount = number * 7919 % 100_000, number * 104_729 % 1_000_000
        yield (
            f'{{"id":{number},"customer":"customer-{customer:05}","amount":{amount // 100}.{amount % 100:02},'
            f'"at":"{_moment(number)}"}}'
        ).encode()


def _orders(count: int) -> Iterator[bytes]:
    """About 480 bytes each; some values are null."""
    for number in range(count):
        mixed = number * 104_729 % 1_000_003
        yield json.dumps(
            {
                "id": number,
                "customer": mixed % 100_000,
                "quantity": mixed % 100,
                "amount": f"{mixed}.{number % 10_000:04}",
                "price": f"{mixed % 10_000}.{number % 100:02}",
                "discount": None if number % 3 else mixed / 1_000_003,
                "score": mixed * 1.25e-3,
                "latitude": mixed / 1_000_003 * 180 - 90,
                "longitude": mixed / 1_000_003 * 360 - 180,
                "active": number % 2 == 0,
                "verified": None if number % 5 == 0 else number % 7 == 0,
                "ordered_at": _moment(number),
                "shipped_at": None if number % 3 == 0 else _moment(number + 86_400),
                "due": _moment(number + 604_800)[:10],
                "country": ("DE", "FR", "US", "JP", "BR")[mixed % 5],
                "email": f"customer-{mixed % 100_000:05}@example.org",
                "comment": None if number % 4 else f"Zustellung nach {mixed % 24} Uhr, bitte läuten ✓",
                "parent": None if number % 10 else number // 2,
                "attributes": {"colour": "blue", "size": mixed % 50, "gift": number % 9 == 0},
                "tags": [f"tag-{mixed % 10}", f"tag-{number % 10}", None],
            },
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()


_ORDERS: Final = {
    "id": "bigint",
    "customer": "integer",
    "quantity": "smallint",
    "amount": "numeric(18,4)",
    "price": "numeric(12,2)",
    "discount": "double precision",
    "score": "double precision",
    "latitude": "double precision",
    "longitude": "double precision",
    "active": "boolean",
    "verified": "boolean",
    "ordered_at": "timestamptz",
    "shipped_at": "timestamptz",
    "due": "date",
    "country": "text",
    "email": "text",
    "comment": "text",
    "parent": "bigint",
    "attributes": "jsonb",
    "tags": "jsonb",
}
_PAYMENTS: Final = {"id": "bigint", "customer": "text", "amount": "numeric(12,2)", "at": "timestamptz"}

SMALL: Final = Shape("small", 500_000, _payments, _PAYMENTS)
WIDE: Final = Shape("wide", 200_000, _orders, _ORDERS)
FLIGHTS: Final = Shape("flights", ALL, lambda count: map(as_json, read_flights(count)), COLUMNS, with_coordinates=False)
STEADY_5000: Final = replace(SMALL, name="steady-5000", count=150_000, per_trigger=5_000)
STEADY_500: Final = replace(SMALL, name="steady-500", count=20_000, per_trigger=500)
LATEST: Final = replace(SMALL, name="latest", count=5_555)  # not a multiple of what is polled
TENTH: Final = replace(SMALL, name="tenth", count=200_000)
LARGE: Final = replace(SMALL, name="large", count=2_000_000)

SHAPES: Final = {shape.name: shape for shape in (SMALL, WIDE, FLIGHTS, STEADY_5000, STEADY_500, LATEST, TENTH, LARGE)}
