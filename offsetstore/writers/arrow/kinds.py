"""What is exact for each Arrow type: one table, for the values of a handler's rows and for a transform's batches.

A type that is not here is refused by name, before any value: so is one that a later Arrow adds, until someone has
looked at it (decision 0054).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from struct import pack, unpack
from typing import Any, Final, Self, TypeAlias, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

_Array: TypeAlias = "pa.Array[Any]"

# Its stubs lack many kernels, and pyarrow's some kinds of arrays.
_KERNELS = cast("Any", pc)
_arrow: Any = pa
_TYPES: Any = pa.types

UUID_BYTES: Final = 16
# Of a numeric that pgpq writes, and of Spark's decimals.
_MOST_DIGITS: Final = 38

_EXACT: Final[dict[int, frozenset[type]]] = {
    **dict.fromkeys((integer.id for integer in (pa.int8(), pa.int16(), pa.int32(), pa.int64())), frozenset({int})),
    pa.float64().id: frozenset({float}),
    pa.string().id: frozenset({str}),
    pa.binary().id: frozenset({bytes}),
    pa.bool_().id: frozenset({bool}),
}
"""Arrow keeps these values as they are, or raises; most rows have no others, and take the short way."""


class Inexact(TypeError):
    """A column would not hold one of Python's values as it is. The text has types and no value."""


class SparkType(pa.ExtensionType):
    """Stands for a Spark type that Arrow can't hold by value, where a DataFrame is compared with a table.

    :param name: as in Spark's SQL: ``interval year to month``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(pa.null(), name)

    def __str__(self) -> str:
        return f"Spark's {self.name}"

    def __arrow_ext_serialize__(self) -> bytes:
        return self.name.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Self:
        return cls(serialized.decode())


@dataclass(frozen=True, slots=True)
class Exact:
    """How values of a type stay as they are.

    :param fits: whether a column of the type holds one of Python's values as it is.
    :param plain: the type without its layout, as writers take it; ``None`` if they don't.
    :param held: the type that holds the same values in Spark, and that a handler's column has; ``None`` if there is
        none.
    """

    fits: Callable[[Any, Any], bool]
    plain: Callable[[Any], pa.DataType | None]
    held: Callable[[Any], pa.DataType | None]


def plain(kind: Any) -> pa.DataType | None:
    """The type with the same values, without encodings, views and other widths; ``None`` if there is none."""
    if isinstance(kind, SparkType):
        return kind
    exact = _exact(kind)
    return exact and exact.plain(kind)


def held(kind: Any) -> pa.DataType | None:
    """The type of a handler's column, in Spark and in a consumer; ``None`` if a type in its schema has none."""
    exact = _exact(kind)
    return exact and exact.held(kind)


def held_inside(kind: Any) -> Any:
    """The same inside another type: there, nothing in Spark tells a text from JSON, or 16 bytes from a UUID."""
    return None if is_json(kind) or is_uuid(kind) else held(kind)


def stored(values: Sequence[Any], kind: Any) -> _Array:
    """Python's values, after `check_exact`, in the `held` type.

    :raises Exception: one does not fit; of many classes.
    """
    if kind.id in _EXACT:
        return _arrow.array(values, kind)
    target = held(kind)
    if is_uuid(kind):
        values = [getattr(value, "bytes", value) for value in values]
    elif _TYPES.is_decimal(target) or _TYPES.is_nested(target):
        values = [_for_arrow(value, target) for value in values]
    return _arrow.array(values, target)


def _for_arrow(value: Any, kind: Any) -> Any:
    """The value as Arrow takes it: Arrow makes no decimals of NumPy's integers, and knows no mapping but a dict."""
    if value is None:
        return None
    if _TYPES.is_decimal(kind):
        return int(value) if isinstance(value, Integral) else value
    if _TYPES.is_struct(kind):
        return {field.name: _for_arrow(value.get(field.name), field.type) for field in kind}
    if _TYPES.is_map(kind):
        pairs: Any = cast("Mapping[Any, Any]", value).items() if isinstance(value, Mapping) else value
        return [(_for_arrow(key, kind.key_type), _for_arrow(item, kind.item_type)) for key, item in pairs]
    return [_for_arrow(element, kind.value_type) for element in value] if _TYPES.is_nested(kind) else value


def is_json(kind: Any) -> bool:
    """Tell whether it is Arrow's JSON: a text."""
    return getattr(kind, "extension_name", "") == "arrow.json"


def is_uuid(kind: Any) -> bool:
    """Tell whether it is Arrow's UUID: 16 bytes."""
    return getattr(kind, "extension_name", "") == "arrow.uuid"


