"""Translates the settings of Kafka's Java client to librdkafka's: connection and security only.

The user name and password of the JAAS line, truststores that librdkafka can't read (JKS, PKCS12), and what to give a
`Broker` if Java's client logs in by a mechanism that can't be translated. Sources: the Java client's consumer
configuration, and librdkafka's CONFIGURATION.md. Errors name the key, never the value.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NoReturn

from offsetstore.errors import ConfigurationError

_KEY: Final = "kafka.ssl.truststore.location"
_PASSWORD: Final = "OFFSETSTORE_TRUSTSTORE_PASSWORD"  # noqa: S105 - the variable that keytool gets it in
_SECONDS: Final = 30
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_JKS: Final = b"\xfe\xed\xfe\xed"
_PKCS12: Final = b"\x30"  # ASN.1, a sequence


def authorities(location: str, password: str | None) -> str:
    """Read a truststore's authorities with Java's keytool, as PEM. As in Java, the format is detected.

    :raises ConfigurationError: no such file, no keytool, a wrong password, no certificate. Never shows the password.
    """
    if not Path(location).is_file():
        _refuse_truststore("there is no such file on this machine")
    keytool = _keytool()
    if keytool is None:
        _refuse_truststore("librdkafka can't read Java's truststores, and there is no keytool to convert it")
    # In English, since what it prints is parsed below.
    command = [keytool, "-J-Duser.language=en", "-list", "-rfc", "-keystore", location]
    environment = dict(os.environ)
    if password is not None:
        # By the environment: every user can see a command line.
        command += ["-storepass:env", _PASSWORD]
        environment[_PASSWORD] = password
    try:
        done = subprocess.run(  # noqa: S603 - Java's own program
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        _refuse_truststore("keytool could not be run")
    if done.returncode:
        said = re.search(r"^keytool error: (.*)", done.stdout, re.MULTILINE)
        shown = f" ({said[1]})" if said and not (password and password in said[1]) else ""
        _refuse_truststore(f"keytool can't read it{shown}")
    entries = re.split(r"^Alias name: ", done.stdout, flags=re.MULTILINE)[1:]
    # An entry with a key has a chain: Java trusts the key's own certificate, which comes first, and so do we.
    certificates = [match[0] for entry in entries if (match := _CERTIFICATE.search(entry))]
    if not certificates:
        _refuse_truststore("it shows no certificate; a PKCS12 store shows none without its password")
    return "\n".join(certificates) + "\n"


def keystore_format(location: str) -> str | None:
    """Detect the file's own format: ``JKS``, ``PKCS12`` or neither. Java reads both, whichever the type says."""
    try:
        with Path(location).open("rb") as file:
            start = file.read(len(_JKS))
    except OSError:
        return None
    if start == _JKS:
        return "JKS"
    return "PKCS12" if start.startswith(_PKCS12) else None


def _keytool() -> Path | None:
    """Find keytool beside the Java that Spark uses: JAVA_HOME's, then PATH's."""
    home, java = os.environ.get("JAVA_HOME"), shutil.which("java")
    directories = [Path(home) / "bin"] if home else []
    if java:
        directories += [Path(java).parent, Path(java).resolve().parent]
    names = (str(directory / "keytool") for directory in directories)
    return next((Path(program) for name in names if (program := shutil.which(name))), None)


def _refuse_truststore(what: str) -> NoReturn:
    raise ConfigurationError(
        f"{_KEY}: {what}",
        expected="a truststore that can be read where the job starts, and ssl.truststore.password",
        next_step=(
            "Correct it, or export the authorities with `keytool -exportcert -rfc -alias … -keystore … -file ca.pem`, "
            "and give Spark and the Broker kafka.ssl.truststore.type=PEM and that file."
        ),
    )


KEY: Final = "kafka.sasl.jaas.config"

# Java reads the line with a StreamTokenizer: words, "=", ";", and strings in either quote with backslash escapes.
_TOKEN: Final = re.compile(
    r"""\s*(?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>(?:\\.|[^'\\])*)'|(?P<word>[^\s=;"']+)|(?P<mark>[=;]))"""
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_PASSWORD_MODULES: Final = {"PlainLoginModule": ("PLAIN",), "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512")}


@dataclass(frozen=True, slots=True)
class Login:
    """A user name and a password, and the SASL mechanisms that the login module stands for."""

    username: str
    password: str = field(repr=False)
    mechanisms: tuple[str, ...]


