"""The ports: Kafka, checkpoint files and writers, as the store sees them; and what Kafka answers in an overview.

`Work` is what writers and user code see of a transaction; `offsetstore.store.transaction.Transaction` implements it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from sqlalchemy import Connection

from offsetstore.errors import BrokerError
from offsetstore.offsets import BrokerView, CommittedOffset, EpochPair, OffsetRange, TopicPartition, Watermarks
from offsetstore.protocol.letters import Payload
from offsetstore.protocol.metadata import KEEP, Keep
from offsetstore.protocol.outbox import OutboxRecord

if TYPE_CHECKING:
    import pyarrow as pa


class Work(Protocol):
    """A transaction that has locked its partitions and has not advanced them yet."""

    @property
    def connection(self) -> Any:
        """The SQLAlchemy ``Connection`` to write results with; it wraps psycopg's."""
        ...

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """What is being written: the remaining range of each partition that has one."""
        ...

    def metadata(self, tp: TopicPartition, *, cache: bool | None = None) -> object:
        """The partition's metadata, ``None`` if there is none.

        :param cache: ``True`` for the value at the time of the claim, ``False`` for what the row has now; by default
            as the claim's `Metadata` says.
        :raises MetadataError: the deserializer fails.
        :raises StaleClaim: the row has another token.
        """
        ...

    def write_metadata(self, tp: TopicPartition, value: object) -> None:
        """Write metadata at the stored offset, whether or not the transaction advances it; ``None`` clears it.

        An advance without metadata keeps it.

        :raises MetadataError: the serializer fails, or its text is too long.
        :raises AdvanceMismatch: the partition was not locked, or its range is in the results already.
        """
        ...

    def mark(self, tp: TopicPartition, next_offset: int, *, metadata: object | Keep = KEEP) -> None:
        """Store this offset when the transaction ends: all below it is done. Only with ``marking="manual"``.

        If a partition is marked more than once, the last mark counts, with its metadata. See docs/marking.md.

        :param next_offset: one above the last offset that is done. It is above the stored offset, and at most the end
            of what the job was given.
        :param metadata: as for `Transaction.advance`.
        :raises MarkBackwards, MarkBeyondDelivered: the offset is not within these limits.
        :raises MetadataError: the serializer fails, or its text is too long.
        :raises AdvanceMismatch: the partition was not locked.
        :raises ProtocolMisuse: marking is automatic.
        """
        ...

    def dead_letter(
        self,
        tp: TopicPartition,
        offset: int,
        reason: str,
        *,
        code: str | None = None,
        payload: Payload | None = None,
    ) -> None:
        """Keep a record that is being passed as a dead letter; see docs/dead-letters.md.

        A splittable `Execute` is called again without the records that it names: the sink keeps them as they were in
        Kafka.

        :param reason: may quote the record; lists don't show it.
        :param code: lists show it, and group letters by it. A code of more than 64 characters becomes part of the
            reason.
        :param payload: the record as it was in Kafka, if the letter is to be replayed.
        :raises AdvanceMismatch: the record is not in `ranges`.
        :raises ConfigurationError: the reason or the code is not a text.
        :raises LockInSavepoint: inside a savepoint, whose rollback would take the letter along.
        """
        ...

    def produce(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] = (),
    ) -> None:
        """Put a record into the outbox, from which `offsetstore relay` produces it to Kafka; see docs/outbox.md.

        The row is written at once, by one statement per call, and rolled back with the transaction or its savepoint.

        :param key: decides the partition, as for Java's producers. Texts are encoded as UTF-8.
        :param value: ``None`` is a tombstone.
        :raises RowsRefused: it can't be a record in Kafka: the topic's name is invalid, say, or a part is neither bytes
            nor text.
        """
        ...

    def produce_all(self, records: Iterable[OutboxRecord]) -> int:
        """Put records into the outbox, in order, 16 MiB at a time; return how many.

        :param records: `OutboxRecord`, or such tuples.
        :raises ConfigurationError: a value is not a record.
        :raises RowsRefused: see `produce`.
        """
        ...


