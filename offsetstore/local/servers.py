"""What our servers have in common: they keep their files in a directory, and end with the process that started them.

They listen only on the loopback, on ports that stay ours while a server is down. Each process has a session of its own,
so that Ctrl-C in the terminal reaches us and not the servers: we stop them in order, after the jobs that use them.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Generic, Self, TypeVar

from offsetstore.errors import ConfigurationError, OffsetStoreError

LOOPBACK = "127.0.0.1"

# Below the ephemeral ranges of Linux (32768) and macOS (49152). While our server restarts, any outgoing connection can
# take an ephemeral port, even our own client's, which retries and is then connected to itself.
_FIRST, _LAST = 20_000, 32_000
_ATTEMPTS = 100


def free_port() -> int:
    """Find a port that is free now. It is not reserved: a server may still find it taken.

    :raises ConfigurationError: the loopback has none.
    """
    for _ in range(_ATTEMPTS):
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if is_free(port):
            return port
    raise ConfigurationError(
        "no free TCP port on the loopback",
        found=f"{_ATTEMPTS} ports in use",
        expected=f"one between {_FIRST} and {_LAST}",
        next_step="Check what listens there (`ss -ltn`), and that this process may open sockets.",
    )


def is_free(port: int) -> bool:
    """Whether a server could bind the port. Connections of an earlier server that are still closing do not matter."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def answers(port: int, *, timeout: float = 0.5) -> bool:
    """Whether something on the loopback accepts a connection."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout):
            return True
    except OSError:
        return False


T = TypeVar("T")
Ports = TypeVar("Ports", bound=tuple[int, ...])

_MEMORY = "/dev/shm"  # noqa: S108 - a private directory is made in it
_ROOM = 6 << 30  # bytes: each PostgreSQL keeps a gigabyte of its log, and tests run several at once

_PORT_ATTEMPTS = 5
_LOOK_SECONDS = 0.05

# Waits for its input. After the word, the server was stopped or is to stay. If the input ends without one, the process
# at the other end of the pipe is gone.
_SCRIPT = """\
read -r word
[ "$word" = leave ] && exit
kill -s "$1" "$2"
while kill -0 "$2" 2>/dev/null; do sleep 0.2; done
[ -z "$3" ] || rm -rf -- "$3"
"""


def memory() -> str | None:
    """Return Linux's file system in memory, if it has room for a server's data, and programs may be run from it."""
    # Faster than a disk for many short-lived databases: where many files were just deleted, ext4 searches long for the
    # inode of a new one.
    try:
        status = os.statvfs(_MEMORY)
    except OSError:
        return None
    has_room = status.f_bavail * status.f_frsize >= _ROOM
    return _MEMORY if has_room and not status.f_flag & os.ST_NOEXEC else None


def tail(path: Path, *, lines: int = 20) -> str:
    """Return the last lines of a log; empty if there is no file."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


class Watchdog:
    """Ends a server when the process that started it is killed: none of our code can run then, but a waiting shell can.

    :param how: the signal for the server's process, without ``SIG``.
    :param temporary: a directory to remove after that.
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
        """Let the server be: it was stopped, or is to outlive us."""
        self._shell.communicate(b"leave\n")


def known(value: T | None, name: str) -> T:
    """Return a value that a server has from its first start on.

    :raises ConfigurationError: the server was not started.
    """
    if value is None:
        raise ConfigurationError(
            f"the server has no {name} yet", next_step="Call start(), or use it as a context manager."
        )
    return value


class EmbeddedServer(Generic[Ports]):
    """Started on entry; stopped on exit, and a temporary directory is removed.

    :param directory: where it keeps its files; a temporary one, made at the first start, if not given.
    :param ports: on the loopback; free ones if not given. They stay the same across restarts.
    :param ended_by: the signal that ends its process when ours is killed.
    """

    def __init__(self, directory: Path | None, ports: Ports | None, *, ended_by: str) -> None:
        self._directory = directory
        self._temporary: Path | None = None
        self._fixed_ports = ports
        self._ports: Ports | None = ports
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
        return self.directory / "server.log"

    @property
    def pid(self) -> int | None:
        """The id of its main process; ``None`` if it does not run."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start, unless it runs, and wait until it answers. The first start of a directory makes its data.

        :raises StoreUnavailable, BrokerUnavailable: it does not start; with the end of its log.
        :raises MissingDependency: its programs are missing, or can't be downloaded.
        :raises ConfigurationError: its account can't reach the directory.
        """
        self._owner_process = os.getpid()
        atexit.register(self._close_at_exit)
        try:
            if self.pid is None:
                self._prepare()
                self._launch()
            elif self._ports is None:
                self._ports = self._found_ports()
            self._watch()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop, and remove a temporary directory."""
        atexit.unregister(self._close_at_exit)
        if self._directory is None and self._temporary is None:
            return
        self._stop_for_good()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
            self._ports = self._fixed_ports

    def _prepare(self) -> None:
        """Make the directory and its contents."""
        raise NotImplementedError

    def _free_ports(self) -> Ports:
        raise NotImplementedError

    def _found_ports(self) -> Ports:
        """The ports of a server that already runs, started by another process."""
        raise NotImplementedError

    def _run_on(self, ports: Ports) -> OffsetStoreError | None:
        """Start on these ports, and wait until the server answers; return the error if it does not."""
        raise NotImplementedError

    def _stop_for_good(self) -> None:
        """Stop; the data in a temporary directory will not be read again."""
        raise NotImplementedError

    def _launch(self) -> None:
        """Start on our ports; if free ones have been taken meanwhile, choose others."""
        attempts = _PORT_ATTEMPTS if self._ports is None else 1
        while True:
            ports = self._ports or self._free_ports()
            if (failed := self._run_on(ports)) is None:
                self._ports = ports
                return
            attempts -= 1
            # If all of them are free, the ports are not why it did not start.
            if attempts == 0 or all(is_free(port) for port in ports):
                raise failed

    def _watch(self) -> None:
        if self._watchdog is None and (pid := self.pid) is not None:
            self._watchdog = Watchdog(pid, how=self._ended_by, temporary=self._temporary)

    def _call_off(self) -> None:
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.leave()

    def _leave(self) -> None:
        atexit.unregister(self._close_at_exit)
        self._call_off()

    def _close_at_exit(self) -> None:
        if os.getpid() == self._owner_process:  # not in a forked child
            self.close()


def is_process_of(pid: int, directory: Path) -> bool:
    """Whether the process runs and is the server that keeps its files there."""
    # The id alone says little: after a reboot it may be another process's.
    _reap(pid)
    if Path("/proc/self").exists():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return False
    else:
        line = subprocess.run(  # noqa: S603 - only a number varies
            ["/bin/ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False
        ).stdout
    return str(directory) in line


def end_process(pid: int, *, seconds: float) -> None:
    """Ask a process to stop, and wait; kill it after ``seconds``."""
    deadline = time.monotonic() + seconds
    how = signal.SIGTERM
    while True:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            return
        while _runs(pid) and (how is signal.SIGKILL or time.monotonic() < deadline):
            time.sleep(_LOOK_SECONDS)
        if not _runs(pid):
            return
        how = signal.SIGKILL


def _runs(pid: int) -> bool:
    _reap(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _reap(pid: int) -> None:
    """Reap the process if it is our child and has ended; otherwise it would seem to run."""
    with suppress(ChildProcessError):  # not a child of ours
        os.waitpid(pid, os.WNOHANG)
