"""One test's world: a topic or two on a real Kafka, a database on a real PostgreSQL, a real Spark, and a group.

A test reads as a story: ``world.produce``, ``world.claim``, ``world.run``, and what ``world.database`` then holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final
from unittest.mock import patch
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from offsetstore import Broker, Claim, Handler, OffsetStore, TopicPartition, TransactionalSink
from offsetstore.errors import BrokerRefused
from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from offsetstore.protocol.ports import Writer
from offsetstore.spark.sink import SparkTransform
from tests.support.postgres import Database
from tests.support.transforms import EVENTS

SECONDS = 120
"""No query of a test takes as long as this."""


@dataclass(frozen=True)
class Failure:
    """How a query ended: the sink's own error, if it was the sink's, and the text of Spark's exception."""

    error: BaseException | None
    text: str


_SINKS: Final = (
    "atomicity",
    "task_threshold",
    "metadata",
    "marking",
    "flush",
    "tick",
    "dead_letters",
    "propagate",
)

# An idempotent producer asks for an id first. The leader of a new topic may not know yet that it leads: what is sent
# again then must not come after later records.
_QUICKLY: Final = {"enable.idempotence": False, "max.in.flight": 1}

# Of the recommended settings (docs/performance.md) those that save each query a second. Spark's own, which the examples
# have, are proven there.
_READER: Final = {"kafka.fetch.max.wait.ms": "10"}
MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_PACKAGE: Final = "org.apache.spark.sql.execution.streaming" + ("" if version("pyspark") < "4.1" else ".checkpointing")
FILE_MANAGER: Final = f"{_PACKAGE}.FileSystemBasedCheckpointFileManager"