@dataclass(frozen=True, slots=True)
class LogEnds(Watermarks):
    """A log's first offset, its high watermark, and its last stable offset.

    The last stable offset is where the oldest open transaction begins, else the high watermark.
    """

    last_stable: int


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """One topic.

    ``topic_id`` is ``None`` if the broker is too old to have ids. ``partitions`` holds those whose ends Kafka returned,
    of ``partition_count``. ``error`` is the first error: of the topic, or of one of its partitions.
    """

    topic_id: str | None = None
    partition_count: int = 0
    partitions: Mapping[int, LogEnds] = field(default_factory=dict[int, LogEnds])
    error: BrokerError | None = None


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group in Kafka.

    ``committed`` leaves out partitions without an offset; it is ``None`` if it could not be read. ``has_members``:
    whether a consumer has joined the group, ``None`` if that is unknown. ``error`` is the first error.
    """

    committed: Mapping[TopicPartition, CommittedOffset] | None = None
    has_members: bool | None = None
    error: BrokerError | None = None


@dataclass(frozen=True, slots=True)
class KafkaSnapshot:
    """The cluster, and each topic and group that was asked for."""

    cluster_id: str | None
    topics: Mapping[str, TopicSnapshot]
    groups: Mapping[str, GroupSnapshot]


class FoundRecord(NamedTuple):
    """A record's offset and its timestamp, in milliseconds since 1970."""

    offset: int
    timestamp_ms: int


class BrokerOffsets(Protocol):
    """Kafka, as job starts and the mirror use it.

    `offsetstore.kafka.Broker` implements it for real clusters.
    """

    @property
    def topics(self) -> Sequence[str] | None:
        """The topics that the broker's own options name (Spark's ``subscribe``), else ``None``."""
        ...

    def view(
        self,
        group: str,
        topics: Collection[str],
        *,
        timestamp_ms: int | None = None,
        partitions: Collection[TopicPartition] | None = None,
    ) -> BrokerView:
        """Fetch ids, log ends and committed offsets, in a number of round trips that does not depend on the partitions.

        :param timestamp_ms: also look up each partition's first offset at or after it (the log's end if there is none).
        :param partitions: ask about these only; only the consumer passes any. ``None`` for all of the topics.
        :raises BrokerUnavailable: no answer within the configured time.
        :raises BrokerRefused: wrong credentials, or no permission.
        :raises TopicMissing: one of the topics does not exist.
        """
        ...

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """Fetch the logs' beginnings and high watermarks, with the leaders' epochs. Raises the errors of `view`."""
        ...

    def find_truncated(
        self, pairs: Mapping[TopicPartition, EpochPair]
    ) -> Mapping[TopicPartition, int | BrokerError | None]:
        """Which of the logs no longer have the pair's epoch up to its offset, with the offset where the logs part.

        A log that does not reach the offset, or begins above it, is left out: `Watermarks` show that. An answer counts
        only if a second one confirms it. The offset is ``None`` if the broker does not tell it. Needs READ on topics.

        If a log can't be asked about, its value is the error, so that it does not keep the others from being judged.
        """
        ...

    def topic_ids(self, topics: Collection[str]) -> dict[str, str | None]:
        """Fetch only the topics' ids, for the check in each batch. Raises the errors of `view`."""
        ...

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """The group's committed offsets; partitions without an offset are left out.

        :raises BrokerUnavailable: no answer within the configured time.
        :raises BrokerRefused: wrong credentials, or no permission.
        """
        ...

    def has_members(self, group: str) -> bool:
        """Whether a consumer has joined the group. Takes seconds at most, even if a broker is down.

        :raises BrokerUnavailable: no answer; or a broker is down, and none of the others knows the group.
        :raises BrokerRefused: wrong credentials, or no permission.
        """
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit offsets with their metadata to the group in Kafka; they may go backwards.

        The group must have no members. If Kafka refuses one partition, it may have committed others. Without offsets,
        nothing is sent.

        :raises BrokerUnavailable: no answer within the configured time; the offsets may or may not be committed.
        :raises BrokerRefused: wrong credentials, or no permission.
        :raises GroupHasMembers: the group has members.
        :raises MetadataRefused: the metadata is longer than the broker accepts.
        :raises TopicMissing: Kafka has no such partition.
        """
        ...


class BrokerOverview(Protocol):
    """Kafka, as an overview of many groups uses it: whatever is unavailable is left out of the answer.

    `offsetstore.kafka.Broker` implements it for real clusters.
    """

    def snapshot(self, groups: Mapping[str, Collection[str]]) -> KafkaSnapshot:
        """Fetch ids and log ends of topics, and committed offsets and members of groups.

        The number of round trips does not depend on the partitions or topics. Each group has a connection of its own,
        which is kept for the next call, since librdkafka can't safely read several groups' offsets on one.

        :param groups: the topics of each group, by the group's name in Kafka.
        :raises BrokerUnavailable: no answer at all within the configured time.
        :raises BrokerRefused: wrong credentials.
        """
        ...

    def first_records(
        self, asked: Collection[tuple[TopicPartition, int]]
    ) -> Mapping[tuple[TopicPartition, int], FoundRecord | None]:
        """The first record at or after a time, for many pairs of a partition and a time; ``None`` if there is none.

        Times are in milliseconds since 1970. All are asked for at once; this needs DESCRIBE only. Pairs without an
        answer from Kafka are left out. Raises the errors of `snapshot`.
        """
        ...

    def read_records(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, FoundRecord | None]:
        """Read each partition's first record at or above an offset; ``None`` if there is none up to the log's end.

        Needs READ. Partitions that can't be read within a second or two are left out. Ask about a few partitions only:
        their records are fetched.
        """
        ...


class CheckpointFiles(Protocol):
    """The files of one query's checkpoint. `names` and `read` raise `ConfigurationError` if a file can't be read."""

    @property
    def location(self) -> str:
        """The checkpoint's directory, for messages."""
        ...

    def names(self, directory: str) -> Sequence[str]:
        """The names in a directory of the checkpoint; none if there is no such directory."""
        ...

    def read(self, path: str) -> str:
        """The text of a file of the checkpoint."""
        ...


