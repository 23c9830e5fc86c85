"""Checks and conversions of whole Arrow arrays that neither Arrow's casts nor pgpq do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

# The ranges leave out a type's smallest and largest number: PostgreSQL reads them as infinities.
_EPOCH_JULIAN = 2_440_588  # the Julian day of 1970-01-01
_DAYS = (-_EPOCH_JULIAN, 2_147_483_493 - _EPOCH_JULIAN)
# The last moment of an Arrow timestamp is in the year 294247, and PostgreSQL's in 294276.
_MICROSECONDS = (-_EPOCH_JULIAN * 86_400_000_000, 2**63 - 1)
_OF_A_DAY = (0, 86_400_000_000 - 1)

_NUL = re.compile(b"\0")
_UUID_BYTES = 16
UUID_TYPE = pa.binary(_UUID_BYTES)
_UUID_HEX = f"^[0-9a-fA-F]{{{2 * _UUID_BYTES}}}$"


class Unfit(ValueError):
    """A value that the target can't hold; the text gives the reason and never the value."""


def is_string(kind: pa.DataType) -> bool:
    """Tell whether Arrow's type holds text, in any of its layouts."""
    if pa.types.is_dictionary(kind):
        return is_string(value_type(kind))
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_binary(kind: pa.DataType) -> bool:
    """Tell whether Arrow's type holds bytes, in any of its layouts."""
    if pa.types.is_dictionary(kind):
        return is_binary(value_type(kind))
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def is_wide(kind: pa.DataType) -> bool:
    """Tell whether Arrow's type counts its bytes in 64 bits, so that one array may hold more than 2 GB."""
    if pa.types.is_dictionary(kind):
        return is_wide(value_type(kind))
    return pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)


def is_list(kind: pa.DataType) -> bool:
    """Tell whether Arrow's type is a list, in any of its layouts that Spark or pandas makes."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a list's or a dictionary's values."""
    return cast("Any", kind).value_type


def innermost(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return the values of (nested) lists, or the array itself if it is not a list."""
    while is_list(array.type):
        array = pc.list_flatten(array)
    return array


def refuse_nul(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return the array of (lists of) strings, if no string has a NUL: PostgreSQL's text can't hold one.

    :raises Unfit: one has.
    """
    strings = innermost(array)
    # One pass of memchr over the bytes takes a fifth of the kernel's time; only if it finds one does the kernel look.
    if _NUL.search(_text_bytes(strings)) and pc.any(pc.match_substring(strings, "\0")).as_py():
        reason = "a text with a NUL (\\u0000)"
        raise Unfit(reason)
    return array


def _text_bytes(strings: pa.Array[Any]) -> memoryview:
    """Return only these strings' bytes: batches are slices of a shared buffer."""
    _, offsets, data = strings.buffers()
    if not len(strings) or offsets is None or data is None:
        return memoryview(b"")
    bounds = memoryview(offsets).cast("B").cast("q" if pa.types.is_large_string(strings.type) else "i")
    return memoryview(data)[bounds[strings.offset] : bounds[strings.offset + len(strings)]]


def refuse_rounding(array: pa.Array[Any], scale: int) -> pa.Array[Any]:
    """Return the array of (lists of) decimals, if PostgreSQL will not have to round any to ``scale``.

    :raises pyarrow.ArrowInvalid: it would.
    """
    decimals = innermost(array)
    if decimals.type.scale > scale:
        decimals.cast(pa.decimal128(decimals.type.precision, scale))
    return array


def refuse_longer(array: pa.Array[Any], length: int) -> pa.Array[Any]:
    """Return the array of (lists of) strings, if none has more characters than ``length``, nor a NUL.

    PostgreSQL refuses them too, unless the excess is all blanks, which it cuts.

    :raises Unfit: one has.
    """
    kernels = cast("Any", pc)
    if kernels.any(kernels.greater(kernels.utf8_length(innermost(array)), length)).as_py():
        reason = "a text that is too long"
        raise Unfit(reason)
    return refuse_nul(array)


def refuse_off_step(array: pa.Array[Any], step: int) -> pa.Array[Any]:
    """Return the array of (lists of) times in microseconds, if all are multiples of ``step``; PostgreSQL rounds others.

    :raises Unfit: one is not.
    """
    kernels = cast("Any", pc)
    micros = innermost(refuse_out_of_range(array)).cast(pa.int64())
    whole = kernels.multiply(kernels.divide(micros, step), step)
    if kernels.any(kernels.not_equal(whole, micros)).as_py():
        reason = "a time with more fractional digits than the column keeps"
        raise Unfit(reason)
    return array


def refuse_out_of_range(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return the array of (lists of) dates, timestamps or times of day, if both PostgreSQL and Arrow can hold them.

    The bounds are those of PostgreSQL's ``timestamp.h`` (4713 BC onwards). Beyond them a number may be one of its
    infinities, and Python's time of day wraps around at midnight: both would change a value without an error.

    :raises Unfit: one is out of range.
    """
    values = innermost(array)
    types = pa.types
    if types.is_date(values.type):
        values, bounds = values.cast(pa.date32()).view(pa.int32()), _DAYS
    elif types.is_timestamp(values.type):
        values, bounds = values.cast(pa.timestamp("us", values.type.tz)).view(pa.int64()), _MICROSECONDS
    elif types.is_time(values.type):
        values, bounds = values.cast(pa.time64("us"), safe=False).view(pa.int64()), _OF_A_DAY
    else:
        return array
    ends = cast("Any", pc).min_max(values).as_py()
    if ends["min"] is not None and not bounds[0] <= ends["min"] <= ends["max"] <= bounds[1]:
        reason = "a date or time that is out of range"
        raise Unfit(reason)
    return array


def refuse_hollow(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return the array of lists of lists, if no inner list is NULL or empty: PostgreSQL makes ``{}`` of ``{{}}``.

    :raises Unfit: one is.
    """
    kernels = cast("Any", pc)
    inner = kernels.list_flatten(array)
    while is_list(inner.type):
        if inner.null_count or kernels.any(kernels.equal(kernels.list_value_length(inner), 0)).as_py():
            reason = "an array with a NULL or empty inner array"
            raise Unfit(reason)
        inner = kernels.list_flatten(inner)
    return array


def uuids_from_strings(array: pa.Array[Any]) -> pa.Array[Any]:
    """Parse UUIDs with or without hyphens to 16 bytes each; half a million take a tenth of a second.

    :raises Unfit: a string is no UUID.
    """
    zeros: Any = "0" * 2 * _UUID_BYTES
    digits = cast("Any", pc.fill_null(pc.replace_substring(array.cast(pa.string()), "-", ""), zeros))
    if not cast("Any", pc).all(pc.match_substring_regex(digits, _UUID_HEX)).as_py():
        reason = "a text that is not a UUID"
        raise Unfit(reason)
    joined = "".join(digits.to_pylist())
    parsed = pa.Array.from_buffers(UUID_TYPE, len(array), [None, pa.py_buffer(bytes.fromhex(joined))])
    return pc.if_else(array.is_valid(), parsed, pa.scalar(None, UUID_TYPE))


def uuid_objects(array: pa.Array[Any]) -> Iterator[UUID | None]:
    """Yield 16-byte values as Python's UUIDs."""
    return (None if value is None else UUID(bytes=value) for value in array.to_pylist())
