"""A job without Spark that writes a batch with a bad record; also as its own process.

``python -m tests.support.recovering_job URL GROUP``, run from the top of the checkout: claims the group, and writes the
first five records of partition 0, which the table ``results`` may refuse. The failpoint of the environment ends it on
its way.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from offsetstore import Append, DeadLetters, OffsetRange, OffsetStore, Retries, TopicPartition
from offsetstore.processing.letters import Recovery
from offsetstore.processing.plan import BatchMetadata
from offsetstore.processing.runner import with_replanning
from offsetstore.processing.unit import Ranges
from tests.support.careful_part import FakePart, Row, written

P0 = TopicPartition("payments", 0)
RECORDS = 5


def write(work: Any, rows: Sequence[Row]) -> None:
    """Write the rows' offsets."""
    numbers = pa.array([offset for _, offset in rows], pa.int64())
    Append("results").write(work, [pa.record_batch({"record": numbers})])


@contextmanager
def compute(ranges: Ranges, *, suspects: Collection[Any] = ()) -> Generator[FakePart]:
    yield FakePart(ranges, write)


def _main(url: str, group: str) -> None:
    with OffsetStore.connect(url, retries=Retries(shortest=0.001)) as store:
        claim = store.claim(group, topics=["payments"])
        recovery = Recovery(claim, DeadLetters(max_retries=3), BatchMetadata(claim, None))
        batch = {P0: OffsetRange(0, RECORDS)}
        with_replanning(lambda: written(recovery, 0, batch, compute), "batch 0")


if __name__ == "__main__":
    _main(*sys.argv[1:])
