"""What keeps Kafka from telling a group's offsets is told as what it is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import confluent_kafka as ck
import pytest

from offsetstore.errors import BrokerUnavailable
from offsetstore.kafka import group_offsets
from offsetstore.kafka.client import Deadline
from offsetstore.kafka.errors import Doing
from offsetstore.kafka.group_offsets import consumer_config, read_with
from offsetstore.kafka.settings import ClientSettings
from offsetstore.offsets import CommittedOffset, TopicPartition

PARTITION = TopicPartition("anchor", 0)


class Silent:
    """A consumer that gets no answer."""

    tells = False

    def poll(self, _seconds: float) -> None:
        pass

    def committed(self, asked: Sequence[ck.TopicPartition], *, timeout: float) -> list[ck.TopicPartition]:
        if self.tells:
            return [ck.TopicPartition(one.topic, one.partition, 7) for one in asked]
        time.sleep(timeout)
        raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))


class Telling(Silent):
    """One that gets its answer."""

    tells = True


@pytest.mark.parametrize(
    ("unstable", "stable", "said"),
    [
        (Silent, Silent, "no answer from Kafka within 0.5 s while reading"),
        (Telling, Silent, "an open Kafka transaction blocks reading"),
        (Silent, Telling, None),
        (Telling, Telling, None),
    ],
)
def test_a_transaction_is_blamed_only_if_kafka_tells_what_was_committed_before(
    unstable: type[Silent], stable: type[Silent], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"read_uncommitted": unstable, "read_committed": stable}

    def with_consumer(config: Mapping[str, Any], _: object, use: Callable[[Silent], Any]) -> Any:
        return use(made[config["isolation.level"]]())

    monkeypatch.setattr(group_offsets, "with_consumer", with_consumer)
    reported: deque[ck.KafkaError] = deque()
    config = consumer_config(ClientSettings({"bootstrap.servers": "nowhere:1"}), "billing", reported, stable=True)
    first: Any = Silent()

    def read() -> dict[TopicPartition, CommittedOffset]:
        return read_with(first, [PARTITION], Doing("reading"), reported, Deadline.after(0.5), config=config)

    began = time.monotonic()
    if said is None:
        assert read() == {PARTITION: CommittedOffset(7, None)}
    else:
        with pytest.raises(BrokerUnavailable, match=said):
            read()
        assert time.monotonic() - began >= 0.5