def unknown(kind: Any, form: Callable[[Any], pa.DataType | None] = plain) -> Any:
    """The innermost type inside a type that has no such form."""
    fields: Sequence[Any] = () if isinstance(kind, SparkType) else [*map(kind.field, range(kind.num_fields))]
    return next((unknown(field.type, form) for field in fields if form(field.type) is None), kind)


def replacement(kind: Any, form: Callable[[Any], pa.DataType | None] = plain) -> str:
    """Name what to use instead of the innermost type that has no such form."""
    innermost = unknown(kind, form)
    if _TYPES.is_struct(innermost):
        return "a struct whose fields have names of their own"
    if _TYPES.is_interval(innermost):
        return "duration[us], or a string like 1 mon 2 days"
    storage = getattr(innermost, "storage_type", None)
    return "string" if storage is None or form(storage) is None or is_uuid(innermost) else str(storage)


def check_exact(values: Iterable[Any], kind: Any, *, nullable: bool = True) -> None:
    """Refuse Python's values that a column of the type would not hold as they are, unless Arrow itself refuses them.

    :raises Inexact: there is such a value.
    """
    found = [value for value in values if value is not None] if nullable else [*values]
    if {type(value) for value in found} <= _EXACT.get(kind.id, frozenset()):
        return
    exact = _exact(kind)
    for value in found:
        if value is None or exact is None or not exact.fits(value, kind):
            raise Inexact(_unfit(value, kind))


def plain_values(array: _Array) -> _Array:
    """The same values in the `plain` type, which the array's type has."""
    kind: Any = array.type
    target: Any = plain(kind)
    if target is None or target == kind:
        return array
    if _TYPES.is_dictionary(kind):
        of: Any = array
        return _arrow.DictionaryArray.from_arrays(of.indices, plain_values(of.dictionary)).dictionary_decode()
    if _TYPES.is_run_end_encoded(kind):
        # Arrow decodes few types: so the numbers of the runs are decoded, and the values taken by these.
        runs: Any = array
        first, count = runs.find_physical_offset(), runs.find_physical_length()
        ends, of_runs = runs.run_ends.slice(first, count), pa.array(range(count), pa.int64())
        numbered = _arrow.RunEndEncodedArray.from_arrays(ends, of_runs).slice(runs.offset, len(runs))
        return plain_values(runs.values.slice(first, count)).take(_KERNELS.run_end_decode(numbered))
    if isinstance(kind, pa.BaseExtensionType):
        storage = cast("Any", array).storage
        return (
            _arrow.ExtensionArray.from_storage(target, plain_values(storage)) if is_json(kind) else storage.cast(target)
        )
    return rebuilt(array, plain_values) if _TYPES.is_nested(kind) else array.cast(target)


