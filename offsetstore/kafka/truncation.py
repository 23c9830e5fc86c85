"""Does a log still have the epoch that it had up to an offset? Only a consumer can ask (decision 0049).

librdkafka asks the leader once for each partition (OffsetForLeaderEpoch) before it fetches from an offset that was
given with a leader epoch. If the log has that epoch only up to an earlier offset, it resets the partition instead, and
``auto.offset.reset=error`` makes that an error.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import confluent_kafka as ck

from offsetstore.errors import BrokerError
from offsetstore.kafka.client import Deadline, with_consumer
from offsetstore.kafka.errors import PASSING, Doing, broker_error, no_answer
from offsetstore.kafka.group_offsets import FINAL, consumer_config
from offsetstore.kafka.settings import ClientSettings
from offsetstore.offsets import EpochPair, TopicPartition

_POLL_SECONDS: Final = 0.1
PARTITIONS: Final = 200
"""How many to ask about at once."""
# Of each partition, to see one record. A larger batch comes all the same if it is the first of an answer. For other
# partitions the broker then sends nothing (since Fetch v3), and librdkafka raises the size only for a batch that was
# cut off. So a batch of the default batch.size (16 KiB) must fit, or a round trip would settle only one partition of
# each broker. For all partitions that are asked about at once, this is 6 MiB.
_BYTES: Final = 32 * 1024
_DOING: Final = Doing("comparing the logs with their leader epochs", permission="READ")
_TOO_SHORT: Final = replace(_DOING, harmless=f"{_DOING.harmless}; a longer timeout= of the Broker lets it wait longer")
# For people only: the error's code says that the log was truncated.
_PARTS_AT: Final = re.compile(r"broker end offset is (\d+)")


def find_resets(
    settings: ClientSettings, pairs: Mapping[TopicPartition, EpochPair], deadline: Deadline
) -> dict[TopicPartition, int | BrokerError | None]:
    """Return the partitions that can't be read from the pair's offset, with the offset where the logs part.

    Any other partition has a record there, or ends there. One without an answer by the deadline has the error instead.

    :raises BrokerUnavailable: there was no answer before the deadline.
    :raises BrokerRefused: Kafka refuses the credentials.
    """
    reported: deque[ck.KafkaError] = deque(maxlen=100)
    config = {
        **consumer_config(settings, "offsetstore", reported),
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 100,
        "fetch.message.max.bytes": _BYTES,  # by both names: the user's own settings may have either
        "max.partition.fetch.bytes": _BYTES,
        "queued.min.messages": 1,
    }
    return with_consumer(config, settings.config, lambda consumer: _ask(consumer, pairs, reported, deadline))


def _ask(
    consumer: ck.Consumer,
    pairs: Mapping[TopicPartition, EpochPair],
    reported: deque[ck.KafkaError],
    deadline: Deadline,
) -> dict[TopicPartition, int | BrokerError | None]:
    answers: dict[TopicPartition, int | BrokerError | None] = {}
    open_ = set(pairs)
    consumer.assign(
        [
            ck.TopicPartition(tp.topic, tp.partition, pair.offset, leader_epoch=pair.leader_epoch)
            for tp, pair in pairs.items()
        ]
    )
    last: ck.KafkaError | None = None
    while open_:
        message = consumer.poll(min(_POLL_SECONDS, deadline.rest))
        if refused := next((failure for failure in reported if failure.code() in FINAL), None):
            raise broker_error(refused, _DOING)
        if message is None:
            if not deadline.rest:
                late = no_answer(last, reported, _TOO_SHORT, deadline.seconds)
                if len(open_) == len(pairs):
                    raise late
                return answers | dict.fromkeys(open_, late)
            continue
        topic, number, error = message.topic(), message.partition(), message.error()
        if topic is None or number is None or number < 0 or (tp := TopicPartition(topic, number)) not in open_:
            continue
        code = None if error is None else error.code()
        if error is not None and code == ck.KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 -- public all the same
            parts_at = _PARTS_AT.search(error.str())
            answers[tp] = int(parts_at[1]) if parts_at else None
        elif error is not None and code != ck.KafkaError._PARTITION_EOF:  # noqa: SLF001
            if code is None or code <= 0 or code in PASSING:
                last = error
                continue
            answers[tp] = broker_error(error, _DOING)
        open_.discard(tp)
        consumer.incremental_unassign([ck.TopicPartition(tp.topic, tp.partition)])
    return answers
