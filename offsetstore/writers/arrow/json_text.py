"""Arrow's values as JSON text.

Numbers keep all their digits (the standard encoder knows no Decimal), and a float32 has its own digits, 0.1; timestamps
are ISO 8601 with their offset; binary is base64 and a duration SQL's literal, as Spark's ``to_json`` writes them
(decision 0054). Values that are JSON already stay as they are.
"""

from __future__ import annotations

import base64
import json
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Final, cast

import pyarrow as pa

from offsetstore.writers.arrow.kinds import is_json
from offsetstore.writers.arrow.values import CUT, NO_TIME_OF_DAY, NOT_FINITE, Unfit, has_type, with_own_digits

CHECKS: Final = (NO_TIME_OF_DAY, NOT_FINITE, CUT)
"""What is refused before texts are made; Python's times of day wrap around at midnight, without an error."""


def json_texts(array: pa.Array[Any]) -> pa.Array[Any]:
    """Write each value as JSON; NULL stays NULL, and does not become JSON's ``null``. `CHECKS` must come first.

    :raises Unfit: a map with a duplicate key, or a text inside that is not JSON.
    """
    try:
        values = with_own_digits(array).to_pylist(maps_as_pydicts="strict")
    except KeyError:
        reason = "a map with a duplicate key"
        raise Unfit(reason) from None
    if has_type(array.type, is_json):
        values = [_marked(value, array.type) for value in values]
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


class _Json(str):
    """A text that is JSON."""

    __slots__ = ()


def _marked(value: Any, kind: Any) -> Any:
    """Mark the texts inside a value that are JSON.

    :raises Unfit: a text is not JSON, and could end the object that it is in.
    """
    types: Any = pa.types
    if value is None:
        return None
    if is_json(kind):
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            reason = "a text that is not JSON"
            raise Unfit(reason) from None
        return _Json(value)
    if types.is_struct(kind):
        return {field.name: _marked(value[field.name], field.type) for field in kind}
    if types.is_map(kind):
        return {key: _marked(item, kind.item_type) for key, item in value.items()}
    return [_marked(element, kind.value_type) for element in value] if types.is_list(kind) else value


def _text(value: Any) -> str:  # noqa: PLR0911 - one case a line reads better than a table
    match value:
        case _Json():
            return value
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return "{" + ",".join(f"{_key(key)}:{_text(item)}" for key, item in items) + "}"
        case list():
            return "[" + ",".join(map(_text, cast("list[Any]", value))) + "]"
        case Decimal():
            return format(value, "f")
        case date() | time():  # a datetime is a date
            return json.dumps(value.isoformat())
        case bytes():
            return json.dumps(base64.b64encode(value).decode())
        case None | bool() | int() | float() | str():
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        case timedelta():
            return json.dumps(_interval(value))
        case _:  # a UUID
            return json.dumps(str(value))


def _key(key: Any) -> str:
    return json.dumps(key, ensure_ascii=False) if isinstance(key, str) else json.dumps(_text(key).strip('"'))


def _interval(value: timedelta) -> str:
    sign, length = ("-", -value) if value < timedelta(0) else ("", value)
    minutes, seconds = divmod(length.seconds, 60)
    fraction = f".{length.microseconds:06}".rstrip("0").rstrip(".")
    time_of_day = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}{fraction}"
    return f"INTERVAL '{sign}{length.days} {time_of_day}' DAY TO SECOND"
