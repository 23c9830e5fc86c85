"""A PostgreSQL and a Kafka that keep running after the command that started them: ``offsetstore local``.

A file in the cache directory records what runs where. Data are kept across ``down`` and ``up``.
"""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from offsetstore.local import cache_directory, locked
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.kafka_properties import KafkaPorts
from offsetstore.local.postgres import PostgresServer, temporary_directory, unprivileged_account
from offsetstore.local.servers import LOOPBACK, answers, end_process, is_process_of

_USER = _DATABASE = "offsetstore"
_START_SECONDS = 300  # a person who waits can interrupt it
_STOP_SECONDS = 20


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One server of the stack. ``address`` is what a job needs, with the password."""

    name: str
    running: bool
    address: str
    pid: int | None
    directory: Path

    @classmethod
    def of(cls, name: str, directory: str, pid: int | None, port: int | None, address: str) -> ServiceStatus:
        """Check whether the process is this server, and answers."""
        running = bool(pid and port and is_process_of(pid, Path(directory)) and answers(port))
        return cls(name, running, address if port else "", pid if running else None, Path(directory))


@dataclass(frozen=True, slots=True)
class PostgresState:
    """What is needed to find the server again."""

    directory: str
    password: str
    port: int | None = None

    def server(self) -> PostgresServer:
        """Return the server, running or not."""
        directory = Path(self.directory)
        return PostgresServer(directory=directory, port=self.port, user=_USER, password=self.password)

    def started(self) -> PostgresState:
        server = self.server().start()
        if _DATABASE not in server.sql("SELECT datname FROM pg_database").splitlines():
            server.create_database(_DATABASE)
        server.detach()
        return replace(self, port=server.port)

    @property
    def status(self) -> ServiceStatus:
        server = self.server()
        url = server.database_url(_DATABASE) if self.port else ""
        return ServiceStatus.of("PostgreSQL", self.directory, server.pid, self.port, url)


@dataclass(frozen=True, slots=True)
class KafkaState:
    """What is needed to find the broker again."""

    directory: str
    ports: tuple[int, int, int] | None = None
    pid: int | None = None

    def started(self) -> KafkaState:
        ports = KafkaPorts(*self.ports) if self.ports else None
        broker = KafkaBroker(directory=Path(self.directory), ports=ports, start_seconds=_START_SECONDS).start()
        return replace(self, ports=broker.ports[:3], pid=broker.detach())

    @property
    def status(self) -> ServiceStatus:
        port = self.ports[0] if self.ports else None
        return ServiceStatus.of("Kafka", self.directory, self.pid, port, f"{LOOPBACK}:{port}")


@dataclass(frozen=True, slots=True)
class StackState:
    """What the file holds."""

    postgres: PostgresState
    kafka: KafkaState

    @property
    def services(self) -> list[ServiceStatus]:
        return [self.postgres.status, self.kafka.status]


def up() -> list[ServiceStatus]:
    """Start what does not run yet, on the same ports as last time, and wait until it answers.

    :raises MissingDependency: no Java, or something can't be downloaded.
    :raises StoreUnavailable: PostgreSQL does not start.
    :raises BrokerUnavailable: Kafka does not start.
    """
    with locked(_home() / "lock"):
        state = _read() or _new()
        _write(state)  # first the password, without which the data are of no use
        if not state.postgres.status.running:
            state = replace(state, postgres=state.postgres.started())
            _write(state)
        if not state.kafka.status.running:
            state = replace(state, kafka=state.kafka.started())
            _write(state)
        return state.services


def status() -> list[ServiceStatus]:
    """Check the servers themselves. Empty if there is no stack."""
    state = _read()
    return [] if state is None else state.services


def down(*, delete_data: bool = False) -> list[ServiceStatus]:
    """Stop what runs, Kafka first. Return what was stopped.

    :param delete_data: also forget the stack, and remove its servers' data.
    """
    with locked(_home() / "lock"):
        state = _read()
        if state is None:
            return []
        before = state.services
        if (pid := state.kafka.pid) and is_process_of(pid, Path(state.kafka.directory)):
            end_process(pid, seconds=_STOP_SECONDS)
        if Path(state.postgres.directory).exists():
            state.postgres.server().stop()
        if delete_data:
            shutil.rmtree(state.postgres.directory, ignore_errors=True)
            shutil.rmtree(state.kafka.directory, ignore_errors=True)
            _file().unlink()
        return [service for service in before if service.running]


def _home() -> Path:
    return cache_directory() / "stack"


def _file() -> Path:
    return _home() / "state.json"


def _new() -> StackState:
    """Choose where the data will be: in the cache, or below /tmp if PostgreSQL's account can't enter the cache."""
    account = unprivileged_account()
    home = _home()
    home.mkdir(parents=True, exist_ok=True)
    if account.can_enter(home):
        postgres = home / "postgres"
    else:
        postgres = temporary_directory(account, prefix="offsetstore-stack-")
    return StackState(PostgresState(str(postgres), secrets.token_urlsafe(16)), KafkaState(str(home / "kafka")))


def _read() -> StackState | None:
    try:
        stored = json.loads(_file().read_text())
    except FileNotFoundError:
        return None
    kafka: dict[str, Any] = stored["kafka"]
    if kafka["ports"]:
        kafka["ports"] = tuple(kafka["ports"])
    return StackState(PostgresState(**stored["postgres"]), KafkaState(**kafka))


def _write(state: StackState) -> None:
    """Replace the file as a whole. It holds a password."""
    new = _file().with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(json.dumps(asdict(state), indent=1))
    new.replace(_file())