def rebuilt(array: _Array, change: Callable[[_Array], _Array]) -> _Array:
    """Change the values of a list, map or struct; values that NULLs or a slice hide are left out."""
    # Arrow's own cast of a list takes all values in its buffers, and those of views in a wrong order (decision 0054).
    kind: Any = array.type
    if _TYPES.is_struct(kind):
        names, children = [field.name for field in kind], [change(child) for child in cast("Any", array).flatten()]
        return _arrow.StructArray.from_arrays(children, names, mask=array.is_null()) if children else array
    # A map's `keys` and `items` are those of the whole array, and this may be a slice.
    if _TYPES.is_map(kind):
        array = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    lengths = _KERNELS.list_value_length(array).cast(pa.int32())
    ends = _KERNELS.cumulative_sum_checked(_KERNELS.fill_null(lengths, 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    if array.null_count:
        nulls = pa.concat_arrays([array.is_null(), pa.array([False])])
        offsets = _KERNELS.if_else(nulls, pa.scalar(None, pa.int32()), offsets)
    values: Any = pc.list_flatten(array)
    if _TYPES.is_map(kind):
        return _arrow.MapArray.from_arrays(offsets, *map(change, values.flatten()))
    return _arrow.ListArray.from_arrays(offsets, change(values))


def _exact(kind: Any) -> Exact | None:
    if isinstance(kind, pa.BaseExtensionType):
        return _EXTENSIONS.get(cast("Any", kind).extension_name)
    return _BY_ID.get(kind.id)


def _unfit(value: object, kind: Any) -> str:
    if value is None:
        return f"None; expected {kind}"
    if isinstance(value, datetime) and _TYPES.is_timestamp(kind) and (value.tzinfo is None) is not (kind.tz is None):
        return f"a datetime with{'out' if value.tzinfo is None else ''} a time zone; expected {kind}"
    rounds = isinstance(value, float) and _TYPES.is_float32(kind)
    hint = ": use a double, or round it with numpy.float32" if rounds else ""
    return f"a value of type {type(value).__name__} that {kind} does not hold as it is{hint}"


def _is_integer(value: object) -> bool:
    # Only Python takes a bool for a number.
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_unsigned(value: Any, kind: Any) -> bool:
    return _is_integer(value) and 0 <= value < 1 << kind.bit_width


def _is_double(value: Any, _: Any) -> bool:
    is_number = not isinstance(value, bool) and isinstance(value, Real)
    return is_number and (float(value) == value or value != value)  # noqa: PLR0124 - NaN


def _is_float_of(form: str) -> Callable[[Any, Any], bool]:
    """Whether a narrow float has a number's digits, up to nine: 0.1 and 3.14159274 pass, 1e-50 and 1/3 do not."""

    # Any other rounding is refused; users ask for it with numpy.float32 (decision 0054).
    def nearest(value: float) -> float:
        return unpack(form, pack(form, value))[0]

    def fits(value: Any, kind: Any) -> bool:
        if not _is_double(value, kind):
            return False
        number = float(value)
        try:
            narrow = nearest(number)
            if narrow == number or number != number:  # noqa: PLR0124 - NaN
                return True
            shown = (float(f"{narrow:.{digits}g}") for digits in range(1, 10))
            return any(short == number for short in shown if nearest(short) == narrow)
        except OverflowError:
            return False

    return fits


def _is_decimal(value: object, _: Any) -> bool:
    return isinstance(value, Decimal) or _is_integer(value)


def _is_text(value: object, _: Any) -> bool:
    return isinstance(value, str)


def _is_bytes(value: object, _: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview))


def _is_bytes_of_width(value: Any, kind: Any) -> bool:
    return _is_bytes(value, kind) and memoryview(value).nbytes == kind.byte_width


def _is_date(value: object, _: Any) -> bool:
    return isinstance(value, date) and not isinstance(value, datetime)


def _is_moment(value: Any, kind: Any) -> bool:
    """Whether the unit keeps the whole time; pandas' may have nanoseconds, and an offset microseconds."""
    if not isinstance(value, datetime) or getattr(value, "nanosecond", 0) or value.microsecond % _unit(kind):
        return False
    if kind.tz is None or value.tzinfo is None:
        return kind.tz is None and value.tzinfo is None
    offset = value.utcoffset()
    return offset is not None and not offset.microseconds


def _is_time(value: Any, kind: Any) -> bool:
    return isinstance(value, time) and value.tzinfo is None and not value.microsecond % _unit(kind)


def _is_duration(value: Any, kind: Any) -> bool:
    if not isinstance(value, timedelta) or getattr(value, "nanoseconds", 0):
        return False
    return not value.microseconds % _unit(kind)


def _unit(kind: Any) -> int:
    return {"s": 1_000_000, "ms": 1000}.get(kind.unit, 1)


def _is_uuid(value: Any, _: Any) -> bool:
    return isinstance(value, UUID) or (isinstance(value, bytes) and len(value) == UUID_BYTES)


def _is_list(value: Any, kind: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    values = cast("Sequence[Any]", value)
    check_exact(values, kind.value_type, nullable=kind.value_field.nullable)
    return not _TYPES.is_fixed_size_list(kind) or len(values) == kind.list_size


def _is_map(value: Any, kind: Any) -> bool:
    if not isinstance(value, (Mapping, list, tuple)):
        return False
    pairs: list[Any] = [*(cast("Mapping[Any, Any]", value).items() if isinstance(value, Mapping) else value)]
    check_exact((key for key, _ in pairs), kind.key_type, nullable=False)
    check_exact((item for _, item in pairs), kind.item_type, nullable=kind.item_field.nullable)
    return True


def _is_struct(value: Any, kind: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    given = cast("Mapping[str, Any]", value)
    for inner in kind:
        check_exact([given.get(inner.name)], inner.type, nullable=inner.nullable)
    return not given.keys() - {inner.name for inner in kind}


def _is_inside(value: Any, kind: Any) -> bool:
    check_exact([value], kind.value_type)
    return True


def _same(kind: Any) -> Any:
    return kind


def _always(kind: pa.DataType) -> Callable[[Any], pa.DataType]:
    return lambda _: kind


def _inside(form: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda kind: form(kind.value_type)


def _decimal(kind: Any) -> Any:
    return pa.decimal128(kind.precision, kind.scale) if kind.precision <= _MOST_DIGITS else None


def _in_place(field: Any, form: Callable[[Any], Any]) -> Any:
    """The field with the form of its type; ``None`` if there is none."""
    made = form(field.type)
    return None if made is None else field.with_type(made)


def _list_of(form: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def made(kind: Any) -> Any:
        field = _in_place(kind.value_field, form)
        return field and pa.list_(field)

    return made


def _map_of(form: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def made(kind: Any) -> Any:
        key, item = _in_place(kind.key_field, form), _in_place(kind.item_field, form)
        return key and item and pa.map_(key, item)

    return made


def _struct_of(form: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def made(kind: Any) -> Any:
        fields = [_in_place(field, form) for field in kind]
        is_whole = all(fields) and len({field.name for field in kind}) == len(fields)
        return pa.struct(fields) if is_whole else None

    return made


def _plain_json(kind: Any) -> Any:
    storage = plain(kind.storage_type)
    return storage and _arrow.json_(storage)


def _wide(fits: Callable[[Any, Any], bool], narrow: pa.DataType, wide: pa.DataType) -> Exact:
    # Like a wide layout, a view has no limit of 2 GB.
    return Exact(fits, _always(wide), _always(narrow))


def _number(fits: Callable[[Any, Any], bool], wider: pa.DataType | None = None) -> Exact:
    return Exact(fits, _same, _same if wider is None else _always(wider))


_SIGNED: Final = _number(lambda value, _: _is_integer(value))
_TEXT: Final = _wide(_is_text, pa.string(), pa.large_string())
_BYTES: Final = _wide(_is_bytes, pa.binary(), pa.large_binary())
_LISTS: Final = Exact(_is_list, _list_of(plain), _list_of(held_inside))
_TIMES: Final = Exact(_is_time, _same, _always(pa.time64("ns")))
_ENCODED: Final = Exact(_is_inside, _inside(plain), _inside(held_inside))

KINDS: Final[Mapping[str, Exact]] = {
    "NA": Exact(lambda _, __: False, _same, _same),
    # Arrow itself takes only bools, and NumPy's.
    "BOOL": Exact(lambda _, __: True, _same, _same),
    **dict.fromkeys(("INT8", "INT16", "INT32", "INT64"), _SIGNED),
    "UINT8": _number(_is_unsigned, pa.int16()),
    "UINT16": _number(_is_unsigned, pa.int32()),
    "UINT32": _number(_is_unsigned, pa.int64()),
    "UINT64": _number(_is_unsigned, pa.decimal128(20, 0)),
    "HALF_FLOAT": _number(_is_float_of("e"), pa.float32()),
    "FLOAT": _number(_is_float_of("f")),
    "DOUBLE": _number(_is_double),
    **dict.fromkeys(("DECIMAL32", "DECIMAL64", "DECIMAL128"), Exact(_is_decimal, _decimal, _decimal)),
    "DECIMAL256": Exact(_is_decimal, lambda kind: _decimal(kind) or kind, _decimal),
    "STRING": Exact(_is_text, _same, _same),
    **dict.fromkeys(("LARGE_STRING", "STRING_VIEW"), _TEXT),
    "BINARY": Exact(_is_bytes, _same, _same),
    **dict.fromkeys(("LARGE_BINARY", "BINARY_VIEW"), _BYTES),
    "FIXED_SIZE_BINARY": Exact(_is_bytes_of_width, _same, _always(pa.binary())),
    "DATE32": Exact(_is_date, _same, _same),
    "DATE64": Exact(_is_date, _same, _always(pa.date32())),
    "TIME32": _TIMES,
    "TIME64": _TIMES,
    "TIMESTAMP": Exact(_is_moment, _same, lambda kind: pa.timestamp("us", kind.tz and "UTC")),
    "DURATION": Exact(_is_duration, _same, _always(pa.duration("us"))),
    **dict.fromkeys(("LIST", "LARGE_LIST", "FIXED_SIZE_LIST", "LIST_VIEW", "LARGE_LIST_VIEW"), _LISTS),
    "MAP": Exact(_is_map, _map_of(plain), _map_of(held_inside)),
    "STRUCT": Exact(_is_struct, _struct_of(plain), _struct_of(held_inside)),
    "DICTIONARY": _ENCODED,
    "RUN_END_ENCODED": _ENCODED,
}
"""By Arrow's name of a type's id. Not here: unions, and intervals of months, which Arrow makes no text of."""

_IDS: Final = cast("Mapping[str, int]", vars(_arrow.lib))
_BY_ID: Final[Mapping[int, Exact]] = {
    _IDS[f"Type_{name}"]: exact for name, exact in KINDS.items() if f"Type_{name}" in _IDS
}

_EXTENSIONS: Final[Mapping[str, Exact]] = {
    "arrow.json": Exact(_is_text, _plain_json, _always(pa.string())),
    "arrow.uuid": Exact(_is_uuid, _same, _always(pa.binary())),
    "arrow.bool8": Exact(lambda _, __: True, _always(pa.bool_()), _always(pa.bool_())),
}
"""By name. Other extensions are refused: a storage alone doesn't tell a tensor from a list (decision 0054)."""
