"""A broker that demands credentials, TLS, or both: the same options serve Spark's reader and the Broker."""

from __future__ import annotations

import re
import subprocess
import time
from base64 import encodebytes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from offsetstore import Append, Broker, TopicPartition
from offsetstore.errors import BrokerRefused, ConfigurationError
from offsetstore.kafka.admin import create_topic
from offsetstore.local.kafka.properties import SaslUser
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.spark.java import find_java
from offsetstore.offsets import CommittedOffset
from tests.support.transforms import EVENTS, events
from tests.support.world import World

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True)
class Ways:
    """The options with which one gets in, without what is to be read."""

    kafka: KafkaBroker
    spark: SparkSession

    def scram(self, mechanism: str = "SCRAM-SHA-256", *, password: str | None = None) -> dict[str, str]:
        user: SaslUser = self.kafka.user
        return {
            "kafka.bootstrap.servers": self.kafka.sasl_bootstrap_servers,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": mechanism,
            "kafka.sasl.jaas.config": (
                f'{SCRAM} required username="{user.name}" password="{password or user.password}";'
            ),
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

    def with_client_in_pem(self, file: Path) -> dict[str, str]:
        file.write_text(
            _pem(self.spark, self.kafka.secured.certificates.client, self.kafka.secured.certificates.password)
        )
        return {"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.location": str(file)}


def _pem(spark: SparkSession, keystore: Path, password: str) -> str:
    """Key and certificates of a keystore. Java gives the key to a program alone, keytool prints the certificates."""
    context: Any = spark.sparkContext
    gateway, java = context._gateway, context._jvm.java
    characters = gateway.new_array(gateway.jvm.char, len(password))
    for number, character in enumerate(password):
        characters[number] = character
    store = java.security.KeyStore.getInstance(java.io.File(str(keystore)), characters)
    plain = java.lang.Class.forName("java.security.spec.PKCS8EncodedKeySpec")
    key = java.security.KeyFactory.getInstance("EC").getKeySpec(store.getKey("client", characters), plain).getEncoded()
    shown = subprocess.run(
        [find_java().keytool, "-list", "-rfc", "-keystore", keystore, "-storepass", password],
        capture_output=True,
        text=True,
        check=True,
    )
    chain = re.findall(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n", shown.stdout, re.DOTALL)
    return "".join(["-----BEGIN PRIVATE KEY-----\n", encodebytes(key).decode(), "-----END PRIVATE KEY-----\n", *chain])


@pytest.fixture(scope="module")
def secured_kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker(secured=True, heap="256m") as kafka:
        yield kafka


@pytest.fixture(scope="module")
def ways(secured_kafka: KafkaBroker, offsetstore_spark: SparkSession) -> Ways:
    return Ways(secured_kafka, offsetstore_spark)


@pytest.fixture
def topic(secured_kafka: KafkaBroker) -> str:
    name = f"topic-{uuid4().hex[:12]}"
    create_topic(secured_kafka.bootstrap_servers, name)
    return name


@pytest.fixture
def world(ways: Ways, world_of: Callable[[KafkaBroker], World]) -> World:
    return world_of(ways.kafka)


def ways_in(ways: Ways, tmp_path: Path) -> dict[str, dict[str, str]]:
    address = {"kafka.bootstrap.servers": ways.kafka.secured.sasl_ssl, "kafka.security.protocol": "SASL_SSL"}
    return {
        "scram": ways.scram(),
        "pkcs12": ways.tls() | ways.pkcs12(),
        "mutual": ways.mutual() | ways.with_client(),
        "scram and jks": ways.scram("SCRAM-SHA-512") | ways.jks() | address,
        "mutual in pem": ways.mutual() | ways.with_client_in_pem(tmp_path / "client.pem"),
    }


def test_resolver_sink_and_mirror_work_with_the_readers_options(
    ways: Ways, world: World, topic: str, tmp_path: Path
) -> None:
    """In each way Spark reads, and the mirror writes; a job in the last one."""
    world.database.execute(EVENTS)
    world.produce(topic, ["a", "b"])
    given: dict[str, str] = {}
    for number, options in enumerate(ways_in(ways, tmp_path).values(), 3):
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
    assert world.database.column("SELECT value FROM events ORDER BY value") == ["3", "4", "5", "6", "7", "a", "b"]
    broker.close()


def refusal(options: dict[str, str], *, timeout: float = 4.0) -> str:
    """How each of the questions is refused, none later than it may be."""
    broker = Broker.from_spark(options, timeout=timeout)
    told: list[str] = []
    for ask in (
        lambda: broker.view("billing", ["payments"]),
        lambda: broker.commit("billing", {TopicPartition("payments", 0): CommittedOffset(1)}),
    ):
        started = time.monotonic()
        with pytest.raises(BrokerRefused) as refused:
            ask()
        assert time.monotonic() - started < timeout + 15
        told.append(str(refused.value))
    return "\n".join(told)


@pytest.mark.behaviour("START-16")
def test_a_wrong_password_is_refused_and_not_repeated(ways: Ways) -> None:
    told = refusal(ways.scram("SCRAM-SHA-512", password="Hunter2-never-shown"), timeout=15)
    assert told.count("Kafka refused the credentials") == 2
    assert "Hunter2" not in told


@pytest.mark.behaviour("START-16")
def test_a_broker_whose_certificate_nobody_has_signed_is_refused(ways: Ways) -> None:
    told = refusal(ways.tls())
    assert told.count("certificate verify failed") == 2
    assert "certificate authorities" in told


def test_a_broker_that_asks_for_a_certificate_says_no_without_one(ways: Ways) -> None:
    told = refusal(ways.mutual())
    assert told.count("could not establish a TLS connection to Kafka") == 2
    assert "client certificate" in told


def test_a_truststore_that_cannot_be_read_is_refused_with_what_to_do(
    ways: Ways, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = ways.tls() | ways.pkcs12()
    without_password = {key: value for key, value in good.items() if not key.endswith("password")}
    for bad, reason in (
        (good | {"kafka.ssl.truststore.password": "Hunter2-never-shown"}, "password was incorrect"),
        (without_password, "shows no certificate"),
        (good | {"kafka.ssl.truststore.location": str(tmp_path / "none.p12")}, "no such file"),
        (good | {"kafka.ssl.truststore.type": "BCFKS"}, "expected PEM, PKCS12 or JKS"),
    ):
        with pytest.raises(ConfigurationError, match=reason) as refused:
            Broker.from_spark(bad)
        assert "Hunter2" not in str(refused.value)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigurationError, match="no keytool") as refused:
        Broker.from_spark(good)
    assert "ssl.truststore.type=PEM" in refused.value.next_step


def test_an_old_keystore_of_javas_is_refused_with_how_to_convert_it(ways: Ways) -> None:
    certificates = ways.kafka.secured.certificates
    options = ways.mutual() | {"kafka.ssl.keystore.location": str(certificates.old_truststore)}
    with pytest.raises(ConfigurationError, match="deststoretype PKCS12"):
        Broker.from_spark(options)
    # What keytool makes today is PKCS12, and Java reads it whatever the type says.
    Broker.from_spark(options | {"kafka.ssl.keystore.location": str(certificates.client)})
