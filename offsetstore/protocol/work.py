"""What writers and user code see of a transaction; `offsetstore.store.transaction.Transaction` implements it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.letters import Payload
from offsetstore.protocol.metadata import KEEP, Keep
from offsetstore.protocol.outbox import OutboxRecord


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
        """Put records into the outbox, in order, 16 MiB at a time; return how many. Raises the errors of `produce`."""
        ...
