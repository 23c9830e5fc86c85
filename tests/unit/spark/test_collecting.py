"""Rows that wait on the driver, some of them in a file."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any, NoReturn, cast

import pyarrow as pa
import pytest

from offsetstore.errors import SinkError
from offsetstore.spark import collecting
from offsetstore.spark.collecting import CollectedRows

BATCHES = [cast("Any", pa).RecordBatch.from_pylist([{"number": n, "text": "x" * n}]) for n in range(5)]
SCHEMA = BATCHES[0].schema


@pytest.fixture(params=[0, 40, 1 << 20], ids=["in a file", "in both", "in memory"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CollectedRows:
    monkeypatch.setattr(collecting, "IN_MEMORY", request.param)
    return CollectedRows(SCHEMA, iter(BATCHES))


def test_rows_can_be_read_again_also_by_two_at_once(rows: CollectedRows) -> None:
    broken_off = iter(rows)
    assert next(broken_off) == BATCHES[0]
    assert [(one, other) for one in rows for other in rows] == [(one, other) for one in BATCHES for other in BATCHES]
    assert list(broken_off) == BATCHES[1:]


def test_rows_can_be_put_in_order(rows: CollectedRows) -> None:
    rows.put_in_order([4, 0, 3, 1, 2])
    assert list(rows) == [BATCHES[number] for number in (4, 0, 3, 1, 2)]


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "IN_MEMORY", 0)

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CollectedRows, "_write", full)
    with pytest.raises(SinkError, match=r"No space left on device in .*TMPDIR"):
        CollectedRows(SCHEMA, iter(BATCHES))


def test_a_file_that_was_cut_off_is_no_end_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "IN_MEMORY", 0)
    rows: Any = CollectedRows(SCHEMA, iter(BATCHES))
    rows._file.truncate(100)

    def read() -> Iterator[pa.RecordBatch]:
        yield from rows

    with pytest.raises(SinkError, match="cut off"):
        list(read())
