from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from offsetstore.errors import MetadataError
from offsetstore.protocol import metadata


def nested(depth: int) -> object:
    value: object = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.behaviour("META-1")
@pytest.mark.parametrize(
    "value",
    [
        object(),
        b"bytes",
        {1, 2},
        Decimal(1),
        datetime(2026, 1, 1, tzinfo=UTC),
        math.nan,
        math.inf,
        {("a", "tuple"): 1},
        nested(100_000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_json_value_is_refused_by_its_type(value: object) -> None:
    with pytest.raises(MetadataError) as caught:
        metadata.JSON.dump(value)

    assert type(value).__name__ in str(caught.value.found)
    assert caught.value.expected
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        ("a\udcff", metadata.JSON, "a lone surrogate, character 3 of 4"),
        ({"k": ["\ud800"]}, metadata.JSON, "a lone surrogate, character 8 of 11"),
        ("ab\0", metadata.Metadata(serializer=str), "a NUL, character 3 of 3"),
        ("\udcff", metadata.Metadata(serializer=str), "a lone surrogate, character 1 of 1"),
    ],
)
def test_a_character_that_cant_be_stored_is_a_value_error_with_its_place(
    value: object, text: metadata.Metadata, found: str
) -> None:
    with pytest.raises(ValueError, match="can't be stored") as caught:
        text.dump(value)

    assert isinstance(caught.value, MetadataError)
    assert caught.value.found == found
    assert metadata.JSON.dump("a NUL\0") == r'"a NUL\u0000"', "JSON escapes it"


def test_what_is_too_large_is_refused_without_being_shown() -> None:
    with pytest.raises(MetadataError, match="too large") as caught:
        metadata.JSON.dump("é" * (metadata.MAX_BYTES // 2))

    assert caught.value.found == "1,048,578 bytes"
    assert "é" not in str(caught.value)
    assert metadata.JSON.dump("x" * (metadata.MAX_BYTES - 2)) is not None


@pytest.mark.parametrize("text", ["", "{", "not json", "[" * 100_000])
def test_a_stored_text_that_is_not_json_is_an_error(text: str) -> None:
    with pytest.raises(MetadataError, match="not JSON") as caught:
        metadata.JSON.load(text)

    assert caught.value.found == f"{len(text)} characters"


def test_keys_that_json_would_merge_are_refused() -> None:
    with pytest.raises(MetadataError, match="can't be written as JSON"):
        metadata.JSON.dump([{"seen": {1: "a", "1": "b"}}])
