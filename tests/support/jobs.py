"""A job as its own process, which a test can stop, continue and kill.

``python -m tests.support.jobs URL GROUP STEP``, run from the top of the checkout: claims the group, locks partition 0
of ``payments``, and comes to a halt at the step: ``idle`` (in its transaction, between statements) or ``copy`` (inside
COPY). There it prints ``ready`` and waits for a line on standard input, then goes on and prints how it ``ended``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Self

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import OffsetStoreError
from offsetstore.testing.job_process import JobProcess, print_event

ROOT = Path(__file__).parents[2]
PARTITION = TopicPartition("payments", 0)


class FrozenJob(JobProcess):
    """The process, from the moment at which it has come to its halt; killed at the end of the block."""

    def __init__(self, log: Path, url: str, group: str, step: str) -> None:
        super().__init__(["-m", "tests.support.jobs", url, group, step], log, cwd=ROOT)

    def __enter__(self) -> Self:
        self.wait_for("ready")
        return self

    def freeze(self) -> None:
        """Stop the process as a debugger, a full disk or a busy host would: it keeps its connection."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> str:
        """Let it go on, and return how it ended."""
        os.kill(self.pid, signal.SIGCONT)
        self.write("")
        return self.wait_for("ended", timeout=90).what["how"]


def _main(url: str, group: str, step: str) -> None:
    with OffsetStore.connect(url) as store:
        claim = store.claim(group, topics=["payments"])
        try:
            with store.transaction(claim) as tx:
                plan = tx.lock({PARTITION: OffsetRange(0, 40)})
                cursor = tx.connection.connection.cursor()
                with cursor.copy("COPY results FROM STDIN") as copy:
                    copy.write("1\n" * 10_000)  # more than a buffer, so that the server is inside of it
                    if step == "copy":
                        _halt()
                if step == "idle":
                    _halt()
                tx.advance({PARTITION: plan[PARTITION].remaining})
        except OffsetStoreError as error:
            print_event("ended", how=type(error).__name__)
        else:
            print_event("ended", how="committed")


def _halt() -> None:
    print_event("ready")
    sys.stdin.readline()


if __name__ == "__main__":
    _main(*sys.argv[1:])