def parse_jaas(line: str) -> Login:
    """Read ``…PlainLoginModule required username="…" password="…";``, or the same of ``ScramLoginModule``.

    :raises ConfigurationError: another login module, several of them, no user name or no password, a delegation token
        (librdkafka supports none). The message never holds a value.
    """
    tokens = _tokens(line)
    match tokens:
        case [_, flag, *given, ";"] if flag.lower() in _FLAGS and ";" not in given:
            pass
        case _:
            _refuse_jaas("it must name exactly one login module")
    # Without its package: some platforms ship Kafka's classes under another one.
    module = tokens[0].rpartition(".")[2]
    if module not in _PASSWORD_MODULES:
        _refuse_jaas(f"unknown login module {module}")
    if len(given) % 3 or any(mark != "=" for mark in given[1::3]):
        _refuse_jaas("options must be name=value")
    options = dict(zip(given[0::3], given[2::3], strict=True))
    if options.get("tokenauth", "").lower() == "true":
        _refuse_jaas("librdkafka does not support delegation tokens (tokenauth)")
    if not options.get("username") or not options.get("password"):
        _refuse_jaas(f"{module} needs a username and a password")
    return Login(options["username"], options["password"], _PASSWORD_MODULES[module])


def _tokens(line: str) -> list[str]:
    tokens: list[str] = []
    position, line = 0, line.rstrip()
    while position < len(line):
        match = _TOKEN.match(line, position)
        if match is None:
            _refuse_jaas("a quote is not closed")
        quoted = match["double"] if match["double"] is not None else match["single"]
        tokens.append(match["word"] or match["mark"] if quoted is None else _ESCAPE.sub(r"\1", quoted))
        position = match.end()
    return tokens


def _refuse_jaas(what: str) -> NoReturn:
    raise ConfigurationError(
        f"{KEY}: {what}",
        expected='…PlainLoginModule or …ScramLoginModule, required username="…" password="…";',
        next_step="Correct it, or pass librdkafka's own settings: Broker({'sasl.mechanism': …, …}, topics=[…]).",
    )


_OWN: Final = "Spark keeps its options; give the Broker librdkafka's own settings: "
_WITHOUT: Final = (
    " Or claim without a broker: store.claim(group, topics=[...]), and the query keeps its own checkpoint."
)
_BEARER: Final = "'security.protocol': 'SASL_SSL', 'sasl.mechanism': 'OAUTHBEARER'"
_MSK: Final = (
    f"{_OWN}Broker({{'bootstrap.servers': ..., {_BEARER}, 'oauth_cb': token}}, topics=[...]), where token(_) returns "
    "the token of MSKAuthTokenProvider.generate_auth_token(region), of the package aws-msk-iam-sasl-signer-python, and "
    f"when it expires, in seconds since 1970.{_WITHOUT}"
)
_OAUTHBEARER: Final = (
    f"{_OWN}Broker({{'bootstrap.servers': ..., {_BEARER}, 'sasl.oauthbearer.method': 'oidc', "
    "'sasl.oauthbearer.client.id': ..., 'sasl.oauthbearer.client.secret': ..., "
    "'sasl.oauthbearer.token.endpoint.url': ...}, topics=[...]); or 'oauth_cb': a function of one argument that "
    f"returns a token, and when it expires, in seconds since 1970.{_WITHOUT}"
)
_GSSAPI: Final = (
    "confluent-kafka's wheels have no Kerberos: build it with libsasl2 (pip install --no-binary confluent-kafka "
    "confluent-kafka), and give the Broker sasl.mechanism=GSSAPI, sasl.kerberos.service.name, sasl.kerberos.principal "
    f"and sasl.kerberos.keytab.{_WITHOUT}"
)
_INSTEAD: Final = {"AWS_MSK_IAM": _MSK, "OAUTHBEARER": _OAUTHBEARER, "GSSAPI": _GSSAPI}


def instead_of(mechanism: object) -> str | None:
    """What to do about a mechanism that only Java's client has, or has in another form; ``None`` for any other."""
    return _INSTEAD.get(str(mechanism).strip().upper())


def check_token_source(settings: Mapping[str, Any]) -> None:
    """Check that OAUTHBEARER has a source of tokens: without one, librdkafka would wait until the time is up.

    :raises ConfigurationError: it has none.
    """
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
    ways = ("oauth_cb", "sasl.oauthbearer.method", "sasl.oauthbearer.config")
    if str(mechanism).strip().upper() == "OAUTHBEARER" and not any(settings.get(way) for way in ways):
        raise ConfigurationError(
            "sasl.mechanism is OAUTHBEARER, and nothing says where tokens come from",
            expected="oauth_cb, or sasl.oauthbearer.method=oidc",
            next_step=_OAUTHBEARER,
        )


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
