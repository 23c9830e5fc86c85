"""The settings of a one-node Kafka: KRaft, listeners on the loopback, as few internal partitions as possible."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offsetstore.local.free_ports import LOOPBACK, free_port
from offsetstore.local.kafka.certificates import Certificates

STARTED = "Kafka Server started"
"""What the broker's log says when it serves all its listeners."""

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
"""Kafka's mechanisms of that kind."""

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


@dataclass(frozen=True, slots=True)
class KafkaPorts:
    """Where the broker listens: without credentials, with them, and for its own controller."""

    plain: int
    sasl: int
    controller: int

    @classmethod
    def free(cls) -> KafkaPorts:
        """Choose three that are free now."""
        chosen: set[int] = set()
        while len(chosen) < 3:  # noqa: PLR2004 - as many as there are fields
            chosen.add(free_port())
        return cls(*chosen)

    @property
    def all(self) -> tuple[int, int, int]:
        """The three."""
        return (self.plain, self.sasl, self.controller)


@dataclass(frozen=True, slots=True)
class SecuredPorts:
    """Where a secured broker listens as well: TLS, TLS with credentials, TLS that asks the client for a certificate."""

    ssl: int
    sasl_ssl: int
    mutual: int

    @classmethod
    def free(cls, *, without: tuple[int, ...]) -> SecuredPorts:
        """Choose three others that are free now."""
        chosen: set[int] = set()
        while len(chosen) < 3:  # noqa: PLR2004 - as many as there are fields
            chosen |= {free_port()} - {*without}
        return cls(*chosen)

    @property
    def all(self) -> tuple[int, int, int]:
        """The three."""
        return (self.ssl, self.sasl_ssl, self.mutual)


@dataclass(frozen=True, slots=True)
class SecuredListeners:
    """How a client reaches a secured broker. ``mutual`` is the protocol SSL, with a client's certificate."""

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
        return [f"--add-scram={each}=[name={self.name},password={self.password}]" for each in SCRAM]


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
        # After a SIGKILL the next start waits until the controller has forgotten the broker that died: 9 s by default.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        # A deleted topic's files are removed at once, and so are the records below a log's new beginning.
        "log.segment.delete.delay.ms": "0",
        "file.delete.delay.ms": "0",
        "log.retention.ms": "-1",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": "8388608",
    }


def secured_properties(
    settings: dict[str, str], ports: SecuredPorts, user: SaslUser, certificates: Certificates
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
    """Write a properties file; characters that Java would misread are escaped."""
    return "".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in settings.items())
