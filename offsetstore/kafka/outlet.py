"""The relay's side of Kafka: a transactional producer, and the number of the last batch as an offset of its own group.

The offset is committed by the batch's transaction, on partition 0 of the anchor topic, whose records nobody reads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from offsetstore.errors import BrokerError, BrokerRefused, BrokerUnavailable, TopicMissing
from offsetstore.kafka import requests
from offsetstore.kafka.client import BACKOFF, LOG, MISSING_GRACE, Client, Deadline, let_go, make
from offsetstore.kafka.committed import consumer_config, read_with
from offsetstore.kafka.errors import MISSING, PASSING, Doing, broker_error, describe, no_answer
from offsetstore.kafka.settings.librdkafka import ClientSettings
from offsetstore.offsets import TopicPartition
from offsetstore.protocol import failpoints
from offsetstore.protocol.outbox import OutboxRow, Position, Refusal

_GLANCE: Final = 0.02  # seconds between two looks at what librdkafka reports meanwhile
_HARMLESS: Final = "nothing was counted as sent"
# What librdkafka does not send because the transaction is aborted: that says nothing about the record.
_PURGED: Final = frozenset({ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT})  # noqa: SLF001


class Outlet:
    """See the module. For one process and for one thread at a time.

    :param name: the group, and the transactional id: of all producers with it, Kafka lets only the last commit.
    :param anchor: the topic on which the group's offset is.
    :param timeout: seconds that a request may take; a transaction has ``transaction.timeout.ms``.
    :raises ConfigurationError: see `make`.
    """

    def __init__(self, settings: ClientSettings, *, name: str, anchor: str, timeout: float) -> None:
        self.name = name
        self.anchor = TopicPartition(anchor, 0)
        self._settings = settings
        self._timeout = timeout
        self._reported: deque[ck.KafkaError] = deque(maxlen=100)
        self._topics: set[str] = set()
        self._producer: list[Any] = []
        # It never joins the group. Only committed offsets count: those of an open transaction are waited for.
        config = {**consumer_config(settings, name, self._reported), "isolation.level": "read_committed"}
        self._consumer: list[Any] = [make(ck.Consumer, config, settings.config)]

    def close(self) -> None:
        """End the connections. An open transaction is aborted by the next relay, or when its time is over."""
        self._drop()
        if self._consumer:
            let_go(self._consumer)

    def _drop(self) -> None:
        if self._producer:
            with_purge, self._producer = self._producer, []
            try:
                with_purge[0].purge()
            finally:
                let_go(with_purge)

    def fence(self) -> None:
        """Make a new producer: the transactions of all earlier ones are ended, and they can commit nothing.

        :raises BrokerUnavailable: no answer in time.
        :raises BrokerRefused: Kafka refuses it: no WRITE on the transactional id, say.
        """
        self._drop()
        self._reported.clear()
        config = {
            "logger": LOG,
            "partitioner": "murmur2_random",  # as Java's producers, and so Spark's own sink
            "linger.ms": 5,
            **self._settings.config,
            "transactional.id": self.name,
            "delivery.report.only.error": True,
            "error_cb": self._reported.append,
        }
        self._producer = [make(ck.Producer, config, self._settings.config)]
        doing = Doing(f"beginning as producer {self.name}", "WRITE to", _HARMLESS)
        try:
            self._producer[0].init_transactions(self._timeout)
        except ck.KafkaException as error:
            raise no_answer(_cause(error), self._reported, doing, self._timeout) from None

    def position(self) -> Position:
        """Ask for the cluster and for the number that the group has, after `fence`; make the anchor if it is missing.

        :raises BrokerUnavailable: no answer in time.
        :raises BrokerRefused: Kafka refuses a request.
        :raises TopicMissing: there is no anchor, and it can't be created.
        """
        client = Client(self._settings.config)
        deadline = Deadline.after(self._timeout)
        try:
            [answer] = client.answers([requests.cluster()], deadline)
        finally:
            client.close()
        if not self._exists(self.anchor.topic):
            self._create_anchor()
        doing = Doing(f"reading the offset of group {self.name}", harmless=_HARMLESS)
        self._reported.clear()
        found = read_with(self._consumer[0], [self.anchor], doing, self._reported, deadline)
        number = found[self.anchor].next_offset if self.anchor in found else None
        return Position(requests.cluster_id(answer), number)

    def _create_anchor(self) -> None:
        """Create it, with the cluster's own number of replicas."""
        admin: Any = make(AdminClient, {"logger": LOG, **self._settings.config}, self._settings.config)
        topic = self.anchor.topic
        try:
            future = admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=-1)])[topic]
            future.result(self._timeout)
        except ck.KafkaException as error:
            cause = _cause(error)
            if cause.code() == ck.KafkaError.TOPIC_ALREADY_EXISTS:
                return
            refusal = broker_error(cause, f"creating topic {topic}")
            if not isinstance(refusal, BrokerRefused):
                raise refusal from None
            raise TopicMissing(
                f"Kafka has no topic {topic}, and the relay may not create it",
                found=describe(cause),
                next_step="Create it, with one partition; it needs no records and no retention.",
            ) from None
        except TimeoutError:
            raise BrokerUnavailable(
                f"no answer from Kafka within {self._timeout:g} s while creating topic {topic}"
            ) from None
        finally:
            admin.__exit__(None, None, None)
        end = time.monotonic() + self._timeout
        while not self._exists(topic) and time.monotonic() < end:
            time.sleep(BACKOFF)

    def _exists(self, topic: str) -> bool:
        """Whether Kafka has the topic; ask for a second, since a new one may not be known to every broker yet."""
        if topic in self._topics:
            return True
        end = time.monotonic() + MISSING_GRACE
        doing = f"asking for topic {topic}"
        while True:
            try:
                found = self._producer[0].list_topics(topic, timeout=self._timeout).topics[topic]
            except ck.KafkaException as raised:
                raise self._trouble(_cause(raised), doing) from None
            error: ck.KafkaError | None = found.error
            if error is None or error.code() not in MISSING | PASSING:
                refusal = None if error is None else self._trouble(error, doing)
                if refusal is not None and not isinstance(refusal, BrokerRefused):
                    raise refusal
                self._topics.add(topic)  # if it may only not be described, producing tells
                return True
            if time.monotonic() >= end:
                if error.code() in MISSING:
                    return False
                raise self._trouble(error, doing)
            time.sleep(BACKOFF)

    def send(self, number: int, rows: Sequence[OutboxRow]) -> Refusal | None:
        """Produce the rows and commit the number, in one transaction.

        :return: ``None`` if it was committed. Otherwise it was aborted, because of some rows.
        :raises BrokerUnavailable: whether it was committed is not known, or it can't be. Begin anew with `fence`.
        :raises BrokerRefused: Kafka refuses the transaction, whatever its rows are.
        """
        if missing := self._of_missing_topics(rows):
            return Refusal(certain=missing)
        producer = self._producer[0]
        failed: list[tuple[int, ck.KafkaError]] = []
        self._reported.clear()
        doing = f"producing batch {number}"
        try:
            producer.begin_transaction()
            if certain := self._produce(producer, rows, failed):
                producer.abort_transaction(self._timeout)
                return Refusal(certain=certain)
            failpoints.reach("outbox_produced")
            self._flush(producer, failed)
            if any(_is_of_row(error) for _, error in failed):
                return self._suspect(failed, failed[0][1], doing)
            offset = [ck.TopicPartition(*self.anchor, number)]
            producer.send_offsets_to_transaction(offset, self._consumer[0].consumer_group_metadata(), self._timeout)
            failpoints.reach("outbox_in_transaction")
            producer.commit_transaction(self._timeout)  # as the statement before, it raises what has ended it
        except ck.KafkaException as error:
            return self._suspect(failed, _cause(error), doing)
        return None

    def _of_missing_topics(self, rows: Sequence[OutboxRow]) -> Mapping[int, str]:
        """Rows whose topics do not exist: librdkafka would wait half a minute for these."""
        missing = {topic for topic in {row.record.topic for row in rows} if not self._exists(topic)}
        return {row.id: f"Kafka has no topic {row.record.topic}" for row in rows if row.record.topic in missing}

    def _produce(
        self, producer: Any, rows: Sequence[OutboxRow], failed: list[tuple[int, ck.KafkaError]]
    ) -> dict[int, str]:
        """Hand the rows to librdkafka; return those that it refuses by itself, and why."""
        certain: dict[int, str] = {}

        def delivered(row: int, error: ck.KafkaError | None, _message: object) -> None:
            if error is not None:
                failed.append((row, error))

        for row, record in rows:
            while True:
                try:
                    producer.produce(
                        record.topic,
                        record.value,
                        record.key,
                        headers=None if record.headers is None else list(record.headers),
                        on_delivery=partial(delivered, row),
                    )
                except BufferError:  # its queue is full
                    producer.poll(_GLANCE)
                    continue
                except ck.KafkaException as error:
                    if not _is_of_row(_cause(error)):
                        raise
                    certain[row] = describe(_cause(error))
                break
            producer.poll(0)
            if failed:
                break
        return certain

    def _flush(self, producer: Any, failed: Collection[object]) -> None:
        end = time.monotonic() + self._timeout
        while producer.flush(_GLANCE * 10) and not failed:
            if time.monotonic() >= end:
                raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))  # noqa: SLF001

    def _suspect(self, failed: Sequence[tuple[int, ck.KafkaError]], error: ck.KafkaError, doing: str) -> Refusal:
        """Tell whether rows have ended a transaction, and abort it then.

        It takes a new producer: after a refusal, the sequence numbers of the old one have a gap. That can end the work
        of a relay that has taken over meanwhile, but not more: what is recorded next is compared with its token.

        :raises BrokerUnavailable, BrokerRefused: see `send`.
        """
        of_rows = {row: describe(one) for row, one in failed if _is_of_row(one)}
        if not of_rows or error.fatal():
            others = [one for _, one in failed if one.code() not in _PURGED]
            raise self._trouble(others[0] if others else error, doing)
        self._topics.clear()  # one may have been deleted
        self.fence()
        return Refusal(suspected=of_rows)

    def _trouble(self, error: ck.KafkaError, doing: str) -> BrokerError:
        """Our error; one that a new producer may not meet is `BrokerUnavailable`."""
        found = no_answer(error, self._reported, Doing(doing, "WRITE to", _HARMLESS), self._timeout)
        if error.fatal() or error.retriable():  # fenced, or a transaction that has taken too long: a new one will know
            return BrokerUnavailable(f"Kafka ended the producer while {doing}", found=describe(error), next_step="")
        return found


def _cause(error: ck.KafkaException) -> ck.KafkaError:
    return cast("ck.KafkaError", error.args[0])


def _is_of_row(error: ck.KafkaError) -> bool:
    """Whether the error is about the record, and not about Kafka's state."""
    if error.code() in _PURGED or error.fatal():
        return False
    return error.code() in MISSING or isinstance(broker_error(error, "producing"), BrokerRefused)
