"""Translate the settings of Kafka's Java client to librdkafka's: connection and security only.

Sources: the Java client's consumer configuration, and librdkafka's CONFIGURATION.md. Errors name the key, never the
value.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, NoReturn

from offsetstore.errors import ConfigurationError
from offsetstore.kafka.settings.jaas import parse_jaas
from offsetstore.kafka.settings.mechanisms import instead_of
from offsetstore.kafka.settings.truststore import authorities, keystore_format

PREFIX: Final = "kafka."
_OWN_SETTINGS: Final = "Pass librdkafka's own settings instead: Broker({'bootstrap.servers': …, …}, topics=[…])."

_SAME_NAME: Final = frozenset({
    "bootstrap.servers", "client.id", "client.rack", "client.dns.lookup", "security.protocol", "isolation.level",
    "connections.max.idle.ms", "metadata.max.age.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms",
    "retry.backoff.ms", "retry.backoff.max.ms", "socket.connection.setup.timeout.ms",
})  # fmt: skip
_RENAMED: Final = {
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
}
# Where to connect, how, and as whom: if we silently dropped one of these, we could connect to the wrong place, or less
# safely than the job does. Other settings (fetch sizes, polling, groups, serializers, metrics, a producer's) have no
# effect on our few requests, and are dropped.
_CONNECTION: Final = ("bootstrap.", "client.", "config.", "connections.", "reconnect.", "retry.", "request.", "sasl.",
                      "security.", "socket.", "ssl.")  # fmt: skip
# Of these, what can be dropped: Java's own machinery, which has no counterpart and needs none.
_JAVA_ONLY: Final = frozenset({
    "socket.connection.setup.timeout.max.ms", "ssl.protocol", "ssl.enabled.protocols", "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm", "ssl.secure.random.implementation",
})  # fmt: skip
_JAVA_ONLY_PREFIXES: Final = ("sasl.kerberos.", "sasl.login.refresh.", "sasl.login.retry.", "sasl.login.connect.",
                              "sasl.login.read.")  # fmt: skip
_SASL: Final = frozenset({"sasl.mechanism", "sasl.jaas.config"})
_PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SSL: Final = frozenset({
    "ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.certificates", "ssl.truststore.password",
    "ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key",
    "ssl.keystore.password", "ssl.key.password", "ssl.endpoint.identification.algorithm",
})  # fmt: skip
_JAVA_STORES: Final = ("JKS", "PKCS12")  # Java reads either, whichever of the two names is given
_MAX_SOCKET_TIMEOUT_MS: Final = 300_000  # librdkafka's upper limit; Java has none


def librdkafka_settings(java: Mapping[str, str]) -> dict[str, str]:
    """Translate settings, named without ``kafka.``. SASL and TLS settings count only if the protocol uses them.

    :raises ConfigurationError: a setting has no counterpart, or is unknown and could change the connection.
    """
    if not java.get("bootstrap.servers", "").strip():
        near = get_close_matches("bootstrap.servers", java, n=1)
        raise ConfigurationError(
            f"{PREFIX}bootstrap.servers is missing",
            found=f"{PREFIX}{near[0]}" if near else None,
            next_step=f'Pass the options of the reader: "{PREFIX}bootstrap.servers": "host:9092".',
        )
    sasl, ssl = _protocol(java)
    settings: dict[str, str] = {}
    for key, value in java.items():
        if key in _SAME_NAME:
            settings[key] = value.strip()
        elif key in _RENAMED:
            settings[_RENAMED[key]] = value.strip()
        elif not _may_be_dropped(key, sasl=sasl, ssl=ssl):
            _refuse(key, "has no counterpart in librdkafka, and could change the connection")
    if (timeout := settings.get("socket.timeout.ms", "")).isdecimal():
        settings["socket.timeout.ms"] = str(min(int(timeout), _MAX_SOCKET_TIMEOUT_MS))
    if sasl:
        settings |= _login(java)
    if ssl:
        settings |= _authorities(java) | _certificate(java) | _hostname_check(java)
    return settings


def _refuse(key: str, what: str, *, expected: str | None = None, next_step: str | None = None) -> NoReturn:
    raise ConfigurationError(f"{PREFIX}{key}: {what}", expected=expected, next_step=next_step or _OWN_SETTINGS)


def _protocol(java: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether the protocol uses SASL, and whether it uses TLS."""
    protocol = java.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        _refuse("security.protocol", "not one of Kafka's protocols", expected=" | ".join(_PROTOCOLS))
    sasl = protocol.startswith("SASL_")
    if sasl and "sasl.mechanism" in java:
        _mechanism(java)  # first: the settings of an unknown mechanism would be refused by their own names
    return sasl, protocol.endswith("SSL")


