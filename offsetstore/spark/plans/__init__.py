"""What Spark's plans tell about a query and its batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame


def each(collection: Any) -> Iterator[Any]:
    """Go through anything that has a Scala iterator."""
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def simple_name(value: Any) -> str:
    return value.getClass().getSimpleName()


def expression_id(column: Any) -> int:
    """Spark's own number of a column: its name proves nothing."""
    return column.exprId().id()


def is_renamed(column: Any) -> bool:
    """Whether the column is another one under a new name, and nothing else."""
    return simple_name(column) == "Alias" and simple_name(column.child()) == "AttributeReference"


def execution(frame: DataFrame) -> Any:
    """Spark's own object for how a DataFrame is computed."""
    classic: Any = frame
    return classic._jdf.queryExecution()  # noqa: SLF001 - there is no public way to it


def analyzed(frame: DataFrame) -> Any:
    """The DataFrame's plan, with its columns resolved."""
    return execution(frame).analyzed()
