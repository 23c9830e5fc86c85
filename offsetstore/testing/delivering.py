"""Hand records to a transform and its writers without Kafka: as a consumer does, in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event

from offsetstore.consumer.delivery import ArrowTransform, ConsumerOutputs, Polled, PolledRecords, typed
from offsetstore.consumer.handled import HandledRecords
from offsetstore.consumer.records import ConsumedRecord
from offsetstore.errors import ConfigurationError
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.processing.dead_letters import DeadLetters
from offsetstore.processing.handling import Handler, Record
from offsetstore.processing.plan import MetadataFunction
from offsetstore.processing.runner import Runner, RunnerSettings, Taken
from offsetstore.protocol.ports import Writer
from offsetstore.store.claim import Claim
from offsetstore.testing.records import as_consumed


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

    It needs no Kafka. Records below the stored offset are cropped, as after a crash. Offsets ascend in each partition,
    which is advanced to its last record. With `InMemoryOffsetStore`, the writer is an `Execute` whose function calls
    ``work.connection.append``.

    :param claim: as from ``store.claim("billing", topics=["payments"])``.
    :param transform: computes the rows; this and the arguments below are as of `Consumer`.
    :param number: `BatchInfo.number`.
    :raises Exception: what would end the consumer: an `OffsetStoreError`, or an outage that the transform met.
    :raises ConfigurationError: the offsets of a partition don't ascend.
    """
    outputs = ConsumerOutputs(transform, into, propagate)
    settings = RunnerSettings(metadata=metadata, dead_letters=dead_letters, propagate=propagate)
    settings.check_dead_letters(outputs.writers.values())
    settings.check_handler(outputs.handler)
    by_partition = defaultdict[TopicPartition, list[ConsumedRecord]](list)
    for record in as_consumed(records):
        of_partition = by_partition[record.topic_partition]
        if of_partition and record.offset <= of_partition[-1].offset:
            raise ConfigurationError(
                f"the offsets of {record.topic_partition} don't ascend",
                found=f"{record.offset} after {of_partition[-1].offset}",
                expected="each record once, in the order of the log",
            )
        of_partition.append(record)
    stored, terms = claim.offsets(), claim.new_terms(by_partition)
    polled: dict[TopicPartition, Polled] = {}
    for tp, of_partition in by_partition.items():
        first = of_partition[0].offset
        begin = min(first, stored[tp].next_offset) if tp in stored else first
        polled[tp] = Polled(OffsetRange(begin, of_partition[-1].offset + 1), of_partition, terms[tp])
    source = _Once()
    kind: Callable[..., PolledRecords] = PolledRecords if outputs.handler is None else HandledRecords
    runner = Runner(claim, source, settings)

    @contextmanager
    def take() -> Generator[Taken | None]:
        yield Taken(kind(number, claim, outputs, polled, source.sleep)) if polled else None

    runner.run(number, take)


class _Once:
    """A source of one delivery, which nobody stops."""

    def is_running(self) -> bool:
        return True

    def is_stopping(self, error: BaseException) -> bool:  # noqa: ARG002 - the Protocol's
        return False

    def typed(self, error: BaseException) -> BaseException:
        return typed(error)

    def sleep(self, seconds: float) -> None:
        Event().wait(seconds)
