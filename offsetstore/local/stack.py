"""A PostgreSQL and a Kafka that keep running when the command that started them has ended: ``offsetstore local``.

A file in the cache directory records what runs where. Data are kept across ``down`` and ``up``.
"""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from offsetstore.local.cache import cache_directory, locked
from offsetstore.local.free_ports import LOOPBACK, answers
from offsetstore.local.kafka.properties import KafkaPorts
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.postgres.account import temporary_directory, unprivileged_account
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.local.processes import end_process, is_process_of

_USER = _DATABASE = "offsetstore"
_STOP_SECONDS = 20


@dataclass(frozen=True, slots=True)
class PostgresState:
    """What has to be known to find the server again."""

    directory: str
    password: str
    port: int | None = None

    def server(self) -> PostgresServer:
        """Return the server, which may or may not run."""
        directory = Path(self.directory)
        return PostgresServer(directory=directory, port=self.port, user=_USER, password=self.password)

    @property
    def url(self) -> str:
        """The URL of our database, with its password."""
        return self.server().database_url(_DATABASE)


@dataclass(frozen=True, slots=True)
class KafkaState:
    """What has to be known to find the broker again."""

    directory: str
    ports: tuple[int, int, int] | None = None
    pid: int | None = None

    def broker(self) -> KafkaBroker:
        """Return a broker to be started."""
        return KafkaBroker(directory=Path(self.directory), ports=KafkaPorts(*self.ports) if self.ports else None)

    @property
    def bootstrap_servers(self) -> str:
        """The listener without authentication."""
        return f"{LOOPBACK}:{self.ports[0]}" if self.ports else ""


@dataclass(frozen=True, slots=True)
class StackState:
    """The content of the file."""

    postgres: PostgresState
    kafka: KafkaState


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One server of the stack. ``address`` is what a job needs, with the password."""

    name: str
    running: bool
    address: str
    pid: int | None
    directory: Path


def up() -> list[ServiceStatus]:
    """Start what does not run yet, on the ports of last time if there was one, and wait until it answers.

    :raises MissingDependency: no Java, or something can't be downloaded.
    :raises StoreUnavailable: PostgreSQL does not start.
    :raises BrokerUnavailable: Kafka does not start.
    """
    with locked(_home() / "lock"):
        state = _read() or _new()
        _write(state)  # first of all the password, without which the data are of no use
        if not _postgres(state.postgres).running:
            state = replace(state, postgres=_start_postgres(state.postgres))
            _write(state)
        if not _kafka(state.kafka).running:
            state = replace(state, kafka=_start_kafka(state.kafka))
            _write(state)
        return [_postgres(state.postgres), _kafka(state.kafka)]


def status() -> list[ServiceStatus]:
    """Check the servers themselves: is it that process, and does it answer? Empty if there never was a stack."""
    state = _read()
    return [] if state is None else [_postgres(state.postgres), _kafka(state.kafka)]


def down(*, delete_data: bool = False) -> list[ServiceStatus]:
    """Stop what runs, Kafka first. Return what was stopped.

    :param delete_data: also forget the stack and remove what its servers kept.
    """
    with locked(_home() / "lock"):
        state = _read()
        if state is None:
            return []
        before = [_postgres(state.postgres), _kafka(state.kafka)]
        if (pid := state.kafka.pid) and is_process_of(pid, Path(state.kafka.directory)):
            end_process(pid, seconds=_STOP_SECONDS)
        if Path(state.postgres.directory).exists():
            state.postgres.server().stop()
        if delete_data:
            shutil.rmtree(state.postgres.directory, ignore_errors=True)
            shutil.rmtree(state.kafka.directory, ignore_errors=True)
            _file().unlink()
        return [service for service in before if service.running]


def _start_postgres(known: PostgresState) -> PostgresState:
    server = known.server().start()
    if _DATABASE not in server.sql("SELECT datname FROM pg_database").splitlines():
        server.create_database(_DATABASE)
    server.detach()
    return replace(known, port=server.port)


def _start_kafka(known: KafkaState) -> KafkaState:
    broker = known.broker().start()
    return replace(known, ports=broker.ports.all, pid=broker.detach())


def _postgres(state: PostgresState) -> ServiceStatus:
    directory = Path(state.directory)
    pid = state.server().pid
    running = pid is not None and state.port is not None and is_process_of(pid, directory) and answers(state.port)
    address = state.url if state.port else ""
    return ServiceStatus("PostgreSQL", running, address, pid if running else None, directory)


def _kafka(state: KafkaState) -> ServiceStatus:
    directory = Path(state.directory)
    running = bool(state.pid and state.ports and is_process_of(state.pid, directory) and answers(state.ports[0]))
    return ServiceStatus("Kafka", running, state.bootstrap_servers, state.pid if running else None, directory)


def _home() -> Path:
    return cache_directory() / "stack"


def _file() -> Path:
    return _home() / "state.json"


def _new() -> StackState:
    """Choose where the data will be: in the cache, or if PostgreSQL's account can't enter it, below /tmp."""
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
