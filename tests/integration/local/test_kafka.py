"""The broker that needs no Docker."""

from __future__ import annotations

import os
import time
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from pyspark.sql import SparkSession

from offsetstore.errors import BrokerRefused, BrokerUnavailable
from offsetstore.kafka.admin import NewRecord, create_partitions, create_topic, delete_records, delete_topic, produce
from offsetstore.local import cache_directory
from offsetstore.local.java import archive_of
from offsetstore.local.kafka import KafkaBroker
from offsetstore.testing.fixtures import NewTopic
from tests.support.waiting import wait_until


def watermarks(broker: KafkaBroker, topic: str, partition: int = 0) -> tuple[int, int]:
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - ours is another one

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "-"})

    def look() -> tuple[int, int] | None:
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
        except KafkaException as error:  # the leader may not know yet that it leads
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return None

    try:
        found = wait_until(look)
        assert found is not None
        return found
    finally:
        consumer.close()


def test_records_survive_sigkill_on_the_same_ports(tmp_path: Path) -> None:
    with KafkaBroker(directory=tmp_path / "kafka") as broker:
        pid, servers = broker.pid, broker.bootstrap_servers
        assert pid is not None
        assert os.getpgid(pid) != os.getpgid(0)  # Ctrl-C does not reach it
        create_topic(servers, "t")
        produce(servers, "t", [NewRecord(b"1"), NewRecord(b"2")])
        broker.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        broker.start()
        assert broker.bootstrap_servers == servers
        assert watermarks(broker, "t") == (0, 2)


def test_a_broker_starts_from_an_archive_of_its_classes(offsetstore_kafka: KafkaBroker) -> None:
    mapped = Path(f"/proc/{offsetstore_kafka.pid}/maps").read_text()

    assert str(cache_directory() / "classes" / "kafka-") in mapped


def test_spark_starts_from_an_archive_of_its_classes(offsetstore_spark: SparkSession) -> None:
    java: Any = offsetstore_spark.sparkContext._jvm
    mapped = Path(f"/proc/{java.java.lang.ProcessHandle.current().pid()}/maps").read_text()

    assert str(cache_directory() / "classes") in mapped


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (BrokerUnavailable("no broker starts with it"), "no broker starts with it"),
        (CalledProcessError(1, "java", stderr="the heap is too small"), "the heap is too small"),
    ],
    ids=["Kafka", "Spark"],
)
def test_where_no_archive_can_be_made_the_program_starts_without_and_an_hour_later_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, text: str
) -> None:
    told: list[str] = []
    monkeypatch.setattr("offsetstore.local.java.cache_directory", lambda: tmp_path)

    def fails(options: tuple[str, ...]) -> None:
        assert options[0].startswith("-XX:ArchiveClassesAtExit=")
        raise error

    assert [archive_of("Kafka", ["a jar"], fails, notice=told.append) for _ in range(2)] == [None, None]
    assert told == ["Kafka: archiving its classes for quicker starts"]
    assert f"it starts as usual: {text}" in caplog.text
    [mark] = (tmp_path / "classes").glob("*.jsa")
    then = time.time() - 3601
    os.utime(mark, (then, then))

    def works(options: tuple[str, ...]) -> None:
        Path(options[0].partition("=")[2]).write_text("classes")

    for _ in range(2):
        assert archive_of("Kafka", ["a jar"], works, notice=told.append) == mark
    assert len(told) == 2


def test_a_broker_that_ends_is_told_from_one_that_is_slow_and_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailable, match=r"log\.segment\.bytes"):
        KafkaBroker(settings={"log.segment.bytes": "nonsense"}).start()
    with pytest.raises(BrokerUnavailable, match=r"did not start within 0 s"):
        KafkaBroker(start_seconds=0).start()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").touch()  # it looks formatted, and is not
    with pytest.raises(BrokerUnavailable, match=r"ended while it started; found (.|\n)*node ID not found"):
        KafkaBroker(directory=tmp_path).start()


def test_topics_are_made_filled_cut_grown_and_deleted(
    offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic
) -> None:
    servers, topic = offsetstore_kafka.bootstrap_servers, offsetstore_topic(1)
    with pytest.raises(BrokerRefused, match=f"creating topic {topic}"):
        create_topic(servers, topic)
    assert produce(servers, topic, (NewRecord(b"%d" % number, key=b"k") for number in range(1000))) == 1000
    assert watermarks(offsetstore_kafka, topic) == (0, 1000)
    delete_records(servers, topic, {0: 400})
    assert watermarks(offsetstore_kafka, topic) == (400, 1000)
    create_partitions(servers, topic, total=2)
    produce(servers, topic, [NewRecord(b"x", partition=1)])
    assert watermarks(offsetstore_kafka, topic, 1) == (0, 1)
    delete_topic(servers, topic)
    create_topic(servers, topic)
    assert watermarks(offsetstore_kafka, topic) == (0, 0)
