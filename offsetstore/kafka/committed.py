"""What a group has committed, read by a consumer that never joins it.

The admin client can read it too, but not while the group's coordinator is starting or moving, as it does just after a
broker's restart, when jobs start as well: librdkafka then ends the whole process
(https://github.com/confluentinc/librdkafka/issues/5040), or does not look for the coordinator again. A consumer does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import Any, Final

import confluent_kafka as ck

from offsetstore.errors import BrokerUnavailable
from offsetstore.kafka.client import BACKOFF, LOG, Deadline, with_consumer
from offsetstore.kafka.errors import PASSING, WRONG_CREDENTIALS, Doing, no_answer
from offsetstore.kafka.settings.librdkafka import ClientSettings
from offsetstore.offsets import CommittedOffset, TopicPartition

# Seconds for the first attempt, doubled for each further one: only between two of them do we see what was refused.
_FIRST_PATIENCE: Final = 0.5
# In one request: librdkafka searches the request's whole list for each partition of the answer.
_PARTITIONS: Final = 2000
FINAL: Final = WRONG_CREDENTIALS | {ck.KafkaError.GROUP_AUTHORIZATION_FAILED}
"""Codes that are reported separately; the answer then never comes."""
_STABLE_SHARE: Final = 0.8  # of the time, for stable offsets; the rest is for why Kafka does not give them
_UNSTABLE: Final = "read_uncommitted"
_AGAIN: Final = PASSING | {ck.KafkaError._TIMED_OUT}  # noqa: SLF001


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
                    f"lasts, Kafka has lost its end, as brokers 4.3.0 to 4.4.0 can: docs/outbox.md; {doing.harmless}.",
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
