"""The URL forms that people have at hand, turned into one engine on psycopg 3."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL

from offsetstore.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

VARIABLE = "OFFSETSTORE_URL"
_EXPECTED = (
    "postgresql://user@host:5432/database, postgresql+psycopg://..., jdbc:postgresql://... or host=... dbname=..."
)
_CONNECT_TIMEOUT = 10
# The JDBC driver's names for what libpq calls otherwise; those that it shares need no line here.
_FROM_JDBC = {
    "currentSchema": None,
    "ssl": None,
    "ApplicationName": "application_name",
    "loginTimeout": "connect_timeout",
}


def connection_parameters(url: str | None) -> dict[str, Any]:
    """Libpq's parameters for any of the forms; without a URL, those of the environment variable.

    :raises ConfigurationError: no URL at all, or one that is not PostgreSQL's. Neither shows the password.
    """
    url = url or os.environ.get(VARIABLE)
    if not url:
        what = "no database was named"
        raise ConfigurationError(what, found=f"{VARIABLE} is not set", expected=_EXPECTED)
    scheme = urlsplit(url).scheme if "://" in url else ""
    if url.startswith("jdbc:"):
        url = _libpq_from_jdbc(url)
    elif scheme.startswith("postgresql+"):
        url = f"postgresql{url[len(scheme) :]}"
    elif scheme not in {"", "postgresql", "postgres"}:
        what = "not a PostgreSQL URL"
        raise ConfigurationError(what, found=f"{scheme}://...", expected=_EXPECTED)
    try:
        parameters: dict[str, Any] = dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        # psycopg's own words may repeat the URL, and with it the password.
        what = "the database URL is not understood"
        raise ConfigurationError(what, expected=_EXPECTED) from None
    parameters.setdefault("connect_timeout", _CONNECT_TIMEOUT)
    return parameters


def _libpq_from_jdbc(url: str) -> str:
    parts = urlsplit(url.removeprefix("jdbc:"))
    if parts.scheme != "postgresql":
        what = "not a PostgreSQL URL"
        raise ConfigurationError(what, found=f"jdbc:{parts.scheme}:...", expected=_EXPECTED)
    given = dict(parse_qsl(parts.query))
    host, port = parts.hostname or "localhost", parts.port or 5432
    parameters = {"host": host, "port": str(port), "dbname": parts.path.lstrip("/") or given.get("user", "postgres")}
    if given.get("ssl") == "true":
        parameters["sslmode"] = "verify-full"
    for name, value in given.items():
        libpq = _FROM_JDBC.get(name, name)
        if libpq is not None:
            parameters[libpq] = value
    if "currentSchema" in given:
        parameters["options"] = f"-c search_path={given['currentSchema']}"
    return make_conninfo("", **parameters)


def make_engine(url: str | None, credentials: Callable[[], str] | None = None) -> Engine:
    """Make an engine on psycopg 3, without prepared statements, so that PgBouncer may be in between.

    :param credentials: called for each new connection, returns its password: for tokens that expire.
    :raises ConfigurationError: see `connection_parameters`.
    """
    parameters = connection_parameters(url)
    parameters["prepare_threshold"] = None
    engine = create_engine(
        URL.create("postgresql+psycopg"), connect_args=parameters, hide_parameters=True, pool_pre_ping=True
    )
    if credentials is not None:
        ask = credentials

        @event.listens_for(engine, "do_connect")
        def _(_dialect: object, _record: object, _args: object, parameters: dict[str, Any]) -> None:  # pyright: ignore[reportUnusedFunction] - SQLAlchemy calls it
            parameters["password"] = ask()

    return engine


def check_engine(engine: Engine) -> Engine:
    """Return the engine if it is PostgreSQL's on psycopg 3.

    :raises ConfigurationError: it is another database's or another driver's.
    """
    if (engine.dialect.name, engine.dialect.driver) != ("postgresql", "psycopg"):
        what = "the engine is not PostgreSQL's on psycopg 3"
        raise ConfigurationError(
            what,
            found=f"{engine.dialect.name}+{engine.dialect.driver}",
            expected="postgresql+psycopg",
            next_step='Make it with create_engine("postgresql+psycopg://...").',
        )
    return engine
