"""A group's offsets in Kafka: read, and copied there, by a consumer that never joins the group.

The admin client can read them too, but not while the group's coordinator is starting or moving, as it does just after a
broker's restart, when jobs start as well: librdkafka then ends the whole process
(https://github.com/confluentinc/librdkafka/issues/5040), or does not look for the coordinator again. A consumer does.

Kafka allows commits without a member id while a group has no members; its own tools set offsets this way. If the
coordinator does not answer, librdkafka's synchronous commit waits without a limit; with the asynchronous one and its
callback, we can stop waiting.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Literal

import confluent_kafka as ck

from offsetstore.errors import BrokerError, BrokerUnavailable, GroupHasMembers, MetadataRefused, TopicMissing
from offsetstore.kafka.client import BACKOFF, LOG, MISSING_GRACE, Deadline, let_go, make, with_consumer
from offsetstore.kafka.errors import MISSING, PASSING, WRONG_CREDENTIALS, Doing, describe, no_answer
from offsetstore.kafka.settings import ClientSettings
from offsetstore.offsets import CommittedOffset, TopicPartition, in_parts
from offsetstore.text import documentation

# Seconds for the first attempt, doubled for each further one: only between two of them do we see what was refused.
_FIRST_PATIENCE: Final = 0.5
# In one request: librdkafka searches the request's whole list for each partition of the answer.
_PARTITIONS: Final = 2000
FINAL: Final = WRONG_CREDENTIALS | {ck.KafkaError.GROUP_AUTHORIZATION_FAILED}
"""Codes that are reported separately; the answer then never comes."""
_STABLE_SHARE: Final = 0.8  # of the time, for stable offsets; the rest is for why Kafka does not give them
_UNSTABLE: Final = "read_uncommitted"
_AGAIN: Final = PASSING | {ck.KafkaError._TIMED_OUT}  # noqa: SLF001
_GLANCE: Final = 0.02  # seconds between two looks at what librdkafka reports meanwhile
_KEPT_MS: Final = 100
_HAS_MEMBERS: Final = frozenset({
    ck.KafkaError.UNKNOWN_MEMBER_ID,
    ck.KafkaError.ILLEGAL_GENERATION,
    ck.KafkaError.REBALANCE_IN_PROGRESS,
    ck.KafkaError.FENCED_INSTANCE_ID,
    ck.KafkaError.NON_EMPTY_GROUP,
})  # fmt: skip
# What Kafka answers only if the group itself is allowed.
_BEHIND_THE_GROUP: Final = MISSING | {ck.KafkaError.TOPIC_AUTHORIZATION_FAILED}
# For a partition that can't exist, Kafka stores nothing, but checks the group's permission first (decision 0039).
_NO_PARTITION: Final = 2**31 - 1
_HARMLESS: Final = "the stored offsets are unchanged"
# The coordinator writes a request's offsets to its own topic as one batch, and refuses all of them if that exceeds
# message.max.bytes (1 MB by default): about seven thousand offsets with our stamp, or 250 with long texts.
_REQUEST_BYTES: Final = 500_000
_RECORD_BYTES: Final = 100  # at least what a record takes besides the texts


def consumer_config(
    settings: ClientSettings, group: str, reported: deque[ck.KafkaError], *, stable: bool | None = None
) -> dict[str, Any]:
    """The settings of a consumer that never joins the group: it only reads and writes the group's offsets.

    :param reported: collects the errors that librdkafka reports apart from its answers.
    :param stable: whether it waits for offsets that an open transaction is about to commit; by default, if the
        settings' ``isolation.level`` is ``read_committed``.
    """
    is_stable = settings.read_committed if stable is None else stable
    return {
        "logger": LOG,
        **settings.config,
        "group.id": group,
        "isolation.level": "read_committed" if is_stable else _UNSTABLE,
        "enable.auto.commit": False,
        "error_cb": reported.append,
    }


def committed_offsets(
    settings: ClientSettings,
    group: str,
    partitions: Collection[TopicPartition],
    deadline: Deadline,
    *,
    doing: Doing | None = None,
    stable: bool | None = None,
) -> dict[TopicPartition, CommittedOffset]:
    """Read the group's offsets of these partitions; a partition without one is left out.

    :param stable: as for `consumer_config`.
    :raises BrokerUnavailable: no answer by the deadline, or an open transaction is in the way.
    :raises BrokerRefused: Kafka refuses the request.
    """
    reported: deque[ck.KafkaError] = deque(maxlen=100)
    doing = doing or Doing(f"reading the offsets of group {group}")
    config = consumer_config(settings, group, reported, stable=stable)
    return with_consumer(
        config,
        settings.config,
        lambda consumer: read_with(consumer, partitions, doing, reported, deadline, config=config),
    )


def read_with(
    consumer: ck.Consumer,
    partitions: Collection[TopicPartition],
    doing: Doing,
    reported: deque[ck.KafkaError],
    deadline: Deadline,
    *,
    config: dict[str, Any],
) -> dict[TopicPartition, CommittedOffset]:
    """Like `committed_offsets`, with an existing consumer, whose ``config`` is a `consumer_config`."""
    if config["isolation.level"] == _UNSTABLE:
        found, error = try_to_read(consumer, partitions, reported, deadline)
    else:
        found, error = try_to_read(consumer, partitions, reported, deadline.part(_STABLE_SHARE))
        if error is not None and error.code() in _AGAIN:
            # librdkafka repeats the request while a transaction is about to commit an offset, and does not say why. If
            # Kafka gives only the offset before that, a transaction is in the way. New consumers ask, since after an
            # outage an old one may wait ten seconds before it connects again (decision 0098).
            _, unstable = _ask_anew(partitions, {**config, "isolation.level": _UNSTABLE}, deadline.part(0.5))
            found, error = _ask_anew(partitions, config, deadline)
            if unstable is None and error is not None and error.code() in _AGAIN:
                raise BrokerUnavailable(
                    f"an open Kafka transaction blocks {doing}",
                    next_step="It ends within its producer's transaction.timeout.ms, a minute by default. If this "
                    "lasts, Kafka has lost its end, as brokers 4.3.0 to 4.4.0 can: see "
                    f"{documentation('relay-recovery')}; {doing.harmless}.",
                )
    if error is not None:
        raise no_answer(error, reported, doing, deadline.seconds)
    return found


def _ask_anew(
    partitions: Collection[TopicPartition], config: dict[str, Any], deadline: Deadline
) -> tuple[dict[TopicPartition, CommittedOffset], ck.KafkaError | None]:
    reported: deque[ck.KafkaError] = deque(maxlen=100)
    own = {**config, "error_cb": reported.append}
    return with_consumer(own, own, lambda consumer: try_to_read(consumer, partitions, reported, deadline))


def try_to_read(
    consumer: ck.Consumer, partitions: Collection[TopicPartition], reported: deque[ck.KafkaError], deadline: Deadline
) -> tuple[dict[TopicPartition, CommittedOffset], ck.KafkaError | None]:
    """Like `read_with`, but return the error that another try will not change, or the last one by the deadline."""
    asked = [ck.TopicPartition(tp.topic, tp.partition) for tp in partitions]
    patience = _FIRST_PATIENCE
    while True:
        # Only poll() delivers the errors that the consumer reports separately, and runs callbacks such as oauth_cb.
        if (message := consumer.poll(0)) is not None and (said := message.error()) is not None:
            reported.append(said)
        if refused := next((failure for failure in reported if failure.code() in FINAL), None):
            return {}, refused
        found, error = _ask(consumer, asked, patience, deadline)
        if error is None:
            consumer.poll(0)
            return {
                TopicPartition(tp.topic, tp.partition): CommittedOffset(tp.offset, _text(tp))
                for tp in found
                if tp.offset >= 0  # -1001: nothing is committed
            }, None
        if error.code() not in _AGAIN or deadline.rest <= BACKOFF:
            return {}, error
        # A request that has timed out has waited already.
        if error.code() != ck.KafkaError._TIMED_OUT:  # noqa: SLF001
            time.sleep(BACKOFF)
        patience *= 2


def _ask(
    consumer: ck.Consumer, asked: list[ck.TopicPartition], patience: float, deadline: Deadline
) -> tuple[list[ck.TopicPartition], ck.KafkaError | None]:
    """Return the offsets, or the first error; no request takes longer than ``patience`` seconds."""
    offsets: list[ck.TopicPartition] = []
    for first in range(0, len(asked), _PARTITIONS):
        seconds = max(min(patience, deadline.rest), 0.001)
        try:
            offsets += consumer.committed(asked[first : first + _PARTITIONS], timeout=seconds)
        except ck.KafkaException as error:
            return [], error.args[0]
    return offsets, next((tp.error for tp in offsets if tp.error is not None), None)


def _text(committed: ck.TopicPartition) -> str | None:
    """The text that was committed with the offset; Kafka does not distinguish no text from an empty one.

    confluent-kafka reads up to a zero byte, but only texts that it wrote itself end with one: a text from Java can come
    with more behind its end, or with bytes that can't be decoded
    (https://github.com/confluentinc/librdkafka/issues/4649). So a text that matters must say where it ends.
    """
    try:
        return committed.metadata or None
    except UnicodeDecodeError:
        return None


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
        doing = Doing(f"committing the offsets of group {self.group}", permission="READ", harmless=_HARMLESS)
        missing: TopicMissing | None = None
        for part in in_requests(self.group, offsets):
            wanted = [_partition(tp, offset) for tp, offset in part.items()]
            self._reported.clear()
            error, partitions = self._try_to_commit(wanted, deadline, grace=MISSING_GRACE)
            if error is None:
                continue
            refusal = self._refusal(error, partitions, part, doing, deadline)
            if not isinstance(refusal, TopicMissing):
                raise refusal
            missing = missing or refusal
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
