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

from offsetstore.writers.values import Unfit


def json_texts(array: pa.Array[Any]) -> pa.Array[Any]:
    """Write each value as JSON; NULL stays NULL, and does not become JSON's ``null``.

    :raises Unfit: a NaN or an infinity, which JSON does not have, or a map that has a key twice.
    """
    try:
        values = array.to_pylist(maps_as_pydicts="strict")
    except KeyError:
        reason = "a map that has a key twice"
        raise Unfit(reason) from None
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


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
        case _:  # durations and whatever Arrow comes to have
            return json.dumps(str(value))


def _key(key: Any) -> str:
    return json.dumps(key, ensure_ascii=False) if isinstance(key, str) else json.dumps(_text(key).strip('"'))
