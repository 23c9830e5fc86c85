"""What a batch takes in memory: ``python -m benchmarks.peaks SHAPE JOB SERVERS URL`` writes one, and prints its peaks.

Each batch has its own process and Spark, so that none is measured with what another left behind.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import psutil
from pyspark.sql import SparkSession

from benchmarks.jobs import Jobs
from benchmarks.shapes import SHAPES, Shape
from offsetstore import OffsetStore
from offsetstore.local.spark import local_session, stop_session

_MEGABYTE: Final = 2**20


@dataclass
class Peaks:
    """In megabytes: resident in the Python driver, the largest Python worker and Java; live on the JVM's heap."""

    driver: float = 0
    worker: float = 0
    java: float = 0
    heap: float = 0


class Watching:
    """Looks at the memory of this process and its descendants, ten times a second, until the end of the block.

    :param spark: its JVM collects its garbage once a second, and tells what is left on its heap. This takes time, so a
        job that is watched is not timed. Without it, the JVM is left to itself.
    """

    def __init__(self, spark: SparkSession | None = None) -> None:
        self.peaks = Peaks()
        self._jvm: Any = spark and spark._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - py4j's gateway
        self._over = threading.Event()
        looks = (self._resident, self._heap) if spark else (self._resident,)
        self._threads = [threading.Thread(target=target, daemon=True) for target in looks]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def take(self) -> Peaks:
        """The peaks since the last call."""
        found, self.peaks = self.peaks, Peaks()
        return found

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
                    name, resident = child.name(), child.memory_info().rss / _MEGABYTE
                except psutil.NoSuchProcess:
                    continue
                if "python" in name:
                    self.peaks.worker = max(self.peaks.worker, resident)
                elif name == "java":
                    self.peaks.java = max(self.peaks.java, resident)

    def _heap(self) -> None:
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        while not self._over.wait(1):
            runtime.gc()
            self.peaks.heap = max(self.peaks.heap, (runtime.totalMemory() - runtime.freeMemory()) / _MEGABYTE)


def peaks_of(shape: Shape, job: str, servers: str, url: str) -> dict[str, float]:
    """Write one batch in a new process; return its `Peaks`."""
    command = [sys.executable, "-m", "benchmarks.peaks", shape.name, job, servers, url]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this file
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Write one batch, and print its peaks."""
    shape, job, servers, url = sys.argv[1:]
    spark = local_session("benchmark")
    with OffsetStore.connect(url) as store, tempfile.TemporaryDirectory() as directory:
        with Watching(spark) as watching:
            Jobs(spark, servers, {"defaults": store}, Path(directory)).run(SHAPES[shape], job, "tuned")
        print(json.dumps(asdict(watching.take())))
    stop_session(spark)


if __name__ == "__main__":
    main()
