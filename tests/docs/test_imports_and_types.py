"""The consumer's and handlers' pages: each public name has its import; docs/types.md: a schema's types are true."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pytest

import offsetstore
from offsetstore import consumer, monitoring
from offsetstore.processing.handled_rows import arrow_rows, columns_of, schema_of
from offsetstore.processing.handling import CallOutcome, Record
from offsetstore.writers.arrow.casts import find_cast
from tests.support.type_pairs import COLUMNS

DOCS: Final = Path(__file__).parents[2] / "docs"
PUBLIC: Final = {*offsetstore.__all__, *consumer.__all__, *monitoring.__all__}
IMPORT: Final = r"from (offsetstore[\w.]*) import (\w+(?:, \w+)*)"


@pytest.mark.parametrize("page", ["consumer.md", "consumer-tuning.md", "handlers.md", "handlers-clients.md"])
def test_each_block_of_python_has_the_imports_that_it_uses_itself_or_from_an_earlier_one(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    have = set[str]()
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for found in re.finditer(IMPORT, block):
            have |= {*found[2].split(", ")}
            assert all(hasattr(import_module(found[1]), name) for name in found[2].split(", ")), found[0]
        assert {name for name in PUBLIC if re.search(rf"\b{name}\(", block)} <= have


def rows() -> list[list[str]]:
    text = (DOCS / "types.md").read_text(encoding="utf-8")
    table = text.partition("| the schema's text |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.behaviour("HAND-10")
@pytest.mark.parametrize("row", rows(), ids=" ".join)
def test_the_table_of_a_schema_s_types_is_true(row: list[str]) -> None:
    names: dict[str, Any] = {"pa": pa, "json": json, "Decimal": Decimal, "UUID": UUID, **vars(dt)}
    texts, [arrow], columns, [value] = map(quoted, row)
    kind, given = (eval(text, names) for text in (arrow, value))  # noqa: S307 - the page's own words
    for text in texts:
        schema = schema_of(f"a {text}")
        assert columns_of(schema) == columns_of(pa.schema([("a", kind)]))
        lists: Any
        lists, [outcome] = arrow_rows([CallOutcome(Record("scores", 0, 0), ({"a": given},))], {"": schema})
        assert outcome.error is None
        made = lists.field(0).flatten().field(0)
        for column in columns:
            cast = find_cast(made.type, COLUMNS[column])
            assert cast is not None
            assert len(cast.convert(made)) == 1


@pytest.mark.behaviour("HAND-10")
def test_the_table_has_the_type_of_each_column_that_spark_has_one_for() -> None:
    listed = {name for row in rows() for name in quoted(row[2])}
    others = {"citext", "timetz", "mood", "inet", "cidr", "macaddr", "int4range", "hstore", "vector(3)", "pair"}
    others |= {"geometry", "point"}
    arrays = {name for name in COLUMNS if name.endswith("[]")}
    unusual = {"numeric(50,2)", "time(0)", "interval day", "money", "name", '"char"'}
    assert listed - arrays == {*COLUMNS} - arrays - others - unusual
