"""Has a Python worker got all rows? Looked up on the stream of PySpark's own main function."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from offsetstore.errors import UnsupportedQuery
from offsetstore.spark.executors import worker_input
from offsetstore.spark.executors.worker_input import InputCutOff, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable

END_OF_STREAM = b"\xff\xff\xff\xfc"


def worker(stream: object) -> Callable[[], None]:
    """A function as PySpark's worker calls ours: below a ``main`` that has an ``infile``."""
    names: dict[str, Any] = {"__name__": "pyspark.worker", "check": check_whole, "stream": stream}
    exec("def main(infile):\n    check()", names)  # noqa: S102 - a module of that name is PySpark's
    return lambda: names["main"](stream)


def test_the_mark_behind_the_last_row_is_seen_and_left_there() -> None:
    stream = io.BufferedReader(io.BytesIO(END_OF_STREAM))
    worker(stream)()
    assert stream.read() == END_OF_STREAM  # the worker itself reads it


@pytest.mark.parametrize("left", [b"", b"\x00\x00\x00\x01"], ids=["nothing", "something else"])
def test_an_end_without_the_mark_is_none(left: bytes) -> None:
    with pytest.raises(InputCutOff):
        worker(io.BufferedReader(io.BytesIO(left)))()


@pytest.mark.parametrize("stream", [object(), None])
def test_a_worker_that_hides_its_stream_is_refused(stream: object) -> None:
    with pytest.raises(UnsupportedQuery, match='atomicity="batch"'):
        worker(stream)()


def test_outside_of_a_worker_it_is_refused() -> None:
    with pytest.raises(UnsupportedQuery, match=r"pyspark\.worker"):
        worker_input.check_whole()
