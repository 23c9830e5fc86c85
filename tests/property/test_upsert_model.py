"""Upsert against a model in plain Python that takes one row after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offsetstore.local.postgres import PostgresServer
from offsetstore.writers import Upsert
from tests.integration.writers.writing import KAFKA, Database, new_database

Key = tuple[int, str]
State = dict[Key, dict[str, Any]]


@dataclass(frozen=True)
class Row:
    a: int
    b: str
    total: int | None
    top: int | None
    low: int | None
    version: int | None
    status: str | None
    offset: tuple[str, int, int]

    @property
    def key(self) -> Key:
        return self.a, self.b


def known(combine: Callable[[list[int]], int], *values: int | None) -> int | None:
    """Combine the values that are not NULL; nothing but NULL stays NULL."""
    there = [value for value in values if value is not None]
    return combine(there) if there else None


def take(state: State, row: Row, *, replaced: str) -> None:
    """Merge one row, the later of two being taken later."""
    stored = state.get(row.key)
    if stored is None:
        state[row.key] = {name: getattr(row, name) for name in ("total", "top", "low", "version", "status")}
        return
    stored["total"] = known(sum, stored["total"], row.total)
    stored["top"] = known(max, stored["top"], row.top)
    stored["low"] = known(min, stored["low"], row.low)
    newer = stored["version"] is None or (row.version is not None and row.version >= stored["version"])
    if replaced == "by offset" or (replaced == "by version" and newer):
        stored["version"], stored["status"] = row.version, row.status


small = st.none() | st.integers(-3, 3)
rows = st.builds(
    Row,
    a=st.integers(0, 1),
    b=st.sampled_from(["", "x", "X"]),
    total=small | st.integers(-(2**40), 2**40),
    top=small,
    low=small,
    version=st.none() | st.integers(0, 2),
    status=st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3),
    offset=st.tuples(st.sampled_from(["s", "t"]), st.integers(0, 1), st.integers(0, 2**62)),
)
batches = st.lists(st.lists(rows, max_size=8, unique_by=lambda row: row.offset), max_size=4)


@pytest.fixture(scope="module")
def table(offsetstore_postgres: PostgresServer) -> Iterator[Database]:
    with new_database(offsetstore_postgres) as made:
        made.run("""CREATE TABLE t (
            a int, b text COLLATE "C", total bigint, top int, low int, version int, status text, PRIMARY KEY (a, b)
        )""")
        yield made


def arrow(taken: list[Row], *, names: tuple[str, ...], with_kafka: bool) -> pa.RecordBatch:
    types: dict[str, pa.DataType] = {"b": pa.string(), "status": pa.string(), "total": pa.int64()}
    columns = {name: pa.array([getattr(row, name) for row in taken], types.get(name, pa.int32())) for name in names}
    if with_kafka:
        fields = ("topic", "partition", "offset")
        columns["_kafka"] = pa.array([dict(zip(fields, row.offset, strict=True)) for row in taken], KAFKA)
    return pa.record_batch(list(columns.values()), names=list(columns))


@pytest.mark.behaviour("SINK-2", "SINK-12")
@pytest.mark.parametrize("with_kafka", [True, False], ids=["with offsets", "in the batch's order"])
@pytest.mark.parametrize("replaced", ["by version", "by offset", "none"])
def test_any_batches_end_as_their_rows_one_by_one(table: Database, replaced: str, with_kafka: bool) -> None:  # noqa: FBT001
    with_kafka = with_kafka or replaced == "by offset"
    names = ("a", "b", "total", "top", "low") + (() if replaced == "none" else ("version", "status"))
    version = "version" if replaced == "by version" else None
    writer = Upsert("t", key=["b", "a"], add=["total"], greatest=["top"], least=["low"], version=version)

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(batches)
    def holds(delivered: list[list[Row]]) -> None:
        table.run("TRUNCATE t")
        model: State = {}
        for taken in delivered:
            assert table.write(writer, arrow(taken, names=names, with_kafka=with_kafka)) == len(taken)
            in_order = sorted(taken, key=lambda row: row.offset) if with_kafka else taken
            for row in in_order:
                take(model, row, replaced=replaced)
        stored = {(a, b): values for a, b, *values in table.rows("SELECT * FROM t")}
        if replaced == "none":
            model = {key: {**values, "version": None, "status": None} for key, values in model.items()}
        assert stored == {key: list(values.values()) for key, values in model.items()}

    holds()
