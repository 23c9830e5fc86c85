"""The account that a server runs under: PostgreSQL refuses to run as root, which is usual in containers and CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offsetstore.errors import ConfigurationError

_CANDIDATES = ("postgres", "nobody", "daemon")


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine other than root. ``uid`` is ``None`` for our own account."""

    uid: int | None = None
    gid: int | None = None

    @property
    def popen_arguments(self) -> dict[str, Any]:
        """Arguments for `subprocess` to start the child under this account, without root's supplementary groups."""
        return {} if self.uid is None else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Make the account the owner of a directory and all that is in it."""
        if self.uid is None or self.gid is None:
            return
        for entry in (path, *path.rglob("*")):
            os.chown(entry, self.uid, self.gid, follow_symlinks=False)

    def can_run(self, command: Sequence[str]) -> bool:
        """Whether the account can run the program; it is run to find out."""
        try:
            code = subprocess.call(  # noqa: S603 - by an absolute path
                command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **self.popen_arguments
            )
        except OSError:
            return False
        return code == 0

    def can_enter(self, directory: Path) -> bool:
        """Whether the account can enter a directory: one above it may be closed to all but root."""
        return self.uid is None or self.can_run([shutil.which("test") or "/bin/test", "-x", str(directory)])


def unprivileged_account() -> Account:
    """Find the account for a server: our own, or if we are root, another one.

    :raises ConfigurationError: we are root, and there is no such account.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return Account()
    import pwd  # noqa: PLC0415 - not on Windows

    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise ConfigurationError(
        "PostgreSQL does not run as root, and there is no other account to run it as",
        expected=f"one of {', '.join(_CANDIDATES)}",
        next_step="Run as a normal user, or add an account: `useradd --system postgres`.",
    )


def temporary_directory(account: Account, *, prefix: str) -> Path:
    """Make a directory that the account owns, and that only it can enter.

    Usually below the directory for temporary files; if that one is closed to the account (``TMPDIR`` below root's
    home), below the system's.

    :raises ConfigurationError: there is none.
    """
    candidates = (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - mkdtemp makes a private one there
    for parent in dict.fromkeys(candidates):
        if not Path(parent).is_dir() or not account.can_enter(Path(parent)):
            continue
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        account.own(directory)
        return directory
    raise ConfigurationError(
        "no directory for temporary files that the server's account can enter",
        found=", ".join(candidates),
        next_step="Set TMPDIR to one, or run as a normal user.",
    )
