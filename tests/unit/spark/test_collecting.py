"""Rows that wait on the driver, some of them in a file."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from offsetstore.spark import collecting
from offsetstore.spark.collecting import Rows

ROWS = [cast("Any", pa).RecordBatch.from_pylist([{"number": n, "text": "x" * n}]) for n in range(5)]


@pytest.mark.parametrize("limit", [0, 40, 1 << 20])
def test_rows_can_be_read_again_wherever_they_are(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "IN_MEMORY", limit)
    rows = Rows(iter(ROWS))
    broken_off = iter(rows)
    assert next(broken_off) == ROWS[0]
    assert next(broken_off) == ROWS[1]
    assert list(rows) == ROWS
    assert list(rows) == ROWS


def test_there_may_be_no_rows() -> None:
    assert list(Rows([])) == []