@dataclass
class World:
    """See the module. ``checkpoints`` is the base directory that is given to `Claim.checkpoint`."""

    spark: SparkSession
    kafka: KafkaBroker
    database: Database
    store: OffsetStore
    group: str
    checkpoints: str
    _brokers: list[Broker] = field(default_factory=list[Broker])
    _topics: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        """Have Spark write its checkpoints in less time."""
        self.spark.conf.set(MANAGER, FILE_MANAGER)

    # -- Kafka

    def events_topic(self, *values: Iterable[str | bytes | None], partitions: int = 1) -> str:
        """Make the table `EVENTS`, and a topic as `topic` does."""
        self.database.execute(EVENTS)
        return self.topic(*values, partitions=partitions)

    def topic(self, *values: Iterable[str | bytes | None], partitions: int = 1) -> str:
        """Make a topic that has these values in its partitions, from the first on."""
        topic = f"topic-{uuid4().hex[:12]}"
        servers = self.kafka.bootstrap_servers
        admin.create_topic(servers, topic, partitions=max(partitions, len(values)))
        self._topics.append(topic)
        for partition, listed in enumerate(values):
            self.produce(topic, listed, partition=partition)
        return topic

    def produce(self, topic: str, values: Iterable[str | bytes | None], *, partition: int = 0) -> None:
        """Append records without a key to one partition, in order."""
        records = [
            admin.NewRecord(value.encode() if isinstance(value, str) else value, key=None, partition=partition)
            for value in values
        ]
        admin.produce(self.kafka.bootstrap_servers, topic, records, settings=_QUICKLY)

    def produce_keyed(self, topic: str, records: Iterable[tuple[str, str]], *, partition: int = 0) -> None:
        """Append records with a key to one partition, in order."""
        made = [admin.NewRecord(value.encode(), key=key.encode(), partition=partition) for key, value in records]
        admin.produce(self.kafka.bootstrap_servers, topic, made, settings=_QUICKLY)

    def produce_whole(self, topic: str, records: Iterable[tuple[bytes | None, bytes | None, Any, int]]) -> None:
        """Append records of key, value, headers and timestamp in milliseconds to partition 0, in order."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, **_QUICKLY})
        for key, value, headers, timestamp_ms in records:
            producer.produce(topic, value, key, 0, timestamp=timestamp_ms, headers=headers)
        assert producer.flush(SECONDS) == 0

    def options(self, *topics: str, **more: str) -> dict[str, str]:
        """What Spark's reader is told; ``more`` with the names that Spark gives them."""
        servers = self.kafka.bootstrap_servers
        return {"kafka.bootstrap.servers": servers, "subscribe": ",".join(topics), **_READER, **more}

    def broker(self, *topics: str, **more: str) -> Broker:
        """A broker from the reader's options."""
        broker = Broker.from_spark(self.options(*topics, **more), timeout=60)
        self._brokers.append(broker)
        return broker

    # -- the store

    def claim(self, *topics: str, group: str | None = None, **arguments: Any) -> Claim:
        """Claim the test's group as a job does that reads these topics; by default without a mirror."""
        arguments.setdefault("mirror_every", None)
        return self.store.claim(group or self.group, self.broker(*topics), **arguments)

    def stored(self, topic: str, *, group: str | None = None) -> dict[int, int]:
        """The stored next offset of each of the topic's partitions."""
        rows = self.store.offsets(group or self.group).items()
        return {tp.partition: row.next_offset for tp, row in rows if tp.topic == topic}

    def advance(self, claim: Claim, to: Mapping[TopicPartition, int]) -> None:
        """Move stored offsets with the claim's own token, as if another batch had been committed."""
        from offsetstore import OffsetRange  # noqa: PLC0415

        stored = self.store.offsets(claim.group)
        with self.store.transaction(claim) as tx:
            plan = tx.lock({tp: OffsetRange(stored[tp].next_offset, until) for tp, until in to.items()})
            tx.advance({tp: decision.remaining for tp, decision in plan.items()})

    # -- Spark

    def read(self, claim: Claim, **options: str) -> DataFrame:
        """The stream of all topics of the claim, from where it says."""
        reader = self.spark.readStream.format("kafka").options(**self.options(*claim.topics, **options))
        return reader.option("startingOffsets", claim.starting_offsets).load()

    def start(
        self,
        sink: TransactionalSink,
        stream: DataFrame,
        *,
        checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:
        """Start a query; by default it reads what is there and ends."""
        writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(
        self,
        claim: Claim,
        transform: SparkTransform | Handler,
        into: Writer | Mapping[str, Writer],
        *,
        stream: DataFrame | None = None,
        checkpoint: str | None = None,
        **arguments: Any,
    ) -> StreamingQuery:
        """Run a job over all that Kafka has now, to its end.

        :param stream: what is written, by default what the claim's `read` gives.
        :param checkpoint: by default the claim's own.
        :param arguments: the sink's, and options for the reader. By default tasks write every batch of
            ``atomicity="partition"``.
        :raises StreamingQueryException: the query failed.
        """
        sink, query = self._start(claim, transform, into, stream, checkpoint, arguments)
        assert query.awaitTermination(SECONDS), "the query did not end"
        assert sink.error is None
        return query

    def run_to_failure(
        self,
        claim: Claim,
        transform: SparkTransform | Handler,
        into: Writer | Mapping[str, Writer],
        *,
        stream: DataFrame | None = None,
        checkpoint: str | None = None,
        **arguments: Any,
    ) -> Failure:
        """Run a job as `run` does, and return how it failed."""
        sink, query = self._start(claim, transform, into, stream, checkpoint, arguments)
        return self.failure(query, sink)

    def failure(self, query: StreamingQuery, sink: TransactionalSink) -> Failure:
        """Wait until a query has failed, and return how."""
        with pytest.raises(StreamingQueryException) as caught:
            assert query.awaitTermination(SECONDS), "the query did not end"
        return Failure(sink.error, str(caught.value))

    def _start(  # noqa: PLR0917 - what `run` was given
        self,
        claim: Claim,
        transform: SparkTransform | Handler,
        into: Writer | Mapping[str, Writer],
        stream: DataFrame | None,
        checkpoint: str | None,
        arguments: dict[str, Any],
    ) -> tuple[TransactionalSink, StreamingQuery]:
        given: dict[str, Any] = {name: arguments.pop(name) for name in _SINKS if name in arguments}
        given.setdefault("task_threshold", 0)
        sink = made_unchecked(claim, transform, into=into, **given)
        read = self.read(claim, **arguments) if stream is None else stream
        return sink, self.start(sink, read, checkpoint=checkpoint or claim.checkpoint(self.checkpoints))

    def close(self) -> None:
        """Stop what still runs, and close all connections."""
        for query in self.spark.streams.active:
            query.stop()
        self.store.close()
        for broker in self._brokers:
            broker.close()
        self.database.close()
        if self._topics:
            self.kafka.start()  # a test may have stopped it
        for topic in self._topics:
            with suppress(BrokerRefused):  # the test itself has deleted it
                admin.delete_topic(self.kafka.bootstrap_servers, topic)


def made_unchecked(*arguments: Any, **settings: Any) -> TransactionalSink:
    """Make a sink that does not try its transform before there is a batch: those of tests count, and move offsets."""
    with patch.object(TransactionalSink, "_check_early"):
        return TransactionalSink(*arguments, **settings)


def counts(query: StreamingQuery) -> Sequence[int]:
    """How many records Spark read from Kafka in each batch, batches without any left out."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
