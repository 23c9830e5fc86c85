"""Metadata for code that a transform runs on executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pyspark import SparkContext

from offsetstore.errors import StaleClaim
from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol.metadata import Formats, format_of
from offsetstore.spark.executors.connect import ExecutorStore, create_key
from offsetstore.store.sessions import read

if TYPE_CHECKING:
    from offsetstore.store.claim import Claim

_claims: Final[WeakSet[Claim]] = WeakSet()


@dataclass(frozen=True, slots=True)
class MetadataFinder:
    """Reads the metadata of a claim's partitions; made by `metadata_finder`, and can be pickled."""

    store: ExecutorStore
    group: str
    token: Token
    formats: Formats

    def __call__(self, topic: str, partition: int) -> object:
        """The metadata that the partition's row has now, ``None`` if there is none; one query.

        :raises StaleClaim: another claim has taken over, or the group was reset or renamed.
        :raises MetadataError: the deserializer fails.
        :raises StoreUnavailable: no connection.
        """
        found = self.all(topic, partition)
        return found.get(TopicPartition(topic, partition))

    def all(self, topic: str, partition: int | None = None) -> dict[TopicPartition, object]:
        """The metadata of all the topic's partitions that have a stored offset; one query."""
        database = self.store.connect().database
        rows = read(database, lambda session: session.read_metadata(self.group, topic, partition))
        for tp, row in rows.items():
            if row.token != self.token:
                raise StaleClaim(
                    f"group {self.group!r} has been claimed, reset or renamed since; its metadata are another job's",
                    topic_partition=tp,
                    found=str(row.token),
                    expected=str(self.token),
                )
        return {tp: format_of(self.formats, topic).load(row.text) for tp, row in rows.items()}


def metadata_finder(claim: Claim) -> MetadataFinder:
    """Make a function of topic and partition for a transform's own functions, which executors run.

    Make it after the Spark session. The sink sends the database's password to the tasks of a claim that has one.

    :raises ConfigurationError: executors can't connect to the claim's store.
    """
    context: Any = SparkContext._active_spark_context  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    if context is not None:
        create_key(context)  # a function has it if it is created after this
    _claims.add(claim)
    return MetadataFinder(ExecutorStore.of(claim), claim.group, claim.token, claim.claim_metadata.formats)


def has_finder(claim: Claim) -> bool:
    """Whether tasks of the claim may read metadata."""
    return claim in _claims
