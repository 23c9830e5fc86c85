"""A job as its own process, which a test can stop, continue and kill.

``python -m tests.support.jobs URL GROUP STEP``, run from the top of the checkout: claims the group, locks partition 0
of ``payments``, and comes to a halt at the step: ``idle`` (in its transaction, between statements) or ``copy`` (inside
COPY). There it says ``ready`` and waits for a line on standard input, then goes on and says how it ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import OffsetStoreError

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).parents[2]
PARTITION = TopicPartition("payments", 0)


class FrozenJob:
    """The process, from the moment at which it has come to its halt; killed at the end of the block."""

    def __init__(self, url: str, group: str, step: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.jobs", url, group, step],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        assert self._output.readline() == "ready\n"
        return self

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def freeze(self) -> None:
        """Stop the process as a debugger, a full disk or a busy host would: it keeps its connection."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> str:
        """Let it go on, and return its last words."""
        os.kill(self._process.pid, signal.SIGCONT)
        return self._process.communicate("\n", timeout=90)[0].strip()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


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
            print(type(error).__name__)  # noqa: T201 - to whoever watches the process
        else:
            print("committed")  # noqa: T201 - the same


def _halt() -> None:
    print("ready", flush=True)  # noqa: T201 - the same
    sys.stdin.readline()


if __name__ == "__main__":
    _main(*sys.argv[1:])
