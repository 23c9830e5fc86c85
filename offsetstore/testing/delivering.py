"""Hand records to a transform and its writers without Kafka: as a consumer does, in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.processing.dead_letters import DeadLetters
from offsetstore.processing.handling import Handler, Record
from offsetstore.processing.plan import MetadataFunction
from offsetstore.processing.runner import Runner, RunnerSettings, Taken
from offsetstore.protocol.letters import Payload
from offsetstore.protocol.ports import Writer
from offsetstore.store.claim import Claim

if TYPE_CHECKING:
    from offsetstore.consumer.delivery import ArrowTransform
    from offsetstore.consumer.records import ConsumedRecord


def deliver(
    claim: Claim,
    records: Sequence[Record],
    transform: ArrowTransform | Handler,
    into: Writer | Mapping[str, Writer],
    *,
    metadata: MetadataFunction | None = None,
    dead_letters: DeadLetters | None = None,
    propagate: Collection[str] = (),
    number: int = 0,
) -> None:
    """Write records as a `Consumer` writes one flush: rows, offsets, metadata and dead letters in one transaction.

    It needs no Kafka. Records below the stored offset are cropped, as after a crash. Each partition is advanced to its
    last record. With `InMemoryOffsetStore`, the writer is an `Execute` whose function calls ``work.connection.append``.

    :param claim: as from ``store.claim("billing", topics=["payments"])``.
    :param transform, into, metadata, dead_letters, propagate: see `Consumer`.
    :param number: `BatchInfo.number`.
    :raises OffsetStoreError: the error that would end the consumer.
    """
    from offsetstore.consumer.delivery import ConsumerOutputs, Polled, PolledRecords  # noqa: PLC0415 - an extra
    from offsetstore.consumer.handled import HandledRecords  # noqa: PLC0415 - the same

    outputs = ConsumerOutputs(transform, into, propagate)
    settings = RunnerSettings(metadata=metadata, dead_letters=dead_letters, propagate=propagate)
    settings.check_dead_letters(outputs.writers.values())
    settings.check_handler(outputs.handler)
    by_partition = defaultdict[TopicPartition, list["ConsumedRecord"]](list)
    for record in as_consumed(records):
        by_partition[record.topic_partition].append(record)
    stored, terms = claim.offsets(), claim.new_terms(by_partition)
    polled: dict[TopicPartition, Polled] = {}
    for tp, of_partition in by_partition.items():
        first = of_partition[0].offset
        begin = min(first, stored[tp].next_offset) if tp in stored else first
        polled[tp] = Polled(OffsetRange(begin, of_partition[-1].offset + 1), of_partition, terms[tp])
    source = _Once()
    kind: Callable[..., PolledRecords] = PolledRecords if outputs.handler is None else HandledRecords
    # Records that are handled have the topic's id; without Kafka it is empty.
    more: dict[str, Any] = {} if outputs.handler is None else {"topic_ids": {tp.topic: "" for tp in polled}}
    runner = Runner(claim, source, settings)

    @contextmanager
    def take() -> Generator[Taken | None]:
        yield Taken(kind(number, claim, outputs, polled, source.sleep, **more)) if polled else None

    runner.run(number, take)


def as_consumed(records: Sequence[Record]) -> list[ConsumedRecord]:
    """The records as the consumer polls them, in the order of their coordinates."""
    from offsetstore.consumer.records import ConsumedRecord  # noqa: PLC0415 - an extra

    return [
        ConsumedRecord(
            TopicPartition(record.topic, record.partition),
            record.offset,
            Payload(
                record.key,
                record.value,
                record.headers,
                record.timestamp_ms,
                -1 if record.timestamp_ms is None else 0,
            ),
        )
        for record in sorted(records, key=coordinates)
    ]


def coordinates(record: Record) -> tuple[str, int, int]:
    """Where the record is."""
    return record.topic, record.partition, record.offset


class _Once:
    """A source of one delivery, which nobody stops."""

    def is_running(self) -> bool:
        return True

    def is_stopping(self, error: BaseException) -> bool:  # noqa: ARG002 - the Protocol's
        return False

    def typed(self, error: BaseException) -> BaseException:
        return error

    def sleep(self, seconds: float) -> None:
        Event().wait(seconds)
