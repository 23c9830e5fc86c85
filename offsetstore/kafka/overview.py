"""What an overview asks Kafka: many topics and groups at once; a failure of one does not affect the rest."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import confluent_kafka as ck

from offsetstore.errors import BrokerError, TopicMissing
from offsetstore.kafka import requests
from offsetstore.kafka.client import Client, Deadline, with_consumer
from offsetstore.kafka.errors import MISSING, Doing
from offsetstore.kafka.group_offsets import GroupOffsets, consumer_config
from offsetstore.kafka.settings import ClientSettings
from offsetstore.offsets import CommittedOffset, TopicPartition
from offsetstore.protocol.outbox import is_topic
from offsetstore.protocol.ports import FoundRecord, GroupSnapshot, KafkaSnapshot, LogEnds, TopicSnapshot
from offsetstore.runtime.functions import without_frames

Committed = dict[str, "dict[TopicPartition, CommittedOffset] | BrokerError"]

# In one request: librdkafka searches the request's whole list for each partition of the answer.
_PARTITIONS: Final = 1000
_AT_ONCE: Final = 8
# Shares of the time left, so that a coordinator that is down leaves some for the logs' ends.
_COMMITTED_SHARE: Final = 1 / 2
_MEMBERS_SHARE: Final = 1 / 4
_READ_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.1


class GroupConnections:
    """Reads the committed offsets of many groups, each on a connection of its own: docs/decisions/0010.

    The connections are kept for the next call; those of groups that it does not ask about are ended.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.pid = os.getpid()
        # With read_committed, Kafka would hold the offsets back while a transaction is about to commit others.
        self._settings = ClientSettings({**settings.config, "isolation.level": "read_uncommitted"})
        self._kept: dict[str, GroupOffsets] = {}

    def read(self, asked: Mapping[str, Collection[TopicPartition]], deadline: Deadline) -> Committed:
        """Return each group's offsets, or its error. Eight groups are read at a time."""
        for gone in self._kept.keys() - {group for group, partitions in asked.items() if partitions}:
            self._kept.pop(gone).close()

        def read_one(group: str) -> dict[TopicPartition, CommittedOffset] | BrokerError:
            if not asked[group]:
                return {}
            kept = self._kept.pop(group, None) or GroupOffsets(self._settings, group)
            try:
                offsets = kept.committed(asked[group], deadline)
            except BrokerError as error:
                kept.close()  # a late answer must not be taken for the next request's
                return without_frames(error)
            self._kept[group] = kept
            return offsets

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="offsetstore-groups") as pool:
            return dict(zip(asked, pool.map(read_one, asked), strict=True))

    def close(self) -> None:
        while self._kept:
            self._kept.popitem()[1].close()


def take_snapshot(
    client: Client, connections: GroupConnections, groups: Mapping[str, Collection[str]], deadline: Deadline
) -> KafkaSnapshot:
    """Ask for the topics and groups; see `BrokerOverview.snapshot`.

    :raises BrokerError: Kafka does not answer at all, or refuses the credentials.
    """
    names = sorted({topic for topics in groups.values() for topic in topics})
    described = requests.topics(names)
    topics = client.outcomes([described], deadline)[0] if names else {}
    cluster_id = client.cluster_id(next(filter(is_topic, names), requests.OFFSETS_TOPIC), deadline)
    there = {name: answer for name, answer in topics.items() if not isinstance(answer, ck.KafkaError)}
    numbers = {name: requests.partition_numbers(description) for name, description in there.items()}
    committed = connections.read(
        {
            group: [TopicPartition(topic, number) for topic in topics for number in numbers.get(topic, ())]
            for group, topics in groups.items()
        },
        deadline.part(_COMMITTED_SHARE),
    )
    members = _members(client, groups, deadline) if groups else {}
    ends = _ends(client, {name: requests.led_partitions(description) for name, description in there.items()}, deadline)
    return KafkaSnapshot(
        cluster_id,
        {
            name: _topic(name, there[name], ends[name], client, deadline)
            if name in there
            else TopicSnapshot(error=_why(client, name, topics[name], described.doing, deadline))
            for name in names
        },
        {group: _group(committed[group], members=members[group]) for group in groups},
    )


def _members(client: Client, groups: Collection[str], deadline: Deadline) -> dict[str, bool | BrokerError]:
    asked = requests.groups()
    part = deadline.part(_MEMBERS_SHARE)
    [answer] = client.outcomes([asked], part)
    if isinstance(failure := answer["groups"], ck.KafkaError):
        return dict.fromkeys(groups, client.explained(failure, asked.doing, part))
    outcomes = {group: requests.has_members(answer, group) for group in groups}
    return {
        group: client.explained(outcome, asked.doing, part) if isinstance(outcome, ck.KafkaError) else outcome
        for group, outcome in outcomes.items()
    }


def _ends(
    client: Client, numbers: Mapping[str, Sequence[int]], deadline: Deadline
) -> dict[str, dict[int, LogEnds | ck.KafkaError]]:
    partitions = [TopicPartition(topic, number) for topic, led in numbers.items() for number in led]
    wanted = ((requests.EARLIEST, False), (requests.LATEST, False), (requests.LATEST, True))
    parts = list(_parts(partitions))
    answers = client.outcomes(
        [requests.offsets(part, spec, read_committed=is_committed) for spec, is_committed in wanted for part in parts],
        deadline,
    )
    beginnings, ends, stable = (
        {tp: info for answer in answers[kind * len(parts) : (kind + 1) * len(parts)] for tp, info in answer.items()}
        for kind in range(len(wanted))
    )
    logs: dict[str, dict[int, LogEnds | ck.KafkaError]] = {topic: {} for topic in numbers}
    for tp in partitions:
        three = beginnings[tp], ends[tp], stable[tp]
        error = next((info for info in three if isinstance(info, ck.KafkaError)), None)
        # All are asked at the same time, so a transaction may have ended in between.
        logs[tp.topic][tp.partition] = error or LogEnds(
            three[0].offset, three[1].offset, min(three[1].offset, three[2].offset)
        )
    return logs


