"""Where downloads are kept, how Ivy is asked for sets of jars, and ports that stay ours while a server restarts."""

from __future__ import annotations

import socket
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from offsetstore.local import cache_directory
from offsetstore.local.jars import KAFKA_BROKER, POSTGRES_JDBC, earlier_connectors, spark_kafka_connector
from offsetstore.local.servers import LOOPBACK, answers, free_port, is_free


def test_the_user_chooses_else_the_platform_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("OFFSETSTORE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == Path("/home/somebody/.cache/offsetstore")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/somebody")
    assert cache_directory() == Path("/var/cache/somebody/offsetstore")
    monkeypatch.setenv("OFFSETSTORE_CACHE", "~/elsewhere")
    assert cache_directory() == Path("/home/somebody/elsewhere")


def test_a_port_is_free_until_somebody_listens_there() -> None:
    assert all(20_000 <= free_port() < 32_000 for _ in range(50)), "below those of outgoing connections"
    port = free_port()
    assert is_free(port)
    assert not answers(port)
    with socket.create_server((LOOPBACK, port)):
        assert not is_free(port)
        assert answers(port)


def test_the_connector_has_the_version_of_spark_and_the_token_provider_that_can_be_had() -> None:
    dependencies = ET.fromstring(spark_kafka_connector("4.1.7").ivy()).find("dependencies")  # noqa: S314 - our own text
    assert dependencies is not None
    asked = [(found.get("name"), found.get("rev")) for found in dependencies.iter("dependency")]
    overridden = [(found.get("module"), found.get("rev")) for found in dependencies.iter("override")]
    assert asked == [("spark-sql-kafka-0-10_2.13", "4.1.7")]
    assert overridden == [("spark-token-provider-kafka-0-10_2.13", "4.0.0")]
    sets = [KAFKA_BROKER, POSTGRES_JDBC, spark_kafka_connector("4.1.7"), spark_kafka_connector("4.2.0")]
    assert len({jar_set.directory_name for jar_set in sets}) == 4


def test_instead_of_a_connector_that_is_not_published_earlier_ones_of_the_same_minor_version_will_do() -> None:
    assert earlier_connectors("4.2.2") == [spark_kafka_connector("4.2.1"), spark_kafka_connector("4.2.0")]
    assert earlier_connectors("4.2.0") == []
    assert earlier_connectors("4.2.0.dev1") == []
