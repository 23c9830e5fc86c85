"""Metadata for code that a transform runs on executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakSet

from pyspark import SparkContext, TaskContext

from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol.metadata import Formats, format_of
from offsetstore.spark.executors.connect import ExecutorStore, create_key
from offsetstore.store.claim import Claim
from offsetstore.store.notes import read_own
from offsetstore.store.sessions import read

_claims: Final[WeakSet[Claim]] = WeakSet()


@dataclass(frozen=True, slots=True)
class MetadataFinder:
    """Reads the metadata of a claim's partitions; made by `metadata_finder`, and can be pickled."""

    store: ExecutorStore
    group: str
    token: Token
    formats: Formats

    def __call__(self, topic: str, partition: int) -> object:
        """The partition's metadata, ``None`` if there is none; one query for each partition in each of Spark's tasks.

        :raises StaleClaim: another claim has taken over, or the group was reset or renamed.
        :raises MetadataError: the deserializer fails.
        :raises StoreUnavailable: no connection.
        """
        task: Any = TaskContext.get()
        key = (self.group, self.token, topic, partition)
        if task is None:
            return self._read(topic, partition)
        if _reads.task != task.taskAttemptId():
            _reads.task, _reads.values = task.taskAttemptId(), {}
        if key not in _reads.values:
            _reads.values[key] = self._read(topic, partition)
        return _reads.values[key]

    def _read(self, topic: str, partition: int) -> object:
        database = self.store.connect().database
        texts = read(database, lambda session: read_own(session, self.group, self.token, topic, partition))
        return format_of(self.formats, topic).load(texts.get(TopicPartition(topic, partition)))


@dataclass
class _TaskReads:
    """What the current task has read: a function may be called for each of a million rows."""

    task: int | None = None
    values: dict[object, object] = field(default_factory=dict[object, object])


_reads: Final = _TaskReads()


def metadata_finder(claim: Claim) -> MetadataFinder:
    """Make a function of topic and partition for a transform's own functions, which executors run.

    Make it after the Spark session and before the query starts: the sink then sends the database's password to the
    query's tasks.

    :raises ConfigurationError: executors can't connect to the claim's store.
    """
    context: Any = SparkContext._active_spark_context  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    if context is not None:
        create_key(context)  # only functions that are created after this have it
    _claims.add(claim)
    return MetadataFinder(ExecutorStore.of(claim), claim.group, claim.token, claim.formats)


def has_finder(claim: Claim) -> bool:
    """Whether tasks of the claim may read metadata."""
    return claim in _claims
