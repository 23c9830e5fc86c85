"""What Spark's plans tell about a query and its batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def each(collection: Any) -> Iterator[Any]:
    """Go through anything that has a Scala iterator."""
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def simple_name(value: Any) -> str:
    """The Java class's name, without its package."""
    return value.getClass().getSimpleName()
