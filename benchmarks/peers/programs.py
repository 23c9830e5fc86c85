"""Who is compared: how each is set up and started, and which guarantee it gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.jobs import FILE_SYSTEM
from benchmarks.peers import by_hand, with_spark
from benchmarks.shapes import SMALL
from offsetstore.errors import MissingDependency
from offsetstore.local.jars import KAFKA_VERSION, POSTGRES_JDBC, SPARK_VERSION, Artifact, JarSet, jars
from offsetstore.local.java import find_java
from offsetstore.local.kafka_properties import as_properties
from offsetstore.spark.settings import MANAGER

BUILD: Final = Path("build/bench")
SOURCE: Final = Path(__file__).with_name("FlinkJob.java")
HEAP: Final = with_spark.HEAP
JDBC: Final = "reWriteBatchedInserts=true"  # the driver's best setting for batches
PARALLELISM: Final = 2
FLINK_BATCH: Final = 1_000
DEBEZIUM_BATCH: Final = 2_000

FLINK_VERSION: Final = "2.0.2"
FLINK_JDBC: Final = "4.0.0-2.0"
DEBEZIUM_VERSION: Final = "3.6.0.Final"
_HIBERNATE: Final = "7.2.19.Final"

_LOGGING: Final = Artifact("org.slf4j", "slf4j-simple", "1.7.36", transitive=False)
_DRIVER: Final = POSTGRES_JDBC.artifacts[0]
FLINK_JARS: Final = JarSet(
    "bench-flink",
    (
        Artifact("org.apache.flink", "flink-clients", FLINK_VERSION),
        Artifact("org.apache.flink", "flink-connector-base", FLINK_VERSION),
        Artifact("org.apache.flink", "flink-connector-kafka", "4.0.0-2.0"),
        Artifact("org.apache.flink", "flink-connector-jdbc-postgres", FLINK_JDBC),
        _DRIVER,
        _LOGGING,
    ),
    excluded=(("org.lz4", "*"),),
)
DEBEZIUM_JARS: Final = JarSet(
    "bench-debezium",
    (
        Artifact("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
        Artifact("io.debezium", "debezium-connector-jdbc", DEBEZIUM_VERSION),
        Artifact("org.hibernate.orm", "hibernate-agroal", _HIBERNATE),
        _LOGGING,
    ),
    # The revision that Debezium asks for is not available everywhere under its old name.
    overrides=(Artifact("org.hibernate.orm", "hibernate-core", _HIBERNATE), _DRIVER),
    excluded=(
        ("org.hibernate", "hibernate-agroal"),
        ("com.mysql", "*"),
        ("org.mariadb.jdbc", "*"),
        ("com.microsoft.sqlserver", "*"),
        ("com.oracle.database.jdbc", "*"),
    ),
)

CONSUMER: Final = {
    "isolation.level": "read_committed",
    "max.poll.records": "50000",
    "max.partition.fetch.bytes": str(16 << 20),
    "fetch.max.bytes": str(64 << 20),
    "receive.buffer.bytes": str(1 << 20),
}
"""The settings of every Java consumer except Spark's."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run takes place. The directory and the names outlive a kill."""

    port: int
    servers: str
    topic: str
    directory: Path

    @property
    def url(self) -> str:
        """The database's URL."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def jdbc(self) -> str:
        """The database's URL for JDBC."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres?user=postgres&{JDBC}"


Command: TypeAlias = "Callable[[Place], list[str]]"


@dataclass(frozen=True, slots=True)
class Peer:
    """One way from the topic to the table.

    :param guarantee: what its own documentation promises.
    :param command: writes what it needs and returns the command line; called before each start.
    :param unique: whether the table has a primary key, because it upserts.
    """

    name: str
    guarantee: str
    versions: str
    command: Command
    settings: dict[str, str] = field(default_factory=dict[str, str])
    unique: bool = False


def _java(jar_set: JarSet, main: str, *arguments: str, classes: tuple[Path, ...] = ()) -> list[str]:
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.util", "java.lang", "java.time")]
    class_path = os.pathsep.join(map(str, (*classes, *jars(jar_set))))
    logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return [str(find_java().program), f"-Xmx{HEAP}", *opened, logging, "-cp", class_path, main, *arguments]


FLINK: Final = {
    "parallelism.default": str(PARALLELISM),
    "taskmanager.numberOfTaskSlots": str(PARALLELISM),
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    **{f"kafka:{name}": value for name, value in CONSUMER.items()},
}


def _flink(sink: str) -> Command:
    def command(place: Place) -> list[str]:
        checkpoints = place.directory / "checkpoints"
        settings = {
            **FLINK,
            "kafka:bootstrap.servers": place.servers,
            "execution.checkpointing.dir": checkpoints.as_uri(),
        }
        if latest := max(checkpoints.glob("*/chk-*/_metadata"), key=lambda file: file.stat().st_mtime_ns, default=None):
            settings["execution.state-recovery.path"] = latest.parent.as_uri()
        columns = ", ".join(f'"{name}"' for name in SMALL.columns)
        insert = f"INSERT INTO {SMALL.table} ({columns}) VALUES ({', '.join('?' * len(SMALL.columns))})"  # noqa: S608
        words = [sink, place.jdbc, insert, str(FLINK_BATCH), place.topic, *(f"{n}={v}" for n, v in settings.items())]
        return _java(FLINK_JARS, "FlinkJob", *words, classes=(compiled(),))

    return command


