"""Record batches as a stream, read once: a micro-batch of any length takes the memory of a few of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class Stream:
    """The batches that have rows, at least one of them; all have the same ``schema``.

    ``rows`` counts what has passed so far.
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self.rows = 0
        self._batches = batches

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> Stream | None:
        """Look for the first row; ``None`` if there is none."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        return None if first is None else cls(first.schema, chain([first], filled))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.rows += batch.num_rows
        return batch
