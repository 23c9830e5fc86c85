"""Named places in the work of Spark's tasks at which they can be made to wait, on whichever executor of this machine.

``reading``: a task reads its records. ``begun``: its transaction is open, and nothing is written in it yet.
``written``: all rows are, and the transaction is still open.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import psutil
from pyspark import TaskContext

if TYPE_CHECKING:
    from tests.faults.chaos.harness.job import Way

Place = Literal["reading", "begun", "written"]

PLACES: Final[Mapping[Way, tuple[Place, ...]]] = {"batch": ("reading",), "partition": ("reading", "begun", "written")}


def pass_gate(directory: str | None, place: Place) -> None:
    """In a task: wait here if somebody has shut the gate; see `Gate`."""
    if directory is None or not Path(directory, place).exists():
        return
    context: Any = TaskContext.get()
    mine = Path(directory, f"{context.taskAttemptId()}-{os.getpid()}.json")
    if mine.with_suffix(".passed").exists():
        return
    daemon = psutil.Process().parent()  # which has forked this worker, and was started by the executor
    told = {
        "place": place,
        "executor": 0 if daemon is None else daemon.ppid(),
        "pid": os.getpid(),
        "stage": context.stageId(),
        "task": context.partitionId(),
        "attempt": context.attemptNumber(),
    }
    draft = mine.with_suffix(".draft")
    draft.write_text(json.dumps(told))
    draft.rename(mine)
    while mine.exists():
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One task at the gate: Spark's numbers of it, and the process ids of the Python worker and its executor."""

    place: Place
    pid: int
    stage: int
    task: int
    attempt: int
    executor: int
    file: Path

    def __str__(self) -> str:
        return f"task {self.task}.{self.attempt} of stage {self.stage} (worker {self.pid}) at {self.place!r}"


class Gate:
    """The harness's side. It is open until it is shut."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def shut(self, place: Place) -> None:
        (self.directory / place).touch()

    def waiting(self) -> list[Waiting]:
        """Those that wait there now, in the order in which they came; those that were killed do not count."""
        found = sorted(self.directory.glob("*.json"), key=lambda file: file.stat().st_mtime)
        told = [Waiting(**json.loads(file.read_text()), file=file) for file in found]
        return [one for one in told if psutil.pid_exists(one.pid)]

    def let(self, one: Waiting) -> None:
        """Let a task go on, once and for all."""
        one.file.with_suffix(".passed").touch()
        one.file.unlink(missing_ok=True)

    def open(self) -> None:
        for file in self.directory.iterdir():
            if file.suffix in {"", ".json"}:
                file.unlink(missing_ok=True)
