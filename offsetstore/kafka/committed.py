"""What a group has committed, read as a consumer that never joins.

The admin client could be asked too, but not while the group's coordinator is starting or moves, which is just after a
broker's restart, when jobs start as well: librdkafka then ends the whole process
(https://github.com/confluentinc/librdkafka/issues/5040), or does not look for the coordinator again. A consumer does.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

import confluent_kafka as ck

from offsetstore.kafka.client import BACKOFF, LOG, let_go
from offsetstore.kafka.errors import PASSING, WRONG_CREDENTIALS, Doing, broker_error, no_answer
from offsetstore.offsets import CommittedOffset, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from offsetstore.kafka.client import Deadline
    from offsetstore.kafka.settings.librdkafka import ClientSettings

# Seconds for the first try, doubled with each: between two of them we see what was refused.
_FIRST_PATIENCE: Final = 0.5
FINAL: Final = WRONG_CREDENTIALS | {ck.KafkaError.GROUP_AUTHORIZATION_FAILED}
"""Codes that are reported beside the answer, which then never comes."""
_AGAIN: Final = PASSING | {ck.KafkaError._TIMED_OUT}  # noqa: SLF001


def consumer_config(settings: ClientSettings, group: str, reported: deque[ck.KafkaError]) -> dict[str, Any]:
    """The settings of a consumer that never joins the group: it only reads and writes the group's offsets.

    :param reported: gets what librdkafka reports beside its answers.
    """
    return {
        "logger": LOG,
        **settings.config,
        "group.id": group,
        "isolation.level": "read_committed" if settings.read_committed else "read_uncommitted",
        "enable.auto.commit": False,
        "error_cb": reported.append,
    }


def committed_offsets(
    settings: ClientSettings, group: str, partitions: Sequence[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, CommittedOffset]:
    """Read the group's offsets of these partitions in one request; a partition without one is left out.

    With ``read_committed``, offsets that an open transaction is about to commit are waited for, as a consumer does.

    :raises BrokerUnavailable: no answer by the deadline.
    :raises BrokerRefused: Kafka says no.
    """
    reported: deque[ck.KafkaError] = deque(maxlen=100)
    consumer = ck.Consumer(consumer_config(settings, group, reported))
    try:
        return read_with(consumer, partitions, Doing(f"reading the offsets of group {group}"), reported, deadline)
    finally:  # it is let go, not closed: there is no group to leave
        holder = [consumer]
        del consumer
        let_go(holder)


def read_with(
    consumer: ck.Consumer,
    partitions: Iterable[TopicPartition],
    doing: Doing,
    reported: deque[ck.KafkaError],
    deadline: Deadline,
) -> dict[TopicPartition, CommittedOffset]:
    """As `committed_offsets`, with a consumer of `consumer_config` that is there already."""
    asked = [ck.TopicPartition(tp.topic, tp.partition) for tp in partitions]
    patience = _FIRST_PATIENCE
    while True:
        # What the consumer has to say beside the answer comes only this way, and so do callbacks such as oauth_cb.
        if (message := consumer.poll(0)) is not None and (said := message.error()) is not None:
            reported.append(said)
        if refused := next((each for each in reported if each.code() in FINAL), None):
            raise broker_error(refused, doing)
        found, error = _ask(consumer, asked, min(patience, deadline.rest))
        if error is None:
            consumer.poll(0)
            return {
                TopicPartition(tp.topic, tp.partition): CommittedOffset(tp.offset, _text(tp))
                for tp in found
                if tp.offset >= 0  # -1001: nothing is committed
            }
        if error.code() not in _AGAIN or deadline.rest <= BACKOFF:
            raise no_answer(error, reported, doing, deadline.seconds)
        if error.code() != ck.KafkaError._TIMED_OUT:  # noqa: SLF001
            time.sleep(BACKOFF)
        patience *= 2


def _ask(
    consumer: ck.Consumer, asked: list[ck.TopicPartition], seconds: float
) -> tuple[list[ck.TopicPartition], ck.KafkaError | None]:
    try:
        found = consumer.committed(asked, timeout=max(seconds, 0.001))
    except ck.KafkaException as error:
        return [], error.args[0]
    return found, next((tp.error for tp in found if tp.error is not None), None)


def _text(committed: ck.TopicPartition) -> str | None:
    """What was committed beside the offset; Kafka does not tell no text from an empty one.

    confluent-kafka reads until a zero byte, which ends the texts that it has written itself, and those alone: of a text
    of Java's it can show more than there is, or nothing that can be decoded
    (https://github.com/confluentinc/librdkafka/issues/4649). So a text that counts must say where it ends.
    """
    try:
        return committed.metadata or None
    except UnicodeDecodeError:
        return None
