"""Sets of jars, as Ivy is asked for them."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from offsetstore.local.spark.artifacts import KAFKA_BROKER, POSTGRES_JDBC, earlier_connectors, spark_kafka_connector


def test_the_connector_has_the_version_of_spark_and_the_token_provider_that_can_be_had() -> None:
    dependencies = ET.fromstring(spark_kafka_connector("4.1.7").ivy()).find("dependencies")  # noqa: S314 - our own text
    assert dependencies is not None
    asked = [(found.get("name"), found.get("rev")) for found in dependencies.iter("dependency")]
    overridden = [(found.get("module"), found.get("rev")) for found in dependencies.iter("override")]
    assert asked == [("spark-sql-kafka-0-10_2.13", "4.1.7")]
    assert overridden == [("spark-token-provider-kafka-0-10_2.13", "4.0.0")]


def test_each_content_has_a_directory_of_its_own() -> None:
    sets = [KAFKA_BROKER, POSTGRES_JDBC, spark_kafka_connector("4.1.7"), spark_kafka_connector("4.2.0")]
    assert len({jar_set.directory_name for jar_set in sets}) == 4


def test_instead_of_a_connector_that_is_not_published_earlier_ones_of_the_same_minor_version_will_do() -> None:
    assert earlier_connectors("4.2.2") == [spark_kafka_connector("4.2.1"), spark_kafka_connector("4.2.0")]
    assert earlier_connectors("4.2.0") == []
    assert earlier_connectors("4.2.0.dev1") == []