class Writer(Protocol):
    """Puts Arrow data into a table, in the transaction.

    A writer can declare what else it can do with optional attributes; see `declares`. If it knows which rows it always
    refuses, it is a `MisfitsWriter`, of `offsetstore.writers.arrow.misfits`.
    """

    def uses_kafka_column(self, schema: pa.Schema) -> bool:
        """Whether ``write`` needs the struct column ``_kafka`` (topic, partition, offset, ...) in rows of this schema.

        It may need it to order them, say. If not, the caller may drop the column before anything is computed. The
        column is never written.
        """
        ...

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Compare the columns with the table's before anything is written; once for each schema, not for each batch.

        :raises ColumnMismatch: columns do not fit; the error names them.
        :raises KafkaColumnsMissing: rows must be ordered by offset, and ``_kafka`` is missing.
        """
        ...

    def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
        """Write all rows of the batches, which share one schema; return how many. Neither commits nor rolls back.

        It reads the batches once, one at a time, so that memory does not grow with their number. It must leave nothing
        behind in the connection's session (``SET`` without ``LOCAL``, temporary tables, advisory locks).

        Errors that concern the database and not the rows (lost connections, locks, serialization) are raised as
        ``psycopg.Error`` or wrapped by SQLAlchemy; the caller may then repeat the whole transaction.

        :raises ColumnMismatch: as ``check`` does.
        :raises RowsRefused: a value or a row that the table can't hold.
        """
        ...


Trait: TypeAlias = Literal["appends", "marks", "replaces_in_order", "splittable", "takes_headers"]


def declares(writer: Writer, trait: Trait, *, otherwise: bool = False) -> bool:
    """Whether a writer declares this trait; ``otherwise`` is the answer if it does not have the attribute.

    ``appends``: it adds each row, however often it gets it. ``marks``: it calls ``work.mark``. ``replaces_in_order``:
    its rows replace stored ones that are assumed to be earlier. ``splittable``: it can be given the rows of single
    records, more than once. ``takes_headers``: it passes on the headers that follow a row's record, so ``_kafka`` has
    them.
    """
    return bool(getattr(writer, trait, otherwise))


@runtime_checkable
class TableWriter(Writer, Protocol):
    """A writer with one table, which it finds by its name."""

    def resolve_table(self, connection: Connection) -> None:
        """If no schema was named, find the table by the connection's search path, and keep its schema."""
        ...
