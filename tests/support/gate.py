"""Holding a micro-batch in the middle, so that a test can do something meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pyspark.sql import DataFrame

from offsetstore.spark.sink import SparkTransform

_SECONDS = 120


class Gate:
    """A transform that waits in its first batch until it is opened.

    The sink is then between planning and locking: no transaction is open.
    """

    def __init__(self, transform: SparkTransform) -> None:
        self._transform = transform
        self._reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, batch: DataFrame) -> DataFrame | Mapping[str, DataFrame]:
        self._reached.set()
        assert self._open.wait(_SECONDS), "nobody opened the gate"
        return self._transform(batch)

    def wait_until_reached(self) -> None:
        """Wait until a batch stands before the gate."""
        assert self._reached.wait(_SECONDS), "no batch came"

    def open(self) -> None:
        """Let this batch pass, and all that follow."""
        self._open.set()
