"""Writers take batches as they come, once, and keep none: memory is flat whatever the number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import text

from offsetstore.protocol.ports import Writer
from offsetstore.protocol.work import Work
from offsetstore.writers import Append, Execute, Upsert
from tests.integration.writers.writing import Database, batch
from tests.support.work import work_on

ROWS = 8192
BATCHES = 40


class Arriving:
    """Batches that are made when they are asked for; ``most`` is what Arrow had allocated at any of these moments."""

    def __init__(self) -> None:
        self.most = 0
        self._before = pa.total_allocated_bytes()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        arrow: Any = pa
        for number in range(BATCHES):
            self.most = max(self.most, pa.total_allocated_bytes() - self._before)
            values: Any = np.arange(number * ROWS, (number + 1) * ROWS)
            # Through a concatenation, so that it is Arrow's memory.
            yield batch({"id": arrow.concat_arrays([arrow.array(values[:1]), arrow.array(values[1:])])})
            yield batch({"id": pa.array([], pa.int64())})


def count(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    for rows in batches:
        work.connection.execute(text("INSERT INTO t SELECT generate_series(1, :n)"), {"n": rows.num_rows})


def glance(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    first = next(iter(batches))
    work.connection.execute(text("INSERT INTO t SELECT generate_series(1, :n)"), {"n": first.num_rows * BATCHES})


@pytest.mark.behaviour("SINK-13")
@pytest.mark.parametrize(
    "writer",
    [Append("t"), Upsert("t", key=["id"]), Execute(count), Execute(glance)],
    ids=["append", "upsert", "execute", "execute that goes through one batch alone"],
)
def test_no_more_than_a_few_batches_are_in_memory(database: Database, writer: Writer) -> None:
    database.run(f"CREATE TABLE t (id bigint {'PRIMARY KEY' if isinstance(writer, Upsert) else ''})")
    arriving = Arriving()
    with database.engine.begin() as connection:
        assert writer.write(work_on(connection), iter(arriving)) == BATCHES * ROWS
    assert database.rows("SELECT count(*) FROM t") == [(BATCHES * ROWS,)]
    assert 0 < arriving.most < 5 * ROWS * 8
