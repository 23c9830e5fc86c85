"""``offsetstore consume`` as a process of its own, with the functions of `tests.support.consumer_app`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
APP = "tests.support.consumer_app:consumer"
SECONDS = 240.0
_MAIN = "from offsetstore.cli.main import main; main()"


def soon(condition: Callable[[], object]) -> None:
    """Wait for it, as long as a busy machine takes."""
    wait_until(condition, timeout=SECONDS)


class Consuming:
    """The command, and what it has printed; it is killed at the end of the block, with its processes.

    :param given: for CONSUMER_APP.
    :param before: what Python does first, such as to shorten an interval.
    """

    def __init__(
        self, *arguments: str, url: str, given: Mapping[str, Any], log: Path, app: str = APP, before: str = ""
    ) -> None:
        self._log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{before}{_MAIN}", "consume", app, *arguments],
                cwd=ROOT,
                env={**os.environ, "OFFSETSTORE_URL": url, "CONSUMER_APP": json.dumps(given)},
                stderr=out,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for one in [*psutil.Process(self.process.pid).children(), self.process] if self.process.poll() is None else []:
            with suppress(psutil.NoSuchProcess):  # it ends by itself at this moment
                one.kill()
        self.process.wait(30)

    @property
    def said(self) -> str:
        """All that it has printed."""
        return self._log.read_text(encoding="utf-8")

    @property
    def children(self) -> list[int]:
        """The process ids of its processes, the oldest first: numbers begin anew at some time."""
        found = sorted(psutil.Process(self.process.pid).children(), key=lambda one: one.create_time())
        return [one.pid for one in found]

    def get(self, path: str) -> tuple[int, str]:
        """Ask its probes or metrics; return the status and the answer."""
        soon(lambda: "http://" in self.said)
        address = self.said.partition("http://")[2].split()[0]
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def is_ready(self) -> bool:
        """Whether its probe says so."""
        assert self.process.poll() is None, self.said
        return self.get("/readyz")[0] == 200

    def end(self) -> int:
        """Send it SIGTERM; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)
