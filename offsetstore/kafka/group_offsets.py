"""Read a group's offsets in Kafka, and copy stored ones there, with a consumer that never joins the group.

Kafka allows commits without a member id while a group has no members; its own tools set offsets this way. If the
coordinator does not answer, librdkafka's synchronous commit waits without a limit; with the asynchronous one and its
callback, we can stop waiting.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Literal

import confluent_kafka as ck

from offsetstore.errors import BrokerError, GroupHasMembers, MetadataRefused, TopicMissing
from offsetstore.kafka.client import BACKOFF, MISSING_GRACE, Deadline, let_go, make
from offsetstore.kafka.committed import FINAL, consumer_config, read_with, try_to_read
from offsetstore.kafka.errors import MISSING, PASSING, Doing, describe, no_answer
from offsetstore.kafka.settings.librdkafka import ClientSettings
from offsetstore.offsets import CommittedOffset, TopicPartition, in_parts

_GLANCE: Final = 0.02  # seconds between two looks at what librdkafka reports meanwhile
_KEPT_MS: Final = 100
_HAS_MEMBERS: Final = frozenset({
    ck.KafkaError.UNKNOWN_MEMBER_ID,
    ck.KafkaError.ILLEGAL_GENERATION,
    ck.KafkaError.REBALANCE_IN_PROGRESS,
    ck.KafkaError.FENCED_INSTANCE_ID,
    ck.KafkaError.NON_EMPTY_GROUP,
})  # fmt: skip
_AGAIN: Final = PASSING | {ck.KafkaError._TIMED_OUT}  # noqa: SLF001
# What Kafka answers only if the group itself is allowed.
_BEHIND_THE_GROUP: Final = MISSING | {ck.KafkaError.TOPIC_AUTHORIZATION_FAILED}
# For a partition that can't exist, Kafka stores nothing, but checks the group's permission first (decision 0039).
_NO_PARTITION: Final = 2**31 - 1
_HARMLESS: Final = "the stored offsets are unchanged"
# The coordinator writes a request's offsets to its own topic as one batch, and refuses all of them if that exceeds
# message.max.bytes (1 MB by default): about seven thousand offsets with our stamp, or 250 with long texts.
_REQUEST_BYTES: Final = 500_000
_RECORD_BYTES: Final = 100  # at least what a record takes besides the texts


class GroupOffsets:
    """Reads and writes one group's offsets, for one process and for one thread at a time.

    :raises ConfigurationError: see `make`.
    """

    def __init__(self, settings: ClientSettings, group: str) -> None:
        self.pid = os.getpid()
        self.group = group
        self._reported: deque[ck.KafkaError] = deque(maxlen=100)
        self._answers: list[tuple[ck.KafkaError | None, list[ck.TopicPartition]]] = []
        self._config = consumer_config(settings, group, self._reported)
        config = {
            **self._config,
            "on_commit": self._on_commit,
            # How long librdkafka holds a commit, and can't be ended, while it looks for the group's coordinator.
            "group.protocol": "classic",
            "session.timeout.ms": _KEPT_MS,
        }
        self._consumer = make(ck.Consumer, config, settings.config)

    def close(self) -> None:
        """End the connections, even while a traceback still holds this object. There is no group to leave."""
        holder = [self._consumer]
        del self._consumer
        let_go(holder)

    def committed(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, CommittedOffset]:
        """Read the committed offsets. After an error, close this object.

        :raises BrokerError: as `offsetstore.protocol.ports.BrokerOffsets.committed_offsets` says.
        """
        doing = Doing(f"reading the offsets of group {self.group}", harmless=_HARMLESS)
        self._reported.clear()
        return read_with(self._consumer, partitions, doing, self._reported, deadline, config=self._config)

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], deadline: Deadline) -> None:
        """Commit all of them, in requests of a size that Kafka accepts, and repeat one after a passing error.

        If Kafka does not have some of the partitions, the others are committed. After any other error, close this
        object: an answer may still be under way.

        :raises BrokerError: as `offsetstore.protocol.ports.BrokerOffsets.commit` says.
        """
        missing: TopicMissing | None = None
        for part in in_requests(self.group, offsets):
            try:
                self._commit(part, deadline)
            except TopicMissing as error:
                missing = missing or error
        if missing is not None:
            raise missing

    def allows(self, operation: Literal["READ", "DESCRIBE"], topic: str, deadline: Deadline) -> bool:
        """Whether Kafka lets this principal commit the group's offsets (READ), or read them (DESCRIBE).

        Kafka is asked to do just that, and stores nothing.

        :param topic: any; whether the principal may use it does not matter.
        :raises BrokerError: no answer, or wrong credentials. Close this object after that, and after ``False``.
        """
        # The admin client could ask what is authorized, but can end the process while the coordinator is starting or
        # moving (decision 0010).
        doing = Doing(f"asking what is allowed on group {self.group}", harmless=_HARMLESS)
        self._reported.clear()
        if operation == "READ":
            error, _ = self._try_to_commit([ck.TopicPartition(topic, _NO_PARTITION, 0)], deadline, grace=0)
        else:
            _, error = try_to_read(self._consumer, [TopicPartition(topic, 0)], self._reported, deadline)
        if error is not None and error.code() not in _BEHIND_THE_GROUP:
            if error.code() == ck.KafkaError.GROUP_AUTHORIZATION_FAILED:
                return False
            raise no_answer(error, self._reported, doing, deadline.seconds)
        return True

    def _commit(self, offsets: Mapping[TopicPartition, CommittedOffset], deadline: Deadline) -> None:
        doing = Doing(f"committing the offsets of group {self.group}", permission="READ", harmless=_HARMLESS)
        wanted = [_partition(tp, offset) for tp, offset in offsets.items()]
        self._reported.clear()
        error, partitions = self._try_to_commit(wanted, deadline, grace=MISSING_GRACE)
        if error is not None:
            raise self._refusal(error, partitions, offsets, doing, deadline)

    def _try_to_commit(
        self, wanted: list[ck.TopicPartition], deadline: Deadline, *, grace: float
    ) -> tuple[ck.KafkaError | None, list[ck.TopicPartition]]:
        """Return the error that another try will not change, or the last one by the deadline.

        :param grace: seconds in which a missing partition may still become known.
        """
        started = time.monotonic()
        while True:
            answered, partitions = self._ask(wanted, deadline)
            error = answered or next((tp.error for tp in partitions if tp.error is not None), None)
            if error is None:
                return None, partitions
            young = error.code() in MISSING and time.monotonic() - started < grace
            if not (young or error.code() in _AGAIN) or deadline.rest <= BACKOFF:
                return error, partitions
            time.sleep(BACKOFF)

    def _ask(
        self, wanted: list[ck.TopicPartition], deadline: Deadline
    ) -> tuple[ck.KafkaError | None, list[ck.TopicPartition]]:
        self._answers.clear()
        try:
            self._consumer.commit(offsets=wanted, asynchronous=True)
        except ck.KafkaException as error:
            return error.args[0], []
        while not self._answers:
            # Only poll() delivers the answer and separately reported errors, and runs callbacks such as oauth_cb.
            message = self._consumer.poll(min(_GLANCE, deadline.rest))
            if message is not None and (said := message.error()) is not None:
                self._reported.append(said)
            if refused := next((failure for failure in self._reported if failure.code() in FINAL), None):
                return refused, []
            if not self._answers and not deadline.rest:
                return ck.KafkaError(ck.KafkaError._TIMED_OUT), []  # noqa: SLF001
        return self._answers[0]

    def _on_commit(self, error: ck.KafkaError | None, partitions: list[ck.TopicPartition]) -> None:
        self._answers.append((error, partitions))

    def _refusal(
        self,
        error: ck.KafkaError,
        partitions: list[ck.TopicPartition],
        offsets: Mapping[TopicPartition, CommittedOffset],
        doing: Doing,
        deadline: Deadline,
    ) -> BrokerError:
        code, found = error.code(), describe(error)
        if code == ck.KafkaError.OFFSET_METADATA_TOO_LARGE:
            longest = max(offsets, key=lambda tp: len(offsets[tp].metadata or ""))
            size = len(offsets[longest].metadata or "")
            return MetadataRefused(
                "the text is too long for Kafka to store with an offset",
                topic_partition=longest,
                found=f"{size} characters",
            )
        if code in _HAS_MEMBERS:
            return GroupHasMembers(
                f"the offsets of group {self.group} can't be set in Kafka while the group has members",
                found=found,
                next_step="A consumer has subscribed with this group.id: another application, or a tool such as "
                f"kafka-console-consumer. `kafka-consumer-groups --describe --members --group {self.group}` shows it, "
                f"with its address. Stop it, or give this job a group of its own in Kafka; {_HARMLESS}.",
            )
        if code in MISSING:
            named = [TopicPartition(tp.topic, tp.partition) for tp in partitions if tp.error is not None]
            return TopicMissing(
                "Kafka does not have all the partitions whose offsets are to be committed",
                found=", ".join(map(str, named)),
                next_step=f"Create the topic; {_HARMLESS}.",
            )
        return no_answer(error, self._reported, doing, deadline.seconds)


def in_requests(
    group: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Iterator[dict[TopicPartition, CommittedOffset]]:
    """Split the offsets into parts that Kafka accepts in one request."""

    def size(item: tuple[TopicPartition, CommittedOffset]) -> int:
        tp, offset = item
        texts = (group, tp.topic, offset.metadata or "")
        return _RECORD_BYTES + sum(len(text.encode(errors="replace")) for text in texts)

    return map(dict, in_parts(offsets.items(), size, _REQUEST_BYTES))


def _partition(tp: TopicPartition, offset: CommittedOffset) -> ck.TopicPartition:
    if not offset.metadata:  # confluent-kafka would send an empty text as a zero byte
        return ck.TopicPartition(tp.topic, tp.partition, offset.next_offset)
    try:
        return ck.TopicPartition(tp.topic, tp.partition, offset.next_offset, metadata=offset.metadata)
    except ValueError as error:  # UnicodeError is one
        raise MetadataRefused(
            "the text can't be sent to Kafka with an offset",
            topic_partition=tp,
            found=str(error),
            next_step="Remove NUL characters and unpaired surrogates.",
        ) from None
