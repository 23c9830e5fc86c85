"""Turns database URLs of all usual forms into an engine on psycopg 3. No error here shows a password.

Spark jobs often have JDBC URLs. Their forms and names are those of the PostgreSQL JDBC driver's documentation,
"Initializing the Driver". Parameters that only tune that driver (``reWriteBatchedInserts``, ``prepareThreshold``, ...)
mean nothing to libpq; they are left out and logged.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_plus

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from offsetstore.errors import ConfigurationError, StoreUnavailable, as_raised
from offsetstore.postgres.errors import DATABASE_ERRORS
from offsetstore.runtime.functions import call

_log = logging.getLogger(__name__)

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

_JDBC_URL = re.compile(r"jdbc:postgresql:(?://(?P<hosts>[^/?]*))?/?(?P<database>[^?]*)(?:\?(?P<query>.*))?", re.DOTALL)
_JDBC_HOST = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<name>[^:\[\]@]*))(?::(?P<port>\d+))?")

# JDBC's names that differ from libpq's.
_JDBC_RENAMED = {
    "ApplicationName": "application_name",
    "channelBinding": "channel_binding",
    "connectTimeout": "connect_timeout",
    "gssEncMode": "gssencmode",
    "loginTimeout": "connect_timeout",
    "requireAuth": "require_auth",
}
# The JDBC driver's other parameters (PGProperty in its sources). Any other name is not logged: it may be the rest of a
# password with an & in it.
_JDBC_ONLY = """
adaptiveFetch adaptiveFetchMaximum adaptiveFetchMinimum allowEncodingChanges assumeMinServerVersion
authenticationPluginClassName autosave binaryTransfer binaryTransferDisable binaryTransferEnable cancelSignalTimeout
classLoaderStrategy cleanupSavepoints connectExecutor connectExecutorArg convertBooleanToNumeric
databaseMetadataCacheFields databaseMetadataCacheFieldsMiB defaultRowFetchSize disableColumnSanitiser
escapeSyntaxCallMode flushCacheOnDdl groupStartupParameters gsslib gssResponseTimeout gssUseDefaultCreds
hideUnprivilegedObjects hostRecheckSeconds jaasApplicationName jaasLogin kerberosServerName loadBalanceHosts
localSocketAddress loggerFile loggerLevel logServerErrorDetail logUnclosedConnections maxResultBuffer
maxSendBufferSize PGDBNAME PGHOST PGPORT preferQueryMode preparedStatementCacheQueries
preparedStatementCacheSizeMiB prepareThreshold protocolVersion queryTimeout quoteReturningIdentifiers readOnly
readOnlyMode receiveBufferSize reWriteBatchedInserts reWriteBatchedInsertsSize scramMaxIterations sendBufferSize
socketFactory socketFactoryArg socketTimeout sslfactoryarg sslhostnameverifier sslNegotiation sslpasswordcallback
sslResponseTimeout sspiServiceClass stringtype tcpNoDelay unknownLength useSpnego xmlFactoryFactory
"""
_JDBC_SERVER_TYPES = {
    "any": "any",
    "master": "primary",
    "preferPrimary": "any",
    "preferSecondary": "prefer-standby",
    "preferSlave": "prefer-standby",
    "primary": "primary",
    "secondary": "standby",
    "slave": "standby",
}


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
    if "@" in parameters.get("host", "") or not _PORTS.fullmatch(parameters.get("port", "")):
        raise ConfigurationError("the database URL has no valid host and port", expected=_EXPECTED, next_step=_ENCODE)
    for name in ("host", "dbname", "user"):
        if _PARAMETER.search(parameters.get(name, "")):
            raise ConfigurationError(
                f"the database URL has parameters in its {name}", expected=_EXPECTED, next_step=_QUERY
            )
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
        return make_conninfo("", **_jdbc_parameters(url))
    rest = url[match.end() :]
    before_query = rest.partition("?")[0]
    # A URL has one @, before the host. Any other belongs to a password that is not encoded; libpq would take a part of
    # the password for the host and show it in its errors.
    if "@" in before_query.rpartition("@")[0] or "@" in before_query[2:].partition("/")[2]:
        raise ValueError
    return f"postgresql:{rest}"


def _jdbc_parameters(url: str) -> dict[str, str]:
    """Libpq's parameters for a URL that begins with ``jdbc:postgresql:``.

    :raises ValueError: not one of the driver's forms. The message is empty, because it could show the password.
    """
    match = _JDBC_URL.fullmatch(url)
    if match is None:
        raise ValueError
    given = dict(parse_qsl(match["query"] or "", keep_blank_values=True))
    parameters = _hosts(match["hosts"] or "localhost")
    if match["database"]:
        parameters["dbname"] = unquote_plus(match["database"])
    parameters |= _translated(given)
    if "sslmode" not in given and given.get("ssl", "false").lower() != "false":
        # The JDBC driver verifies unless it is told not to; so do we.
        lax = given.get("sslfactory", "").endswith(".NonValidatingFactory")
        parameters["sslmode"] = "require" if lax else "verify-full"
    if given.get("currentSchema"):
        # In `options` a space ends the value unless a backslash precedes it.
        escaped = re.sub(r"([\\ ])", r"\\\1", given["currentSchema"])
        parameters["options"] = f"{given.get('options', '')} -c search_path={escaped}".strip()
    return parameters


def _hosts(listed: str) -> dict[str, str]:
    names: list[str] = []
    ports: list[str] = []
    for host in listed.split(","):
        match = _JDBC_HOST.fullmatch(host)
        if match is None:
            raise ValueError
        names.append(match["ipv6"] or unquote_plus(match["name"]) or "localhost")
        ports.append(match["port"] or "5432")
    return {"host": ",".join(names), "port": ",".join(ports)}


def _translated(given: Mapping[str, str]) -> dict[str, str]:
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    parameters: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in given.items():
        libpq = _JDBC_RENAMED.get(name, name)
        if name == "targetServerType":
            parameters["target_session_attrs"] = _JDBC_SERVER_TYPES.get(value, value)
        elif name == "tcpKeepAlive":
            parameters["keepalives"] = "1" if value.lower() == "true" else "0"
        elif libpq in known:
            parameters[libpq] = value
        elif name not in {"ssl", "sslfactory", "currentSchema"}:
            ignored.append(name)
    its_own = sorted(set(_JDBC_ONLY.split()).intersection(ignored))
    if its_own:
        _log.info("ignored parameters of the JDBC URL that only the JDBC driver supports: %s", ", ".join(its_own))
    if unknown := len(ignored) - len(its_own):
        _log.warning(
            "ignored %d unknown parameters of the JDBC URL. If they are the rest of a "
            "password, write %%26 for the & in it",
            unknown,
        )
    return parameters


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