def compiled() -> Path:
    """Compile the Flink job, if that was not done yet; return the directory of its classes.

    :raises MissingDependency: there is a Java, but without a compiler.
    """
    classes = BUILD / "classes"
    made = classes / "FlinkJob.class"
    if not made.exists() or made.stat().st_mtime < SOURCE.stat().st_mtime:
        compiler = find_java().home / "bin" / "javac"
        if not compiler.exists():
            raise MissingDependency(
                "Flink's job can't be compiled: this Java has no compiler",
                found=compiler,
                expected="a JDK, not only a Java runtime",
                next_step="Install one (Debian and Ubuntu: `apt install openjdk-17-jdk-headless`), or set JAVA_HOME.",
            )
        class_path = os.pathsep.join(map(str, jars(FLINK_JARS)))
        subprocess.run([compiler, "-d", classes, "-cp", class_path, SOURCE], check=True)  # noqa: S603
    return classes


def _debezium_settings(mode: str) -> dict[str, str]:
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "customer", "type": "string"},
        {
            "field": "amount",
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2"},
        },
        {"field": "at", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
    ]
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": str(PARALLELISM),
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "value.converter.schema.content": json.dumps({"type": "struct", "fields": fields}),
        "transforms": "coordinates",
        "transforms.coordinates.type": "org.apache.kafka.connect.transforms.InsertField$Value",
        "transforms.coordinates.partition.field": "partition",
        "transforms.coordinates.offset.field": "offset",
        "insert.mode": mode,
        **({"primary.key.mode": "record_value", "primary.key.fields": "id"} if mode == "upsert" else {}),
        "quote.identifiers": "true",
        "schema.evolution": "none",
        "collection.name.format": SMALL.table,
        "batch.size": str(DEBEZIUM_BATCH),
        "dialect.postgres.unnest.insert.enabled": "true",
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.session.timeout.ms": "6000",
        **{f"consumer.override.{name}": value for name, value in CONSUMER.items()},
    }


_WORKER: Final = {"offset.flush.interval.ms": "1000"}


def _debezium(mode: str) -> Command:
    def command(place: Place) -> list[str]:
        worker = {
            "bootstrap.servers": place.servers,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": str(place.directory / "offsets"),
            "listeners": "http://127.0.0.1:0",
            **_WORKER,
        }
        sink = {
            "name": place.topic,
            "topics": place.topic,
            "connection.url": place.jdbc,
            "connection.username": "postgres",
            "connection.password": "postgres",
            **_debezium_settings(mode),
        }
        files = [place.directory / name for name in ("worker.properties", "sink.properties")]
        for file, settings in zip(files, (worker, sink), strict=True):
            file.write_text(as_properties(settings))
        return _java(DEBEZIUM_JARS, "org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files))

    return command


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.peers.{module}", *arguments]


def _spark(place: Place, writer: str) -> list[str]:
    return _python("with_spark", writer, place.url, place.servers, place.topic, str(place.directory))


_SPARK: Final = {
    "master": "local[2]",
    "offsetstore.spark.tuned": "yes",
    MANAGER: FILE_SYSTEM,
    "trigger": "as soon as there are records",
}
_FLINK: Final = f"Flink {FLINK_VERSION}, JDBC connector {FLINK_JDBC}"
_DEBEZIUM: Final = f"Debezium {DEBEZIUM_VERSION}, Kafka Connect {KAFKA_VERSION}"
_FLINK_SINK: Final = {"withBatchSize": str(FLINK_BATCH)}
_ONCE, _OFTEN = "exactly-once", "at-least-once"

PEERS: Final = {
    "offsetstore": Peer(
        "offsetstore, batch",
        _ONCE,
        f"offsetstore {version('offsetstore')}, Spark {SPARK_VERSION}",
        lambda place: _spark(place, "sink"),
        _SPARK,
    ),
    "spark-jdbc": Peer(
        "Spark's JDBC writer",
        _OFTEN,
        f"Spark {SPARK_VERSION}",
        lambda place: _spark(place, place.jdbc),
        {**_SPARK, "batchsize": str(with_spark.BATCH)},
    ),
    "flink": Peer("Flink, JDBC sink", _OFTEN, _FLINK, _flink("at-least-once"), FLINK | _FLINK_SINK),
    "flink-xa": Peer("Flink, XA JDBC sink", _ONCE, _FLINK, _flink("xa"), FLINK | _FLINK_SINK),
    "debezium-insert": Peer(
        "Debezium's JDBC sink, insert", _OFTEN, _DEBEZIUM, _debezium("insert"), _debezium_settings("insert") | _WORKER
    ),
    "debezium-upsert": Peer(
        "Debezium's JDBC sink, upsert",
        f"{_OFTEN}, idempotent by its key",
        _DEBEZIUM,
        _debezium("upsert"),
        _debezium_settings("upsert") | _WORKER,
        unique=True,
    ),
    "by-hand": Peer(
        "A consumer by hand",
        f"{_ONCE}, if it has no mistake",
        f"confluent-kafka {version('confluent-kafka')}, psycopg {version('psycopg')}, orjson {version('orjson')}",
        lambda place: _python("by_hand", place.url, place.servers, place.topic),
        {name: str(value) for name, value in by_hand.READER.items()} | {"records in a transaction": str(by_hand.BATCH)},
    ),
}
