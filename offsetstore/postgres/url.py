"""Turns database URLs of all usual forms into an engine on psycopg 3. No error here shows a password."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from offsetstore.errors import ConfigurationError, StoreUnavailable, as_raised
from offsetstore.postgres.errors import DATABASE_ERRORS
from offsetstore.postgres.jdbc import libpq_parameters
from offsetstore.runtime.functions import call

VARIABLE = "OFFSETSTORE_URL"
SCHEMA_VARIABLE: Final = "OFFSETSTORE_SCHEMA"
_EXPECTED = (
    "postgresql://user@host:5432/database, postgresql+psycopg://..., jdbc:postgresql://... or host=... dbname=..."
)
_NAME = f"Set {VARIABLE}, or pass a URL."
_ONLY = "Name a PostgreSQL database: offsetstore supports no other."
_BEGIN = "Begin it with postgresql://, or use the form host=... dbname=... user=..."
_KEYS = "Name libpq's keys (host, port, dbname, user, password), and quote a value with spaces: password='...'."
_ENCODE = "Percent-encode special characters in the password: %40 for @, %2F for /, %3A for :, %23 for #, %25 for %."
_QUERY = "Put ? before the first parameter and & between parameters; the form host=... dbname=... takes spaces."
_TIMES: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    # Detect a silent server (a dead machine, a firewall that dropped the connection) within half a minute. The system's
    # own limits are hours if nothing was sent, and a quarter of an hour after COMMIT.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
_SCHEME = re.compile(r"(jdbc:)?([A-Za-z][A-Za-z0-9.-]*)(\+[A-Za-z0-9_]+)?:")
# "db;password=...", "sales&password=...": parameters in the wrong place, which the server's errors would repeat.
_PARAMETER = re.compile(r"[&;,?\s]\s*[A-Za-z_]+\s*=")
_PORTS = re.compile(r"[0-9, ]*")


def connection_parameters(url: str | None) -> dict[str, Any]:
    """Libpq's parameters for a URL of any form, by default the environment variable's.

    :raises ConfigurationError: no URL, or one that is not for PostgreSQL.
    """
    url = (url or os.environ.get(VARIABLE) or "").strip()
    if not url:
        raise ConfigurationError(
            "no database URL was given", found=f"{VARIABLE} is not set", expected=_EXPECTED, next_step=_NAME
        )
    try:
        parameters: dict[str, Any] = dict(conninfo_to_dict(_libpq_form(url)))
    except (*DATABASE_ERRORS, ValueError):
        # Their messages may repeat the URL, with the password.
        step = _ENCODE if _SCHEME.match(url) else _KEYS
        raise ConfigurationError("could not parse the database URL", expected=_EXPECTED, next_step=step) from None
    _check_address(parameters)
    return {**_TIMES, **parameters}


def _libpq_form(url: str) -> str:
    match = _SCHEME.match(url)
    if match is None and "=" in url:
        return url  # "host=... dbname=..."
    if match is None or not (match[1] or url.startswith("//", match.end())):
        # The text before a colon is a scheme only if // follows: else it may be a host, a user, or a password.
        raise ConfigurationError("the database URL has no scheme", expected=_EXPECTED, next_step=_BEGIN)
    jdbc, scheme, driver = match.groups()
    if scheme not in {"postgresql", "postgres"} or (jdbc and driver):
        raise ConfigurationError("not a PostgreSQL URL", found=match[0], expected=_EXPECTED, next_step=_ONLY)
    if jdbc:
        return make_conninfo("", **libpq_parameters(url))
    rest = url[match.end() :]
    before_query = rest.partition("?")[0]
    # A URL has one @, before the host. Any other belongs to a password that is not encoded; libpq would take a part of
    # the password for the host and show it in its errors.
    if "@" in before_query.rpartition("@")[0] or "@" in before_query[2:].partition("/")[2]:
        raise ValueError
    return f"postgresql:{rest}"


def _check_address(parameters: dict[str, Any]) -> None:
    if "@" in parameters.get("host", "") or not _PORTS.fullmatch(parameters.get("port", "")):
        raise ConfigurationError("the database URL has no valid host and port", expected=_EXPECTED, next_step=_ENCODE)
    for name in ("host", "dbname", "user"):
        if _PARAMETER.search(parameters.get(name, "")):
            raise ConfigurationError(
                f"the database URL has parameters in its {name}", expected=_EXPECTED, next_step=_QUERY
            )


def schema_or_default(schema: str | None) -> str | None:
    """The schema, by default the environment variable's; ``None`` for the connection's search path."""
    return schema or os.environ.get(SCHEMA_VARIABLE) or None


def make_engine(url: str | None, credentials: Callable[[], str] | None = None) -> Engine:
    """Make an engine on psycopg 3 that works through PgBouncer.

    :param credentials: called for each new connection; returns its password, for tokens that expire. If it raises, the
        connection fails with `StoreUnavailable`.
    :raises ConfigurationError: see `connection_parameters`.
    """
    parameters = connection_parameters(url)
    # Behind PgBouncer, the next server connection may lack a prepared statement (decision 0013).
    parameters["prepare_threshold"] = None
    # Whatever the role or the environment has (decision 0053).
    parameters["client_encoding"] = "UTF8"
    # The parameters bypass SQLAlchemy's URL, so that printing the engine shows no password.
    engine = create_engine(URL.create("postgresql+psycopg"), connect_args=parameters, hide_parameters=True)
    if credentials is not None:
        ask = credentials

        @event.listens_for(engine, "do_connect")
        def _(_dialect: object, _record: object, _args: object, parameters: dict[str, Any]) -> None:  # pyright: ignore[reportUnusedFunction] - SQLAlchemy calls it
            try:
                parameters["password"] = call(ask)
            except Exception as error:
                raise StoreUnavailable(
                    "could not get the credentials",
                    found=type(as_raised(error)).__name__,
                    next_step="See the error of credentials() above.",
                ) from error

    return engine


def check_engine(engine: Engine) -> Engine:
    """Return the engine if it is for PostgreSQL on psycopg 3.

    :raises ConfigurationError: it is for another database or driver, or shares connections.
    """
    if (engine.dialect.name, engine.dialect.driver) != ("postgresql", "psycopg"):
        raise ConfigurationError(
            "the engine is not for PostgreSQL on psycopg 3",
            found=f"{engine.dialect.name}+{engine.dialect.driver}",
            expected="postgresql+psycopg",
            next_step='Make it with create_engine("postgresql+psycopg://...").',
        )
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)):
        raise ConfigurationError(
            "the engine's pool gives one connection to several transactions",
            found=type(engine.pool).__name__,
            expected="QueuePool (the default) or NullPool",
        )
    return engine
