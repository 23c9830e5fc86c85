"""The settings of a one-node Kafka: KRaft, listeners on the loopback, few internal partitions.

Java's keytool makes its certificates: an authority's, a server's and a client's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from offsetstore.errors import BrokerUnavailable, MissingDependency
from offsetstore.local.java import find_java
from offsetstore.local.servers import LOOPBACK, free_port

STARTED = "Kafka Server started"
"""What the broker's log says once it serves all its listeners."""

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
"""Kafka's SCRAM mechanisms."""

_PASSWORD = "OFFSETSTORE_KEYTOOL_PASSWORD"  # noqa: S105 - the variable that passes it on
_SECONDS = 60

LOG4J = f"""\
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${{sys:offsetstore.log}}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %-5p %c{{1}} %m%n
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
# Says "{STARTED}".
logger.started.name = kafka.server.KafkaRaftServer
logger.started.level = info
"""


class KafkaPorts(NamedTuple):
    """Where the broker listens: without credentials, with them, and for its own controller.

    A secured broker also listens with TLS, with TLS and credentials, and with TLS that asks clients for a certificate.
    """

    plain: int
    sasl: int
    controller: int
    ssl: int = 0
    sasl_ssl: int = 0
    mutual: int = 0

    @classmethod
    def free(cls) -> KafkaPorts:
        """Choose ports that are free now, for a broker that is not secured."""
        return cls(*_free(set()))

    def secured(self) -> KafkaPorts:
        """Add free ports for the listeners of a secured broker, unless it has them."""
        return self if self.ssl else KafkaPorts(*self[:3], *_free({*self}))


def _free(others: set[int]) -> list[int]:
    chosen: set[int] = set()
    while len(chosen) < 3:  # noqa: PLR2004 - as many as of each kind
        chosen |= {free_port()} - others
    return [*chosen]


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files. All Java stores have the same password; the directory's mode keeps others out."""

    directory: Path
    password: str = "offsetstore"  # noqa: S105

    @property
    def authority_pem(self) -> Path:
        """The authority's certificate, as librdkafka and OpenSSL read it."""
        return self.directory / "ca.pem"

    @property
    def truststore(self) -> Path:
        """The authority's certificate in PKCS12, as Java reads it."""
        return self.directory / "truststore.p12"

    @property
    def old_truststore(self) -> Path:
        """The authority's certificate in Java's older format, JKS."""
        return self.directory / "truststore.jks"

    @property
    def server(self) -> Path:
        """The server's certificate and key, in PKCS12."""
        return self.directory / "server.p12"

    @property
    def client(self) -> Path:
        """A client's certificate and key, in PKCS12."""
        return self.directory / "client.p12"

    def make(self) -> None:
        """Make the certificates, unless they exist. Only the owner can enter the directory.

        :raises BrokerUnavailable: keytool fails; with its message.
        :raises MissingDependency: no Java, or one without keytool.
        """
        # The client's is made last: if it exists, so do the others.
        if self.client.exists():
            return
        # What an earlier attempt has left, keytool would not write again.
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = ("-keystore", "all.p12")
        key = ("-genkeypair", *store, "-keyalg", "EC", "-groupname", "secp256r1", "-validity", "365")
        self._keytool(*key, "-alias", "ca", "-dname", "CN=offsetstore authority", "-ext", "bc:critical=ca:true")
        names = ("-ext", f"san=ip:{LOOPBACK},dns:localhost")
        self._keytool(*key, "-alias", "server", "-dname", "CN=localhost", "-signer", "ca", *names)
        self._keytool(*key, "-alias", "client", "-dname", "CN=client", "-signer", "ca")
        authority = str(self.authority_pem)
        self._keytool("-exportcert", "-rfc", *store, "-alias", "ca", "-file", authority)
        for truststore, kind in ((self.truststore, "PKCS12"), (self.old_truststore, "JKS")):
            kept = ("-keystore", str(truststore), "-storetype", kind)
            self._keytool("-importcert", "-noprompt", "-alias", "ca", "-file", authority, *kept)
        for alias, keystore in (("server", self.server), ("client", self.client)):
            source = ("-srckeystore", "all.p12", "-srcstorepass:env", _PASSWORD, "-srcalias", alias)
            self._keytool("-importkeystore", *source, "-destkeystore", str(keystore), store="deststorepass")

    def _keytool(self, *arguments: str, store: str = "storepass") -> None:
        keytool = find_java().keytool
        try:
            done = subprocess.run(  # noqa: S603 - our own command line
                [keytool, "-J-XX:TieredStopAtLevel=1", *arguments, f"-{store}:env", _PASSWORD],
                cwd=self.directory,
                env={**os.environ, _PASSWORD: self.password},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS,
            )
        except FileNotFoundError:
            raise MissingDependency(
                "this Java has no keytool to make certificates with",
                found=keytool,
                next_step="Set JAVA_HOME to a complete Java runtime.",
            ) from None
        if done.returncode:
            raise BrokerUnavailable(
                "could not make the broker's certificates",
                found=(done.stdout + done.stderr).strip(),
                next_step=f"See the message above: it is {keytool}'s.",
            )


