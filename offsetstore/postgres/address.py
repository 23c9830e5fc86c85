"""How to reach a database from another process, as a value that pickles and holds no secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from offsetstore.errors import ConfigurationError
from offsetstore.postgres.database import PostgresDatabase

Secrets: TypeAlias = "dict[str, str]"
"""Libpq's secret parameters, by their names."""

# These travel sealed, apart from the address: Spark may put a pickled function on disk (decision 0014).
_SECRET: Final = frozenset({"oauth_client_secret", "password", "scram_client_key", "scram_server_key", "sslpassword"})
# SQLAlchemy's adapters, which every engine adds itself.
_ITS_OWN: Final = frozenset({"context"})
# The listener stays on the application's engine, so it must do nothing for the engine's other connections.
_capturing: ContextVar[bool] = ContextVar("capturing", default=False)


class _Captured(Exception):
    """Not an error: it carries the parameters out of SQLAlchemy before it connects."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        # Without arguments, so that a log of it shows no password.
        super().__init__()
        self.parameters = parameters


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """Where a database is, and in which schema our tables are.

    ``parameters`` are the driver's, without `Secrets`. Each process adds those of its own environment (``PGPASSWORD``,
    ``PGPASSFILE``, ``PGSSLROOTCERT``).
    """

    parameters: tuple[tuple[str, str | int | None], ...]
    schema: str | None

    @classmethod
    def of(cls, database: PostgresDatabase) -> Self:
        """Describe a database, with the schema in which our tables were found, without connecting.

        :raises ConfigurationError: its connections are made by code that can't be sent elsewhere.
        """
        plain = {name: value for name, value in _parameters(database.engine).items() if name not in _SECRET}
        return cls(tuple(sorted(plain.items())), database.schema)

    def connect(self, secrets: Callable[[], Mapping[str, str]], *, idle_timeout: float) -> PostgresDatabase:
        """Make a database with at most one connection, opened by the first transaction and checked before each.

        :param secrets: called for each new connection.
        :param idle_timeout: as for `PostgresDatabase`.
        """

        def add_secrets(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
            parameters.update(secrets())

        parameters = {**dict(self.parameters), "client_encoding": "UTF8"}  # as `make_engine`
        connect: dict[str, Any] = {"connect_args": parameters, "hide_parameters": True}
        url = URL.create("postgresql+psycopg")
        engine = create_engine(url, pool_size=1, max_overflow=0, **connect)
        dedicated = create_engine(url, poolclass=NullPool, **connect)
        for each in (engine, dedicated):
            event.listen(each, "do_connect", add_secrets)
        return PostgresDatabase(engine, schema=self.schema, idle_timeout=idle_timeout, owned=True, dedicated=dedicated)


def secrets_of(database: PostgresDatabase) -> Secrets:
    """The secrets for a new connection now; calls ``credentials=`` if it is set.

    :raises ConfigurationError: see `DatabaseAddress.of`.
    :raises StoreUnavailable: ``credentials=`` failed.
    """
    parameters = _parameters(database.engine)
    return {name: str(value) for name, value in parameters.items() if name in _SECRET and value}


def _parameters(engine: Engine) -> dict[str, Any]:
    """The parameters that the engine would pass to psycopg, with ``connect_args`` and what listeners add (tokens)."""
    if not event.contains(engine, "do_connect", _capture):
        event.listen(engine, "do_connect", _capture)
    # A new pool has no connection yet, so it makes one and calls the listeners.
    pool = engine.pool.recreate()
    token = _capturing.set(True)
    try:
        pool.connect().close()
    except _Captured as captured:
        return {name: _sendable(name, value) for name, value in captured.parameters.items() if name not in _ITS_OWN}
    finally:
        _capturing.reset(token)
        pool.dispose()
    raise ConfigurationError(
        "the engine's connections are made by a function, which executors do not have",
        found="create_engine(..., creator=...), or a do_connect listener that returns a connection",
        expected="an engine that is made from a URL",
        next_step="Give OffsetStore.connect the URL, and credentials= for passwords that change; or write from the "
        'driver: atomicity="batch".',
    )


def _capture(_dialect: object, _record: object, arguments: list[Any], parameters: dict[str, Any]) -> None:
    if _capturing.get():
        conninfo = conninfo_to_dict(arguments[0]) if arguments and arguments[0] else {}
        named = conninfo_to_dict(parameters.pop("conninfo", None) or "")
        raise _Captured({**conninfo, **named, **parameters})


def _sendable(name: str, value: object) -> str | int | None:
    if value is None or isinstance(value, (str, int)):
        return value
    raise ConfigurationError(
        f"the engine's connect_args have {name}, which can't be sent to executors",
        found=type(value).__name__,
        expected="text or a number",
    )
