"""Copies a member's stored offsets to Kafka: Kafka's tools then show the lag, and others can take over the group there.

The copies have the stamp of a claim's mirror (`offsetstore.store.mirror`), follow the store, and never lead it. The
member's own consumer commits them: while a group has members, Kafka refuses all other processes' commits, so there is
no need to look for these. A failure affects nothing but the copies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetstore.errors import BrokerError, OffsetStoreError
from offsetstore.kafka.errors import Doing, broker_error, describe
from offsetstore.kafka.group_offsets import in_requests
from offsetstore.offsets import CommittedOffset, EpochPair, StoredOffset, TopicPartition
from offsetstore.protocol.events import MirrorTried
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.protocol.store_facts import Stamp, digest
from offsetstore.runtime.background import meanwhile
from offsetstore.runtime.functions import dropped, without_frames
from offsetstore.store.fleet import Member
from offsetstore.store.log_watch import LOOK_SECONDS
from offsetstore.store.mirror import INTERVAL, LAST_COMMIT
from offsetstore.store.sessions import read, transaction

_LOCK_SECONDS: Final = 1.0
_CHANGING: Final = frozenset({
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
})  # fmt: skip
"""The group's members are changing: whoever gets the partition next commits (decision 0091)."""

_COMMITTING: Final = Doing(
    "committing the stored offsets", permission="READ", harmless="the stored offsets are unchanged"
)

_log = logging.getLogger("offsetstore")