def _may_be_dropped(key: str, *, sasl: bool, ssl: bool) -> bool:
    if key.startswith("sasl.") and not sasl:
        return True
    if key.startswith("ssl.") and not ssl:
        return True
    if key in _SASL or key in _SSL or key in _JAVA_ONLY:  # _SASL and _SSL are translated below
        return True
    return key.startswith(_JAVA_ONLY_PREFIXES) or not key.startswith(_CONNECTION)


def _mechanism(java: Mapping[str, str]) -> str:
    given = java.get("sasl.mechanism")
    mechanism = "GSSAPI" if given is None else given.strip().upper()  # Java's default
    if mechanism not in _PASSWORD_MECHANISMS:
        what = f"{mechanism}{' (the default)' if given is None else ''} needs credentials that only the JVM has"
        step = instead_of(mechanism)
        _refuse("sasl.mechanism", what, expected=" | ".join(_PASSWORD_MECHANISMS), next_step=step)
    return mechanism


def _login(java: Mapping[str, str]) -> dict[str, str]:
    mechanism = _mechanism(java)
    if "sasl.jaas.config" not in java:
        _refuse("sasl.jaas.config", "missing; the JVM's JAAS file can't be read from here")
    login = parse_jaas(java["sasl.jaas.config"])
    if mechanism not in login.mechanisms:
        _refuse("sasl.jaas.config", f"its login module is not for {mechanism}", expected=login.mechanisms[0])
    return {"sasl.mechanism": mechanism, "sasl.username": login.username, "sasl.password": login.password}


def _authorities(java: Mapping[str, str]) -> dict[str, str]:
    if "ssl.truststore.certificates" in java:
        return {"ssl.ca.pem": java["ssl.truststore.certificates"]}
    location = java.get("ssl.truststore.location")
    if location is None:
        return {}  # both clients then trust what their platform trusts
    kind = _store_type(java, "ssl.truststore.type", location)
    if kind in _JAVA_STORES:
        return {"ssl.ca.pem": authorities(location, java.get("ssl.truststore.password"))}
    if kind != "PEM":
        _refuse("ssl.truststore.type", "unknown type of truststore", expected="PEM, PKCS12 or JKS")
    return {"ssl.ca.location": location}


def _certificate(java: Mapping[str, str]) -> dict[str, str]:
    key_password = {"ssl.key.password": java["ssl.key.password"]} if "ssl.key.password" in java else {}
    if "ssl.keystore.certificate.chain" in java or "ssl.keystore.key" in java:
        if not {"ssl.keystore.certificate.chain", "ssl.keystore.key"} <= java.keys():
            _refuse("ssl.keystore.key", "a certificate and its key must be given together")
        chain, key = java["ssl.keystore.certificate.chain"], java["ssl.keystore.key"]
        return {"ssl.certificate.pem": chain, "ssl.key.pem": key, **key_password}
    location = java.get("ssl.keystore.location")
    if location is None:
        return {}
    kind = _store_type(java, "ssl.keystore.type", location)
    if kind in _JAVA_STORES:
        kind = keystore_format(location) or kind
    match kind:
        case "PEM":  # one file holds the key and the chain, and librdkafka finds each of them in it
            return {"ssl.certificate.location": location, "ssl.key.location": location, **key_password}
        case "PKCS12":
            password = java.get("ssl.keystore.password")
            return {"ssl.keystore.location": location} | ({"ssl.keystore.password": password} if password else {})
        case _:
            raise ConfigurationError(
                f"{PREFIX}ssl.keystore.location: librdkafka can't read a keystore of this format, and "
                "keytool exports keys only to another keystore",
                expected="PEM or PKCS12",
                next_step="Convert it with `keytool -importkeystore -srckeystore … -destkeystore client.p12 "
                "-deststoretype PKCS12`, and give Spark and the Broker that file and "
                f"{PREFIX}ssl.keystore.type=PKCS12.",
            )


def _store_type(java: Mapping[str, str], key: str, location: str) -> str:
    default = "PEM" if location.lower().endswith(".pem") else "JKS"
    return java.get(key, default).strip().upper()


def _hostname_check(java: Mapping[str, str]) -> dict[str, str]:
    algorithm = java.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in {"", "https"}:
        _refuse("ssl.endpoint.identification.algorithm", "unknown algorithm", expected="https, or empty: no check")
    return {"ssl.endpoint.identification.algorithm": algorithm or "none"}
