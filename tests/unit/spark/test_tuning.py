"""What `tuned` adds to the options of the Kafka source, on a session that is a dict."""

from __future__ import annotations

from typing import Any

import pytest

from offsetstore import Broker
from offsetstore.spark.tuning import MANAGER, READER, tuned

KAFKA = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "payments"}


class Conf(dict[str, str]):
    def set(self, name: str, value: str) -> None:
        self[name] = value


class Session:
    """As much of a session as `tuned` uses; its Java has the given classes."""

    def __init__(self, *classes: str) -> None:
        self.conf = Conf()
        self.hadoop = {"fs.defaultFS": "file:///"}
        self._jvm = self._jsparkSession = self
        self.java = self.lang = self.Thread = self
        self._files = {f"{name.replace('.', '/')}.class" for name in classes}

    def sessionState(self) -> Session:  # noqa: N802 - Spark's name
        return self

    def newHadoopConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return self.hadoop | self.conf

    def currentThread(self) -> Session:  # noqa: N802 - Java's name
        return self

    def getContextClassLoader(self) -> Session:  # noqa: N802 - Java's name
        return self

    def getResource(self, path: str) -> object | None:  # noqa: N802 - Java's name
        return path if path in self._files else None


PACKAGE = "org.apache.spark.sql.execution.streaming"
NEW = f"{PACKAGE}.checkpointing.FileSystemBasedCheckpointFileManager"
OLD = f"{PACKAGE}.FileSystemBasedCheckpointFileManager"


def test_options_are_added_to_those_of_the_source() -> None:
    given: Any = Session(NEW)
    assert tuned(given, KAFKA) == KAFKA | READER


@pytest.mark.parametrize("name", ["kafka.max.poll.records", "KAFKA.max.poll.Records"])
def test_an_option_of_the_users_own_stays_and_is_there_once(name: str) -> None:
    given: Any = Session(NEW)
    options = tuned(given, KAFKA | {name: "77"})
    assert {key.lower(): value for key, value in options.items()}["kafka.max.poll.records"] == "77"
    assert len({key.lower() for key in options}) == len(options) == len(KAFKA | READER)


@pytest.mark.parametrize(("classes", "expected"), [((NEW,), NEW), ((OLD,), OLD), ((), None)])
def test_the_session_gets_the_manager_that_its_version_has(classes: tuple[str, ...], expected: str | None) -> None:
    given: Any = Session(*classes)
    tuned(given, KAFKA)
    assert given.conf.get(MANAGER) == expected


def test_a_manager_of_the_users_own_stays() -> None:
    given: Any = Session(NEW)
    given.conf[MANAGER] = "com.example.Manager"
    tuned(given, KAFKA)
    assert given.conf == {MANAGER: "com.example.Manager"}


@pytest.mark.parametrize("name", [MANAGER, "fs.defaultFS"])
def test_the_manager_is_left_to_hadoops_settings_and_to_other_file_systems(name: str) -> None:
    given: Any = Session(NEW)
    given.hadoop[name] = "hdfs://example/"
    tuned(given, KAFKA)
    assert given.conf == {}


def test_a_broker_takes_the_same_options() -> None:
    assert Broker.from_spark(KAFKA | READER).topics == ("payments",)
