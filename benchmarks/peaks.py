"""What a batch takes in memory."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psutil
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MEGABYTE: Final = 2**20


@dataclass
class Peaks:
    """In megabytes: resident in the Python driver, and in the largest of the Python workers; live on the JVM's heap."""

    driver: float = 0
    worker: float = 0
    heap: float = 0


class Watching:
    """Looks at the memory of this process, ten times a second, and of those below it, until the end of the block.

    Once a second the JVM is asked for a garbage collection, and for what is left on its heap. This takes time: a job
    that is watched is not timed.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.peaks = Peaks()
        self._jvm: Any = spark._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - py4j's gateway
        self._over = threading.Event()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._resident, self._heap)]

    def __enter__(self) -> Peaks:
        gc.collect()
        pa.default_memory_pool().release_unused()
        for thread in self._threads:
            thread.start()
        return self.peaks

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _resident(self) -> None:
        me = psutil.Process()
        while not self._over.wait(0.1):
            self.peaks.driver = max(self.peaks.driver, me.memory_info().rss / _MEGABYTE)
            for child in me.children(recursive=True):
                try:
                    if "python" in child.name():
                        self.peaks.worker = max(self.peaks.worker, child.memory_info().rss / _MEGABYTE)
                except psutil.NoSuchProcess:
                    continue

    def _heap(self) -> None:
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        while not self._over.wait(1):
            runtime.gc()
            self.peaks.heap = max(self.peaks.heap, (runtime.totalMemory() - runtime.freeMemory()) / _MEGABYTE)
