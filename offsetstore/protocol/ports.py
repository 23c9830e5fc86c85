"""The seams: what the core asks of the drivers beside it, as Protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import pyarrow as pa
    from sqlalchemy import Connection

    from offsetstore.offsets import BrokerView, CommittedOffset, TopicPartition


class BrokerOffsets(Protocol):
    """Kafka, as far as a job start asks it and the mirror writes to it.

    `offsetstore.kafka.Broker` is the one for real clusters.
    """

    @property
    def topics(self) -> Sequence[str] | None:
        """The topics that the broker's own options name (Spark's ``subscribe``), else ``None``."""
        ...

    def view(self, group: str, topics: Collection[str], *, timestamp_ms: int | None = None) -> BrokerView:
        """Ask for ids, log ends and committed offsets, in a number of requests that doesn't grow with partitions.

        :param timestamp_ms: also look up each partition's first offset at or after it (Kafka's end if there is none).
        :raises BrokerUnavailable: no answer in the time configured.
        :raises BrokerRefused: wrong credentials, or no permission.
        :raises TopicMissing: one of the topics is not there.
        """
        ...

    def topic_ids(self, topics: Collection[str]) -> dict[str, str | None]:
        """The topics' ids alone, for the check once a batch. Raises as `view` does."""
        ...

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed, in one request; a partition without an offset is left out.

        :raises BrokerUnavailable: no answer in the time configured.
        :raises BrokerRefused: wrong credentials, or no permission.
        """
        ...

    def has_members(self, group: str) -> bool:
        """Whether a consumer has joined the group. Takes seconds at most, also where a broker is down.

        :raises BrokerUnavailable: no answer; or a broker is down, and none of the others knows the group.
        :raises BrokerRefused: wrong credentials, or no permission.
        """
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Copy offsets to Kafka's group, each with its text, in one request; backwards too. Without any, do nothing.

        The group must have no members. Where one partition is refused, others may have been copied.

        :raises BrokerUnavailable: no answer in the time configured; Kafka may have them or not.
        :raises BrokerRefused: wrong credentials, or no permission.
        :raises GroupHasMembers: the group has members.
        :raises MetadataRefused: a text is longer than the broker takes.
        :raises TopicMissing: Kafka has no such partition.
        """
        ...


class CheckpointFiles(Protocol):
    """The files of one query's checkpoint, wherever it is. Both raise `ConfigurationError` where it can't be read."""

    @property
    def location(self) -> str:
        """The checkpoint's own directory, for people."""
        ...

    def names(self, directory: str) -> Sequence[str]:
        """The names in a directory of the checkpoint; none where it has no such directory."""
        ...

    def read(self, path: str) -> str:
        """The text of a file of the checkpoint."""
        ...


class Writer(Protocol):
    """Puts Arrow data into a table, on the transaction's own connection."""

    def needs_offset(self, schema: pa.Schema) -> bool:
        """Whether ``write`` orders rows of this schema by the struct column ``_kafka`` (topic, partition, offset, ...).

        Where it is not needed, ``_kafka`` may be there all the same; it is never written.
        """
        ...

    def uses_offset(self, schema: pa.Schema) -> bool:
        """Whether ``write`` looks at ``_kafka`` if it is there; true wherever it is needed.

        Where it is false, whoever calls may drop the column before anything is computed.
        """
        ...

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Compare the columns with the table's, before any byte.

        :raises ColumnMismatch: with the columns' names.
        :raises KafkaColumnsMissing: rows have to be ordered by offset, and ``_kafka`` is not there.
        """
        ...

    def write(self, connection: Connection, batches: Iterable[pa.RecordBatch]) -> int:
        """Write all rows of the batches, which share one schema; return how many. Neither commits nor rolls back.

        The batches are gone through once, one after the other, so that memory does not grow with their number. Nothing
        may be left in the connection's session (``SET`` without ``LOCAL``, temporary tables, advisory locks).

        What concerns the database and not the rows (lost connections, locks, serialization) is raised as the driver
        raises it, as ``psycopg.Error`` or wrapped by SQLAlchemy; the caller may repeat the whole transaction.

        :raises ColumnMismatch: as ``check`` does.
        :raises RowsRefused: a value or a row that the table can't hold.
        """
        ...
