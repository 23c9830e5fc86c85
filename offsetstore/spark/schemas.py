"""The Arrow types of Spark's columns: in its record batches, and for the comparison with a table."""

from __future__ import annotations

from inspect import signature
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, UserDefinedType

from offsetstore.errors import ColumnMismatch, ConfigurationError
from offsetstore.writers.arrow.casts import is_variant
from offsetstore.writers.arrow.kinds import SparkType
from offsetstore.writers.arrow.values import has_type
from offsetstore.writers.table.conversions import quoted

# The types that reach Arrow as values. Any other may arrive as Spark keeps it: a VARIANT is a struct of two binaries.
_VALUES: Final = {
    *("boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "string", "binary"),
    *("date", "time", "timestamp", "timestamp_ntz", "daytimeinterval", "void"),
}

# The same as our own JSON: whole microseconds, offsets, and fields that are NULL.
_JSON: Final = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSxxx",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

# Spark 4.0 and 4.1 have no such parameter: they use UTC.
_IN_UTC: Final[dict[str, Any]] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def arrow_schema(frame: DataFrame, *, as_collected: bool = False) -> pa.Schema:
    """The schema of the record batches that Spark makes of the frame's rows.

    :param as_collected: refuse what toArrow() refuses: a struct with two fields of one name.
    :raises ColumnMismatch: Spark can't make record batches of a column.
    """
    made = [(field, _in_arrow(field, as_collected=as_collected)) for field in frame.schema]
    if unknown := {field.name: field.dataType.simpleString() for field, arrow in made if arrow is None}:
        casts = ", ".join(f'col({quoted(name)}).cast("string")' for name in unknown)
        raise ColumnMismatch(
            f"Spark can't pass {', '.join(unknown)} to Python: Arrow has no such type",
            found=unknown,
            next_step=f"Convert it in the transform: {casts}.",
        )
    return pa.schema([arrow for _, arrow in made])


def spark_columns(schema: pa.Schema) -> StructType:
    """Spark's columns with the same values.

    :raises ConfigurationError: this release of Spark has no type for a column.
    """
    made = StructType()
    for field in cast("Any", schema):
        try:
            made = made.add(
                StructField(field.name, from_arrow_type(field.type, prefer_timestamp_ntz=True), field.nullable)
            )
        except PySparkTypeError:
            raise ConfigurationError(
                "a handler's schema has a type that this release of Spark lacks",
                found=f"{field.name}: {field.type}",
                next_step=f"Declare {field.name} as a string.",
            ) from None
    return made


def table_schema(frame: DataFrame) -> pa.Schema:
    """The schema that is compared with a table: a `SparkType` stands for what Arrow can't hold by value.

    :raises ColumnMismatch: a struct has two fields of one name, of which JSON could keep one.
    """
    return pa.schema([(field.name, _compared(field.dataType)) for field in frame.schema])


def variants_as_json(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """Make JSON texts of the columns that hold a VARIANT.

    :param schema: the frame's `table_schema`, after a comparison: such columns go into JSON.
    """
    types = zip(schema.names, schema.types, strict=True)
    names = [name for name, kind in types if has_type(kind, is_variant)]
    return frame.withColumns({name: F.to_json(frame[_quoted(name)], _JSON) for name in names}) if names else frame


def _in_arrow(field: StructField, *, as_collected: bool = False) -> Any:
    convert: Any = to_arrow_schema
    try:
        return convert(StructType([field]), error_on_duplicated_field_names_in_struct=as_collected, **_IN_UTC).field(0)
    except (PySparkTypeError, ValueError):  # Arrow's ValueError: an array that may hold not even NULL, like array()
        return None


def _compared(kind: DataType, *, nullable: bool = True) -> Any:
    match kind:
        case UserDefinedType():
            return _compared(kind.sqlType())
        case ArrayType():
            return pa.list_(_compared(kind.elementType, nullable=kind.containsNull))
        case MapType():
            values = _compared(kind.valueType, nullable=kind.valueContainsNull)
            return pa.map_(_compared(kind.keyType, nullable=False), values)
        case StructType():
            if len({*kind.names}) < len(kind.names):
                raise ColumnMismatch(
                    "a struct of the DataFrame has two fields of one name",
                    found=kind.simpleString(),
                    next_step="Give each field a name of its own in the transform.",
                )
            return pa.struct([(field.name, _compared(field.dataType)) for field in kind])
        case _:
            field = _in_arrow(StructField("", kind, nullable)) if kind.typeName() in _VALUES else None
            return SparkType(kind.simpleString()) if field is None else field.type


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
