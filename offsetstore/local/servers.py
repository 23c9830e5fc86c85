"""What our servers have in common: they keep their files in a directory, and end with the process that started them.

They listen only on the loopback. Their processes are in sessions of their own, so that Ctrl-C in the terminal reaches
us and not them: we stop them in order, when the jobs that use them have ended.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
from pathlib import Path
from typing import Self, TypeVar

from offsetstore.errors import ConfigurationError

T = TypeVar("T")

# Ends when its input does: after a word, the server was stopped or is to stay; without one, the other end of the pipe
# is gone, and with it the process that held it.
_SCRIPT = """\
read -r word
[ "$word" = leave ] && exit
kill -s "$1" "$2"
while kill -0 "$2" 2>/dev/null; do sleep 0.2; done
[ -z "$3" ] || rm -rf -- "$3"
"""


def tail(path: Path, *, lines: int = 20) -> str:
    """Return the last lines of a log; an empty text if there is no file."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


class Watchdog:
    """Ends a server when the process that started it is killed: none of our code runs then, but a waiting shell can.

    :param how: the signal for the server's process, without ``SIG``.
    :param temporary: a directory to be removed with it.
    """

    def __init__(self, pid: int, *, how: str, temporary: Path | None) -> None:
        self._shell = subprocess.Popen(  # noqa: S603 - our own script
            ["/bin/sh", "-c", _SCRIPT, "watchdog", how, str(pid), str(temporary or "")],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def leave(self) -> None:
        """Call it off: the server has been stopped, or is to outlive us."""
        self._shell.communicate(b"leave\n")


def known(value: T | None, name: str) -> T:
    """Return what a server has from its first start on.

    :raises ConfigurationError: it was not started.
    """
    if value is None:
        raise ConfigurationError(
            f"the server has no {name} yet", next_step="Call start(), or use it as a context manager."
        )
    return value


class EmbeddedServer:
    """Started on entry; stopped, and if its directory is temporary removed, on exit.

    :param directory: where it keeps its files; a temporary one, made at the first start, if not given.
    :param ended_by: the signal that ends its process when ours is killed.
    """

    def __init__(self, directory: Path | None, *, ended_by: str) -> None:
        self._directory = directory
        self._temporary: Path | None = None
        self._ended_by = ended_by
        self._watchdog: Watchdog | None = None
        self._owner_process = 0

    @property
    def directory(self) -> Path:
        """Where its data and log are.

        :raises ConfigurationError: before the first start of a server with a temporary directory.
        """
        return known(self._directory or self._temporary, "directory")

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.directory / "server.log"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start, unless it runs, and wait until it answers. The first start of a directory makes its data.

        :raises StoreUnavailable, BrokerUnavailable: it does not start; with the end of its log.
        :raises MissingDependency: its programs are not there, or can't be downloaded.
        :raises ConfigurationError: its account can't reach the directory.
        """
        self._owner_process = os.getpid()
        atexit.register(self._close_at_exit)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop, and remove what was temporary."""
        self._is_left()
        if self._directory is None and self._temporary is None:
            return
        self._stop_for_good()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
            self._forget()

    def _start(self) -> None:
        raise NotImplementedError

    def _stop_for_good(self) -> None:
        """Stop; what is in a temporary directory will not be read again."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Forget what is in the temporary directory, which was removed."""
        raise NotImplementedError

    def _is_left(self) -> None:
        """There is nothing to do at the end of this process any more."""
        atexit.unregister(self._close_at_exit)

    def _watch(self, pid: int) -> None:
        """From now on, end this process with ours."""
        if self._watchdog is None:
            self._watchdog = Watchdog(pid, how=self._ended_by, temporary=self._temporary)

    def _call_off(self) -> None:
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.leave()

    def _close_at_exit(self) -> None:
        if os.getpid() == self._owner_process:  # not in a forked child
            self.close()