class Commits:
    """Commits the stored offsets of a member's partitions. The polling thread uses it; another one reads the rows.

    :param broker: is asked whether Kafka is there, and should answer within `LAST_COMMIT`.
    :param kafka_group: the member's.
    :param pairs: how far each log was read, and in which leader epoch; stored beside the offsets, as by a claim's
        mirror.
    """

    def __init__(
        self,
        member: Member,
        broker: BrokerOffsets,
        kafka_group: str,
        pairs: Callable[[], Mapping[TopicPartition, EpochPair]] = dict,
    ) -> None:
        self._member = member
        self._pairs = pairs
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._broker = broker
        self._kafka_group = kafka_group
        self._stamp = Stamp(member.store_id, member.token.epoch, digest(member.group))
        self._stamp_only = False
        self._reading: Future[Mapping[TopicPartition, StoredOffset]] | None = None
        self._next = 0.0
        self._sent: dict[TopicPartition, CommittedOffset] = {}
        self._copied: dict[TopicPartition, CommittedOffset] = {}
        self._pinned: set[TopicPartition] = set()  # as they were read last
        self._unpin: set[TopicPartition] = set()
        self._unpinning: set[TopicPartition] = set()

    def turn(self, kafka: Any, partitions: Collection[TopicPartition]) -> None:
        """Commit what is stored, if it is time. This waits for nothing.

        :param kafka: the member's consumer.
        :param partitions: the member's.
        """
        if self._reading is None and time.monotonic() >= self._next:
            self._read()
        elif self._reading is not None and self._reading.done():
            self._commit(kafka, partitions)

    def last(self, kafka: Any, partitions: Collection[TopicPartition]) -> None:
        """Commit the offsets of partitions before they are given back; wait for at most `LAST_COMMIT` seconds."""
        if not self._member.is_lost:
            self._read(is_last=True)  # anew: a read under way may not see all
            if self._reading is not None and wait([self._reading], timeout=LAST_COMMIT).done:
                self._commit(kafka, partitions)
        self._reading = None  # of what was read before, the next owner may have stored more
        for tp in partitions:
            self._copied.pop(tp, None)
            self._sent.pop(tp, None)
            self._unpin.discard(tp)

    def answered(self, error: KafkaError | None, partitions: Sequence[Any]) -> None:
        """Take Kafka's answer: confluent-kafka's ``on_commit``."""
        failed = error
        copied: dict[TopicPartition, CommittedOffset] = {}
        for partition in partitions:
            tp = TopicPartition(partition.topic, partition.partition)
            sent = self._sent.get(tp)
            failed = failed or partition.error
            if error is None and partition.error is None and sent is not None and sent.next_offset == partition.offset:
                copied[tp] = sent
        self._copied |= copied
        self._unpin |= self._pinned & copied.keys()
        if failed is None:
            self._tell(copied)
        else:
            self._failed(failed)

    def _read(self, *, is_last: bool = False) -> None:
        self._next = time.monotonic() + INTERVAL
        member, unpin = self._member, sorted(self._unpin)
        self._unpinning, self._unpin = {*unpin}, set()
        pairs: Mapping[TopicPartition, EpochPair] = {}
        if is_last or time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            pairs = {**self._pairs()}

        def rows() -> Mapping[TopicPartition, StoredOffset]:
            if pairs:  # first: after a stop, Kafka may come back without these records
                with dropped(OffsetStoreError):  # the next turn tries again, and so does the next assignment
                    member.write_pairs(pairs, asks=not is_last)
            # While Kafka is away, the member's client says nothing and answers no commit. So Kafka is asked first, on
            # other connections and with a time limit; without an answer nothing is committed.
            self._broker.committed_offsets(self._kafka_group, [TopicPartition(member.topics[0], 0)])
            if unpin:  # Kafka has the copy now, so its offset counts again
                with transaction(
                    member.database, name=member.name, lock_timeout=_LOCK_SECONDS, dedicated=True
                ) as session:
                    session.lock_partitions(member.group, unpin)
                    session.unpin(member.group, member.token, unpin)
            return read(
                member.database,
                lambda session: session.read_partitions(member.group),
                name=member.name,
                lock_timeout=_LOCK_SECONDS,
                dedicated=True,
            )

        self._reading = meanwhile("offsetstore-commits", rows)

    def _commit(self, kafka: Any, partitions: Collection[TopicPartition]) -> None:
        """Commit the offsets that have changed, of partitions that are still the member's."""
        assert self._reading is not None
        reading, self._reading = self._reading, None
        if (error := reading.exception()) is not None:
            self._unpin |= self._unpinning & {*partitions}
            if isinstance(error, BrokerError):
                self._tell_failure(error)
            _log.debug("what is to be committed to Kafka could not be read: %s", type(error).__name__)
            without_frames(error)
            return
        rows = {tp: row for tp, row in reading.result().items() if tp in partitions and row.token == self._member.token}
        self._pinned = {tp for tp, row in rows.items() if row.pinned or row.contested}
        copies = {tp: self._copy(row) for tp, row in rows.items()}
        changed = {tp: copy for tp, copy in copies.items() if self._copied.get(tp) != copy}
        if not changed:
            self._tell({})
            return
        self._sent |= changed
        try:
            for part in in_requests(self._member.group, changed):
                kafka.commit(
                    offsets=[
                        KafkaPartition(tp.topic, tp.partition, copy.next_offset, metadata=copy.metadata)  # pyright: ignore[reportCallIssue]
                        for tp, copy in part.items()
                    ],
                    asynchronous=True,
                )
        except KafkaException as refused:
            self._failed(refused.args[0])

    def _copy(self, row: StoredOffset) -> CommittedOffset:
        return CommittedOffset(row.next_offset, self._stamp.text(None if self._stamp_only else row.metadata))

    def _tell(self, copied: Mapping[TopicPartition, CommittedOffset]) -> None:
        offsets = {tp: copy.next_offset for tp, copy in copied.items()}
        self._member.observers.on(MirrorTried(group=self._member.group, offsets=offsets))

    def _failed(self, error: KafkaError) -> None:
        """Tell of the failure; the next turn tries again."""
        if error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
            self._stamp_only = True  # this broker accepts less than most
        if error.code() in _CHANGING:
            _log.debug("offsets of group %r were not committed to Kafka: %s", self._member.group, describe(error))
            return
        self._tell_failure(broker_error(error, _COMMITTING))

    def _tell_failure(self, error: BrokerError) -> None:
        self._member.observers.on(MirrorTried(group=self._member.group, reason=str(error), error=error))