def _topic(
    name: str, description: Any, ends: Mapping[int, LogEnds | ck.KafkaError], client: Client, deadline: Deadline
) -> TopicSnapshot:
    failed = next((log for log in ends.values() if isinstance(log, ck.KafkaError)), None)
    numbers = requests.partition_numbers(description)
    # Partitions without a leader were not asked about: librdkafka would wait for them as long as the request may take.
    if failed is None and len(ends) < len(numbers):
        failed = ck.KafkaError(ck.KafkaError.LEADER_NOT_AVAILABLE)
    return TopicSnapshot(
        requests.topic_id(description),
        len(numbers),
        {number: log for number, log in sorted(ends.items()) if isinstance(log, LogEnds)},
        None if failed is None else _why(client, name, failed, f"reading the log ends of {name}", deadline),
    )


def _group(
    committed: dict[TopicPartition, CommittedOffset] | BrokerError, *, members: bool | BrokerError
) -> GroupSnapshot:
    errors = [result for result in (committed, members) if isinstance(result, BrokerError)]
    return GroupSnapshot(
        None if isinstance(committed, BrokerError) else committed,
        None if isinstance(members, BrokerError) else members,
        next(iter(errors), None),
    )


def _why(client: Client, topic: str, error: ck.KafkaError, doing: Doing | str, deadline: Deadline) -> BrokerError:
    if error.code() in MISSING:
        return TopicMissing(f"Kafka has no topic {topic}, or not all its partitions")
    return client.explained(error, doing, deadline)


def find_first_records(
    client: Client, asked: Collection[tuple[TopicPartition, int]], deadline: Deadline
) -> dict[tuple[TopicPartition, int], FoundRecord | None]:
    """Find the first records at or after times; see `BrokerOverview.first_records`.

    :raises BrokerError: Kafka does not answer for any of them.
    """
    # A request can ask for each partition once, so all second times go into another request, and so on.
    turns: list[dict[TopicPartition, int]] = []
    turn_of: Counter[TopicPartition] = Counter()
    for tp, time_ms in asked:
        if turn_of[tp] == len(turns):
            turns.append({})
        turns[turn_of[tp]][tp] = time_ms
        turn_of[tp] += 1
    parts = [{tp: turn[tp] for tp in part} for turn in turns for part in _parts(list(turn))]
    sent = [
        requests.offsets_at({tp: requests.at(time_ms) for tp, time_ms in part.items()}, read_committed=False)
        for part in parts
    ]
    records: dict[tuple[TopicPartition, int], FoundRecord | None] = {}
    failed: ck.KafkaError | None = None
    for part, answer in zip(parts, client.outcomes(sent, deadline), strict=True):
        for tp, info in answer.items():
            if isinstance(info, ck.KafkaError):
                failed = info
            else:  # -1: no record is that recent
                records[tp, part[tp]] = FoundRecord(info.offset, info.timestamp) if info.offset >= 0 else None
    if failed is not None and not records:
        raise client.explained(failed, "looking up records by time", deadline)
    return records


def _parts(partitions: Sequence[TopicPartition]) -> Iterator[Sequence[TopicPartition]]:
    return (partitions[first : first + _PARTITIONS] for first in range(0, len(partitions), _PARTITIONS))


def read_records(
    settings: ClientSettings, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, FoundRecord | None]:
    """Read each partition's first record at or above an offset; see `BrokerOverview.read_records`."""
    config = {
        # librdkafka requires a group's name, though the consumer joins none and commits nothing. The principal may lack
        # permissions for the group; that is reported, and harms nothing.
        **consumer_config(settings, "offsetstore", deque(maxlen=1)),
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 100,
        "max.partition.fetch.bytes": 65_536,  # a larger batch of records comes all the same
    }
    return with_consumer(config, settings.config, lambda consumer: _read(consumer, offsets))


def _read(consumer: ck.Consumer, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundRecord | None]:
    records: dict[TopicPartition, FoundRecord | None] = {}
    failed: set[TopicPartition] = set()
    consumer.assign([ck.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()])
    until = time.monotonic() + _READ_SECONDS
    while len(records.keys() | failed) < len(offsets) and time.monotonic() < until:
        message = consumer.poll(_POLL_SECONDS)
        topic, number = (None, None) if message is None else (message.topic(), message.partition())
        if message is None or topic is None or number is None or number < 0:
            continue
        tp, error = TopicPartition(topic, number), message.error()
        if tp in records:
            continue
        if error is None:
            kind, at = message.timestamp()
            offset = message.offset()
            if kind != ck.TIMESTAMP_NOT_AVAILABLE and offset is not None:
                records[tp] = FoundRecord(offset, at)
            else:
                failed.add(tp)
        elif error.code() == ck.KafkaError._PARTITION_EOF:  # noqa: SLF001 -- librdkafka's code, public all the same
            records[tp] = None
        else:
            failed.add(tp)
    return records
