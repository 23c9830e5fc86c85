"""A broker that demands credentials, TLS, or both: the same options serve Spark's reader and the Broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from offsetstore import Append, Broker, TopicPartition
from offsetstore.errors import BrokerRefused, ConfigurationError
from offsetstore.kafka.admin import create_topic
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.kafka_properties import SaslUser
from offsetstore.offsets import CommittedOffset
from tests.support.transforms import EVENTS, events
from tests.support.world import World

SECRET = "Hunter2-never-shown"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True)
class Ways:
    """The options with which one gets in, without what is to be read."""

    kafka: KafkaBroker

    def scram(self, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        user: SaslUser = self.kafka.user
        return {
            "kafka.bootstrap.servers": self.kafka.sasl_bootstrap_servers,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": mechanism,
            "kafka.sasl.jaas.config": f'{SCRAM} required username="{user.name}" password="{user.password}";',
        }

    def tls(self) -> dict[str, str]:
        """With an authority that nobody has heard of."""
        return {"kafka.bootstrap.servers": self.kafka.secured.ssl, "kafka.security.protocol": "SSL"}

    def mutual(self) -> dict[str, str]:
        """As `tls`, where the broker asks the client for a certificate."""
        return self.tls() | self.pem() | {"kafka.bootstrap.servers": self.kafka.secured.mutual}

    def pkcs12(self) -> dict[str, str]:
        certificates = self.kafka.secured.certificates
        return {
            "kafka.ssl.truststore.type": "PKCS12",
            "kafka.ssl.truststore.location": str(certificates.truststore),
            "kafka.ssl.truststore.password": certificates.password,
        }

    def jks(self) -> dict[str, str]:
        certificates = self.kafka.secured.certificates
        return {
            "kafka.ssl.truststore.location": str(certificates.old_truststore),
            "kafka.ssl.truststore.password": certificates.password,
        }

    def pem(self) -> dict[str, str]:
        authority = self.kafka.secured.certificates.authority_pem
        return {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(authority)}

    def with_client(self) -> dict[str, str]:
        certificates = self.kafka.secured.certificates
        return {
            "kafka.ssl.keystore.type": "PKCS12",
            "kafka.ssl.keystore.location": str(certificates.client),
            "kafka.ssl.keystore.password": certificates.password,
        }


@pytest.fixture(scope="module")
def secured_kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker(secured=True, heap="256m") as kafka:
        yield kafka


@pytest.fixture(scope="module")
def ways(secured_kafka: KafkaBroker) -> Ways:
    return Ways(secured_kafka)


@pytest.fixture
def topic(secured_kafka: KafkaBroker) -> str:
    name = f"topic-{uuid4().hex[:12]}"
    create_topic(secured_kafka.bootstrap_servers, name)
    return name


@pytest.fixture
def world(ways: Ways, world_of: Callable[[KafkaBroker], World]) -> World:
    return world_of(ways.kafka)


def test_resolver_sink_and_mirror_work_with_the_readers_options(ways: Ways, world: World, topic: str) -> None:
    """In each way Spark reads, and the mirror writes; a job in the last one."""
    world.database.execute(EVENTS)
    world.produce(topic, ["a", "b"])
    address = {"kafka.bootstrap.servers": ways.kafka.secured.sasl_ssl, "kafka.security.protocol": "SASL_SSL"}
    given: dict[str, str] = {}
    for number, options in enumerate(
        (
            ways.scram(),
            ways.tls() | ways.pkcs12(),
            ways.scram("SCRAM-SHA-512") | ways.jks() | address,
            ways.mutual() | ways.with_client(),
        ),
        3,
    ):
        given = options | {"subscribe": topic}
        world.produce(topic, [str(number)])
        assert world.spark.read.format("kafka").options(**given).load().count() == number
        broker = Broker.from_spark(given)
        copied = {TopicPartition(topic, 0): CommittedOffset(number, "landed")}
        broker.commit(world.group, copied)
        assert broker.view(world.group, [topic]).committed == copied
        broker.close()

    broker = Broker.from_spark(given)
    claim = world.store.claim(f"{world.group}-2", broker)
    reader = world.spark.readStream.format("kafka").options(**given)
    stream = reader.option("startingOffsets", claim.starting_offsets).load()
    world.run(claim, events, Append("events"), stream=stream)
    assert world.database.column("SELECT value FROM events ORDER BY value") == ["3", "4", "5", "6", "a", "b"]
    broker.close()


@pytest.mark.behaviour("START-16")
@pytest.mark.parametrize(
    ("way", "words"),
    [
        (Ways.tls, "certificate verify failed.*certificate authorities"),
        (Ways.mutual, "could not establish a TLS connection to Kafka.*client certificate"),
    ],
    ids=["a certificate that nobody has signed", "none of the client's"],
)
def test_who_is_not_let_in_is_told_so(ways: Ways, way: Callable[[Ways], dict[str, str]], words: str) -> None:
    with pytest.raises(BrokerRefused, match=f"(?s){words}"):
        Broker.from_spark(way(ways), timeout=4).view("billing", ["payments"])


def test_a_keystore_that_cannot_be_read_is_refused_with_what_to_do(
    ways: Ways, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = ways.tls() | ways.pkcs12()
    mutual, old = ways.mutual(), str(ways.kafka.secured.certificates.old_truststore)
    without_password = {key: value for key, value in good.items() if not key.endswith("password")}
    for bad, reason in (
        (good | {"kafka.ssl.truststore.password": SECRET}, "password was incorrect"),
        (without_password, "shows no certificate"),
        (good | {"kafka.ssl.truststore.location": str(tmp_path / "none.p12")}, "no such file"),
        (good | {"kafka.ssl.truststore.type": "BCFKS"}, "expected PEM, PKCS12 or JKS"),
        (mutual | {"kafka.ssl.keystore.location": old}, "deststoretype PKCS12"),
    ):
        with pytest.raises(ConfigurationError, match=reason) as refused:
            Broker.from_spark(bad)
        assert SECRET not in str(refused.value)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigurationError, match="no keytool") as refused:
        Broker.from_spark(good)
    assert "ssl.truststore.type=PEM" in refused.value.next_step
