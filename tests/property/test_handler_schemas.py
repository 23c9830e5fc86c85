"""A handler's schema: any text is one, or an error that says what to write; and what it says works."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetstore.errors import ConfigurationError
from offsetstore.processing.handled_rows import columns_of, schema_of, schemas_of
from offsetstore.writers.arrow.casts import find_cast
from tests.support.type_pairs import COLUMNS

WORDS = """
a b `a` `` é int long decimal decimal(3,5) numeric(99) varchar(10) array map struct interval year to
second double precision timestamp with time zone not null comment default 'x' "y" 9 < > ( ) , : []
"""

texts = st.text() | st.lists(st.sampled_from(["\0", *WORDS.split()])).map(" ".join)
others = st.none() | st.integers() | st.binary() | st.just(pa.int64()) | st.just(str) | st.lists(st.text())


def refusal(schema: object) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as refused:
        schemas_of(cast("Any", SimpleNamespace(schema=schema)))
    return refused.value


@pytest.mark.behaviour("HAND-10")
@given(st.one_of(texts, others, st.dictionaries(st.text(max_size=3), texts | others)))
def test_anything_is_a_schema_or_a_clear_error(given: object) -> None:
    refused: ConfigurationError | None = None
    try:
        made = schemas_of(cast("Any", SimpleNamespace(schema=given)))
    except ConfigurationError as error:  # most texts
        refused = error
    else:
        assert all(isinstance(one, pa.Schema) and one.names for one in made.values())
    if refused is not None:
        assert refused.found is not None
        assert refused.expected is not None or refused.next_step or "a name of its own" in refused.what
        told = str(refused).replace(repr(given), "")
        assert not re.search("index out of range|object (is|has)|NoneType|KeyError", told)


# What PostgreSQL calls the types of columns, as in `COLUMNS`, with other words for them.
SAME = {
    "boolean": ["bool"],
    "smallint": ["int2", "smallserial"],
    "integer": ["int4", "serial", "int(11)"],
    "bigint": ["int8", "bigserial"],
    "real": ["float4", "float(24)"],
    "double precision": ["double precision", "float8", "float(53)"],
    "text": ["text", "varchar", "varchar(10)", "character varying(10)", "char(10)", "character(3)", "bpchar"],
    "citext": ["citext"],
    "bytea": ["bytea"],
    "timestamp": ["timestamp without time zone", "timestamp(3) without time zone", "datetime"],
    "timestamptz": ["timestamptz", "timestamptz(3)", "timestamp with time zone", "timestamp (3) with time zone"],
    "time": ["time without time zone", "time(3) without time zone"],
    "timetz": ["timetz", "time with time zone"],
    "interval": ["interval", "interval year to month"],
    "uuid": ["uuid"],
    "json": ["json"],
    "jsonb": ["jsonb"],
    "inet": ["inet"],
    "hstore": ["hstore"],
}


@pytest.mark.behaviour("HAND-10", "DX-1")
@pytest.mark.parametrize(("column", "name"), [(column, name) for column, names in SAME.items() for name in names])
def test_for_a_name_of_sql_the_error_says_what_to_write_and_that_fits_its_column(column: str, name: str) -> None:
    for schema in (f"x {name.upper()}, y int", f"x {name} NOT NULL COMMENT 'of SQL'", f"y struct<x: {name}>"):
        error = refusal(schema)
        [written] = re.findall(r"is unknown; write ([\w ]+?)(?:,? (?:for|or) .*)?$", str(error.found))
        [kind] = columns_of(schema_of(f"x {written}")).types
        assert find_cast(kind, COLUMNS[column]), f"{name}: write {written}"


@pytest.mark.behaviour("HAND-10")
@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("a", "column a: its type is missing"),
        ("a, b int", "column a: its type is missing"),
        ("", "a column's name is missing before 'the end'"),
        ("a int comment", "column a: the text of its comment is not quoted"),
        ("a int[]", "column a: an array is written array<...>, with the type of its elements"),
        ("a list<int>", "column a: the type list is unknown; write array<...> with the type of its elements"),
        ("id long primary key", "'primary' in the place of ',' or the end"),
        ("id lung", "column id: the type lung is unknown; did you mean 'long'?"),
        (
            "id box",
            "column id: the type box is unknown; for a type that PostgreSQL has and Spark has not, write string",
        ),
        (f"a decimal({'9' * 5000})", "column a: "),
        (pa.int64(), "DataType(int64)"),
    ],
)
def test_what_is_wrong_with_a_schema_is_told(schema: Any, told: str) -> None:
    assert told in str(refusal(schema).found)


@pytest.mark.behaviour("HAND-10")
def test_columns_in_place_of_outputs_are_told_how_to_be_written() -> None:
    error = refusal({"a": "long"})
    assert error.next_step == 'A mapping is of outputs. For a column a, write "a long".'
    assert "the output 'a'" in str(error)
    assert refusal({"a": "b lung"}).next_step == ""
