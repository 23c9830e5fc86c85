"""Turns JDBC URLs for PostgreSQL, which Spark jobs often use, into libpq's parameters.

Source of the forms and names: the PostgreSQL JDBC driver's documentation, "Initializing the Driver". Parameters that
only tune that driver (``reWriteBatchedInserts``, ``prepareThreshold``, ...) mean nothing to libpq; they are left out
and logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote_plus

from psycopg.pq import Conninfo

_log = logging.getLogger(__name__)

_URL = re.compile(r"jdbc:postgresql:(?://(?P<hosts>[^/?]*))?/?(?P<database>[^?]*)(?:\?(?P<query>.*))?", re.DOTALL)
_HOST = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<name>[^:\[\]@]*))(?::(?P<port>\d+))?")

# The names that differ from libpq's.
_RENAMED = {
    "ApplicationName": "application_name",
    "channelBinding": "channel_binding",
    "connectTimeout": "connect_timeout",
    "gssEncMode": "gssencmode",
    "loginTimeout": "connect_timeout",
    "requireAuth": "require_auth",
}
# The driver's other parameters (PGProperty in its sources). Any other name is not logged: it may be the rest of a
# password with an & in it.
_ITS_OWN = """
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
_SERVER_TYPES = {
    "any": "any",
    "master": "primary",
    "preferPrimary": "any",
    "preferSecondary": "prefer-standby",
    "preferSlave": "prefer-standby",
    "primary": "primary",
    "secondary": "standby",
    "slave": "standby",
}


def libpq_parameters(url: str) -> dict[str, str]:
    """Libpq's parameters for a URL that begins with ``jdbc:postgresql:``.

    :raises ValueError: not one of the driver's forms. The message is empty, because it could show the password.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError
    given = dict(parse_qsl(match["query"] or "", keep_blank_values=True))
    parameters = _hosts(match["hosts"] or "localhost")
    if match["database"]:
        parameters["dbname"] = unquote_plus(match["database"])
    return parameters | _translated(given) | _tls(given) | _search_path(given)


def _hosts(listed: str) -> dict[str, str]:
    names: list[str] = []
    ports: list[str] = []
    for host in listed.split(","):
        match = _HOST.fullmatch(host)
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
        libpq = _RENAMED.get(name, name)
        if name == "targetServerType":
            parameters["target_session_attrs"] = _SERVER_TYPES.get(value, value)
        elif name == "tcpKeepAlive":
            parameters["keepalives"] = "1" if value.lower() == "true" else "0"
        elif libpq in known:
            parameters[libpq] = value
        elif name not in {"ssl", "sslfactory", "currentSchema"}:
            ignored.append(name)
    its_own = sorted(set(_ITS_OWN.split()).intersection(ignored))
    if its_own:
        _log.info("ignored parameters of the JDBC URL that only the JDBC driver supports: %s", ", ".join(its_own))
    if unknown := len(ignored) - len(its_own):
        _log.warning(
            "ignored %d unknown parameters of the JDBC URL. If they are the rest of a "
            "password, write %%26 for the & in it",
            unknown,
        )
    return parameters


def _tls(given: Mapping[str, str]) -> dict[str, str]:
    if "sslmode" in given or given.get("ssl", "false").lower() == "false":
        return {}
    # The JDBC driver verifies unless it is told not to; so do we.
    lax = given.get("sslfactory", "").endswith(".NonValidatingFactory")
    return {"sslmode": "require" if lax else "verify-full"}


def _search_path(given: Mapping[str, str]) -> dict[str, str]:
    if not given.get("currentSchema"):
        return {}
    # In `options` a space ends the value unless a backslash precedes it.
    escaped = re.sub(r"([\\ ])", r"\\\1", given["currentSchema"])
    return {"options": f"{given.get('options', '')} -c search_path={escaped}".strip()}