@dataclass(frozen=True, slots=True)
class SecuredListeners:
    """How a client reaches a secured broker. ``mutual`` is SSL with a client's certificate."""

    ssl: str
    sasl_ssl: str
    mutual: str
    certificates: Certificates


@dataclass(frozen=True, slots=True)
class SaslUser:
    """The user that listeners with credentials accept (mechanism PLAIN, on a secured broker SCRAM too)."""

    name: str = "offsetstore"
    password: str = "offsetstore"  # noqa: S105 - of a broker that only this machine reaches

    @property
    def jaas(self) -> str:
        """The listener's JAAS configuration."""
        return f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{self.name}="{self.password}";'

    @property
    def scram(self) -> list[str]:
        """StorageTool's arguments that add the user: SCRAM's users are part of the cluster's data."""
        return [f"--add-scram={mechanism}=[name={self.name},password={self.password}]" for mechanism in SCRAM]


def server_properties(ports: KafkaPorts, user: SaslUser, data: Path) -> dict[str, str]:
    """Return the broker's configuration. Topics are never created automatically."""
    listeners = f"PLAINTEXT://{LOOPBACK}:{ports.plain},SASL_PLAINTEXT://{LOOPBACK}:{ports.sasl}"  # the broker's
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{ports.controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{ports.controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ("PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": user.jaas,
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "true",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # After a SIGKILL, the next start waits until the controller has forgotten the dead broker: 9 s by default.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        # A deleted topic's files, and records below a log's new beginning, are removed soon. With 0, Kafka would look
        # for some each millisecond.
        "log.segment.delete.delay.ms": "100",
        "log.retention.ms": "-1",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": "8388608",
    }


def secured_properties(
    settings: dict[str, str], ports: KafkaPorts, user: SaslUser, certificates: Certificates
) -> dict[str, str]:
    """Return the configuration with listeners for TLS, and with SCRAM on all listeners with credentials."""
    added = f"SSL://{LOOPBACK}:{ports.ssl},SASL_SSL://{LOOPBACK}:{ports.sasl_ssl},MUTUAL://{LOOPBACK}:{ports.mutual}"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    logins = {"PLAIN": user.jaas, **dict.fromkeys(SCRAM, scram)}
    return {
        **settings,
        "listeners": f"{settings['listeners']},{added}",
        "advertised.listeners": f"{settings['advertised.listeners']},{added}",
        "listener.security.protocol.map": (
            f"{settings['listener.security.protocol.map']},SSL:SSL,SASL_SSL:SASL_SSL,MUTUAL:SSL"
        ),
        "sasl.enabled.mechanisms": ",".join(logins),
        **{
            f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config": login
            for listener in ("sasl_plaintext", "sasl_ssl")
            for mechanism, login in logins.items()
        },
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(certificates.server),
        "ssl.keystore.password": certificates.password,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(certificates.truststore),
        "ssl.truststore.password": certificates.password,
        "listener.name.mutual.ssl.client.auth": "required",
    }


def as_properties(settings: dict[str, str]) -> str:
    """Return a properties file's text; a backslash is doubled, as Java would read it as an escape."""
    return "".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in settings.items())
