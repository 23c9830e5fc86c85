"""A relay that runs, and a Kafka for it, which is none: topics, the mark, and the one producer that may commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from offsetstore import Relay
from offsetstore.errors import BrokerError, BrokerUnavailable, TopicMissing
from offsetstore.kafka.outlet import ProducerEnded
from offsetstore.protocol.outbox import KafkaMark, Mark, OutboxRow, Refusal
from offsetstore.runtime import failpoints
from tests.support.background import in_background


@contextmanager
def running(relay: Relay) -> Generator[Future[None]]:
    """Run it until the end of the block, which it must reach well."""
    done = in_background(relay.run)
    try:
        yield done
    finally:
        relay.stop()
    done.result(60)


class FakeKafka:
    """In place of a `Broker`.

    :param missing: topics that can't be written to.
    :param before_send: called for each transaction before anything of it is done.
    :param refuses: which rows are refused by themselves.
    """

    def __init__(self) -> None:
        self.rows: list[OutboxRow] = []
        self.sends: list[tuple[int, int]] = []
        self.mark: Mark | None = None
        self.producer: FakeOutlet | None = None
        self.missing: set[str] = set()
        self.is_away = self.refuses_producers = False
        self.before_send: Callable[[Mark, Sequence[OutboxRow]], object] = lambda _, __: None
        self.refuses: Callable[[OutboxRow], bool] = lambda _: False

    def outlet(self, *_: object, **__: object) -> FakeOutlet:
        """Make a producer."""
        return FakeOutlet(self)

    def values(self, topic: str = "events") -> list[int]:
        """The numbers of the records of a topic."""
        return [int(row.value or b"") for row in self.rows if row.topic == topic]


class FakeOutlet:
    """See `offsetstore.kafka.outlet.Outlet`."""

    kept: Mark | None = None
    largest = 1_000_000

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka

    def position(self, *, is_fenced: bool) -> KafkaMark:  # noqa: ARG002 - as the other has it
        """Tell the mark."""
        if self._kafka.is_away:
            raise BrokerUnavailable("no answer from Kafka")
        mark = self._kafka.mark
        return KafkaMark("the cluster", None) if mark is None else KafkaMark("the cluster", mark.number, mark.word)

    def fence(self) -> None:
        """Be the only producer that may commit."""
        if self._kafka.refuses_producers:
            raise BrokerError("Kafka refused a request")
        self._kafka.producer, self.kept = self, None

    def lacking(self, topics: Collection[str]) -> Mapping[str, BrokerError]:
        """Tell which of them are missing."""
        return {topic: TopicMissing(f"Kafka has no topic {topic}") for topic in {*topics} & self._kafka.missing}

    def send(self, mark: Mark, rows: Sequence[OutboxRow], *, before_commit: Callable[[], object]) -> Refusal | None:
        """Commit the rows and the mark."""
        kafka = self._kafka
        kafka.sends.append((mark.number, len(rows)))
        kafka.before_send(mark, rows)
        if refused := {row.id: "it is refused" for row in rows if kafka.refuses(row)}:
            return Refusal(certain=refused)
        failpoints.reach("outbox_in_transaction")
        before_commit()
        if kafka.producer is not self:
            raise ProducerEnded("Kafka ended the producer")
        kafka.rows += rows
        kafka.mark = self.kept = mark
        return None

    def renew(self) -> None:
        """Set the mark again."""
        if self.kept is not None:
            self.send(self.kept, (), before_commit=lambda: None)

    def close(self) -> None:
        """There are no connections."""
