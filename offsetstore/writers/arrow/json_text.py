"""Arrow's structs, maps and lists as JSON text.

Numbers keep all their digits (the standard encoder knows no Decimal); timestamps are ISO 8601 with their offset; binary
is base64, as Spark's ``to_json`` writes it.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import date, time
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from offsetstore.writers.arrow.values import Unfit, is_list, refuse_out_of_range


def json_texts(array: pa.Array[Any]) -> pa.Array[Any]:
    """Write each value as JSON; NULL stays NULL, and does not become JSON's ``null``.

    :raises Unfit: a NaN or an infinity, which JSON does not have, a map with a duplicate key, or a time of day
        outside of the day.
    """
    _check_times(array)
    try:
        values = array.to_pylist(maps_as_pydicts="strict")
    except KeyError:
        reason = "a map with a duplicate key"
        raise Unfit(reason) from None
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _check_times(array: Any) -> None:
    """Check all times of day, at any depth: Python's wrap around at midnight, without an error."""
    kind = array.type
    if is_list(kind):
        _check_times(pc.list_flatten(array))
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            _check_times(child)
    elif pa.types.is_map(kind):
        _check_times(array.keys)
        _check_times(array.items)
    elif pa.types.is_time(kind):
        refuse_out_of_range(array)


def _text(value: Any) -> str:  # noqa: PLR0911 - one case a line reads better than a table
    match value:
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return "{" + ",".join(f"{_key(key)}:{_text(item)}" for key, item in items) + "}"
        case list():
            return "[" + ",".join(map(_text, cast("list[Any]", value))) + "]"
        case float() if not math.isfinite(value):
            reason = "a NaN or an infinity inside JSON"
            raise Unfit(reason)
        case Decimal():
            return format(value, "f")
        case date() | time():  # a datetime is a date
            return json.dumps(value.isoformat())
        case bytes():
            return json.dumps(base64.b64encode(value).decode())
        case None | bool() | int() | float() | str():
            return json.dumps(value, ensure_ascii=False)
        case _:  # durations, and types that Arrow may add
            return json.dumps(str(value))


def _key(key: Any) -> str:
    return json.dumps(key, ensure_ascii=False) if isinstance(key, str) else json.dumps(_text(key).strip('"'))
