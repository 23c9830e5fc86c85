"""The relay's side of Kafka: a transactional producer, and the mark of the last batch as an offset of its own group.

The batch's transaction commits the offset, on partition 0 of the anchor topic, whose records nobody reads; the mark's
word is the offset's text.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias, cast

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from offsetstore.errors import BrokerError, BrokerRefused, BrokerUnavailable, ConfigurationError, TopicMissing
from offsetstore.kafka import requests
from offsetstore.kafka.client import LOG, Client, Deadline, Missing, let_go, make
from offsetstore.kafka.errors import MISSING, Doing, broker_error, describe, is_forbidden, no_answer
from offsetstore.kafka.group_offsets import committed_offsets, consumer_config, read_with
from offsetstore.kafka.settings import ClientSettings
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.outbox import KafkaMark, Mark, OutboxRow, Refusal, new_word
from offsetstore.runtime import failpoints
from offsetstore.runtime.background import meanwhile
from offsetstore.text import documentation

_GLANCE: Final = 0.02  # seconds between two looks at what librdkafka reports meanwhile
_HARMLESS: Final = "nothing was counted as sent"
_LACKING: Final = "Its rows wait until then, and those of other topics are sent."
_NEEDED: Final = f"{documentation('relay')} lists what a relay needs"
_RETRIES: Final = frozenset({"retries", "message.send.max.retries"})
_LARGEST: Final = 1_000_000  # bytes of key and value, librdkafka's own default of message.max.bytes
_TRANSACTION: Final = 60_000  # milliseconds, its default of transaction.timeout.ms

# What the relay's exactness depends on, by all of librdkafka's names for it: no other value may be set (decision 0095).
# Each of these partitioners sends all records of a key to the same partition.
_BY_KEY: Final = frozenset({"murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a"})
_FIXED: Final[Mapping[str, frozenset[str]]] = {
    "partitioner": _BY_KEY,
    "enable.idempotence": frozenset({"true", "1", "t"}),
    "acks": frozenset({"all", "-1"}),
    "request.required.acks": frozenset({"all", "-1"}),
    "max.in.flight": frozenset("12345"),
    "max.in.flight.requests.per.connection": frozenset("12345"),
    "queuing.strategy": frozenset({"fifo"}),
}
_OURS: Final = frozenset({"transactional.id", "group.id", "delivery.report.only.error", "on_delivery"})
"""What the relay sets itself: each would change who is fenced, or what is reported to whom."""
_LINGER: Final = ("linger.ms", "queue.buffering.max.ms")
_PATIENCE: Final = ("message.timeout.ms", "delivery.timeout.ms")
_WORD: Final = len(new_word())
_UNKNOWN: Final = frozenset({"WRITE"})  # for a service that does not say what is allowed: the relay tries
_OTHERS: Final = ck.KafkaError._INVALID_DIFFERENT_RECORD  # noqa: SLF001 - public all the same
"""The client's code for the other records of a request, if Kafka has named some of them."""
_UNFIT: Final = (ArithmeticError, LookupError, TypeError, ValueError)
_Record: TypeAlias = tuple[str | None, Any, Any]
_Report: TypeAlias = tuple[_Record, tuple[str | None, int | None], ck.KafkaError]
"""A failed record, its partition, and why it failed."""

_OFTEN: Final = 500  # records between two looks at the reports
_LATE: Final = 1.0  # seconds that librdkafka may take longer than it was given
# Seconds that one call may wait for what is left of a transaction. A request behind a refused one comes back as records
# that are no longer sent, and only the next call clears these.
_ABORT: Final = 1.0
_WARM_UP: Final = 1.0
_GOODBYE: Final = 2.0  # seconds to abort a transaction at the end, which readers would wait for


class ProducerEnded(BrokerUnavailable):
    """Kafka has ended the producer: another one has begun, or the transaction took too long."""


class Outlet:
    """See the module. For one process and for one thread at a time.

    :param name: the group, and the transactional id: Kafka lets only the producer that began last with it commit.
    :param anchor: the topic that has the group's offset.
    :param timeout: seconds that a request may take; a transaction has ``transaction.timeout.ms``.
    :raises ConfigurationError: see `make` and `expect_exact`.

    ``largest`` is how many bytes a record's key and value may have. ``kept`` is the mark that Kafka is known to have,
    which only this producer can change; ``None`` as soon as it may be another one.
    """

    def __init__(self, settings: ClientSettings, *, name: str, anchor: str, timeout: float) -> None:
        self.name = name
        self.anchor = TopicPartition(anchor, 0)
        expect_exact(settings.config)
        self._settings = settings
        self._timeout = timeout
        self.kept: Mark | None = None
        self._reported: deque[ck.KafkaError] = deque(maxlen=100)
        self._failed: list[_Report] = []
        self._handed = 0  # rows of the transaction that were handed to the client
        self._writable: set[str] = set()
        self._client: list[Client] = []
        self._producer: list[Any] = []
        self._is_open = False
        self._has_anchor = False
        # This producer only shows which settings librdkafka refuses, before anything is asked or sent.
        let_go([make(ck.Producer, self._producer_config(), settings.config)])
        # Stable: what an open transaction is about to commit is waited for.
        self._config = consumer_config(settings, name, self._reported, stable=True)
        self._consumer: list[Any] = [make(ck.Consumer, self._config, settings.config)]
        # librdkafka has taken the settings, so these are numbers.
        self._transaction_seconds = float(settings.config.get("transaction.timeout.ms", _TRANSACTION)) / 1000
        self.largest = int(settings.config.get("message.max.bytes", _LARGEST))

    def close(self) -> None:
        """End the connections, and an open transaction if Kafka answers; else the next relay or its timeout ends it."""
        self._abort()
        self._drop()
        if self._client:
            self._client.pop().close()
        if self._consumer:
            let_go(self._consumer)

    def _abort(self) -> None:
        """Abort an open transaction, for which readers would wait, if Kafka answers soon."""
        if self._producer and self._is_open:
            with suppress(ck.KafkaException):
                self._within(self._producer[0].abort_transaction, _GOODBYE)
                self._is_open = False

    def _drop(self) -> None:
        self._is_open = False
        if self._producer:
            with_purge, self._producer = self._producer, []
            try:
                with_purge[0].purge()
            finally:
                let_go(with_purge)

    def fence(self) -> None:
        """Make a new producer. It ends the transactions of all earlier ones, which can then commit nothing.

        :raises ConfigurationError: see `make`.
        :raises BrokerUnavailable: no answer in time.
        :raises BrokerRefused: Kafka refuses it: no WRITE on the transactional id, say.
        """
        self._drop()
        self.kept = None
        self._reported.clear()
        self._writable.clear()
        producer: Any = make(ck.Producer, self._producer_config(), self._settings.config)
        self._producer = [producer]
        try:
            # A question first: without a connection, librdkafka waits half a second before it begins (decision 0095).
            if self._has_anchor:
                with suppress(ck.KafkaException):
                    self._within(partial(producer.list_topics, self.anchor.topic), _WARM_UP)
            self._within(producer.init_transactions, self._timeout)
        except ck.KafkaException as error:
            raise self._trouble(_cause(error), f"beginning as producer {self.name}") from None

    def _producer_config(self) -> dict[str, Any]:
        # The relay alone decides how often to try: a passing state must never be the last word on a record.
        given = {key: value for key, value in self._settings.config.items() if key not in _RETRIES}
        return {
            "logger": LOG,
            "partitioner": "murmur2_random",  # as Java's producers, and so Spark's own sink
            "linger.ms": 100,  # for large requests: at the end of a batch nothing lingers
            **given,
            "transactional.id": self.name,
            "delivery.report.only.error": True,
            "on_delivery": self._note,
            "error_cb": self._reported.append,
        }

    def position(self, *, is_fenced: bool) -> KafkaMark:
        """Ask for the cluster and for the group's mark; after `fence`, create the anchor if it is missing.

        :param is_fenced: ``False`` to disturb nobody: what an open transaction is about to commit is not waited for.
        :raises ConfigurationError: see `make`.
        :raises BrokerUnavailable: no answer in time.
        :raises BrokerRefused: Kafka refuses a request.
        :raises TopicMissing: there is no anchor, and it can't be created.
        """
        deadline = Deadline.after(self._timeout)
        cluster_id = self._find_anchor(deadline, may_create=is_fenced)
        doing = Doing(f"reading the offset of group {self.name}", "READ", _HARMLESS, _NEEDED)
        self._reported.clear()
        if is_fenced:
            [consumer] = self._consumer
            offsets = read_with(consumer, [self.anchor], doing, self._reported, deadline, config=self._config)
        else:
            offsets = committed_offsets(self._settings, self.name, [self.anchor], deadline, doing=doing, stable=False)
        if self.anchor not in offsets:
            return KafkaMark(cluster_id, None)
        committed = offsets[self.anchor]
        # If another program has committed the text, the client can return more than the text (decision 0010).
        return KafkaMark(cluster_id, committed.next_offset, (committed.metadata or "")[:_WORD] or None)

    def _find_anchor(self, deadline: Deadline, *, may_create: bool) -> str | None:
        """Return the cluster's id; create the anchor if it is missing."""
        is_new = False
        self._admin().forget()
        while True:
            try:
                self._admin().answers([requests.topics([self.anchor.topic])], deadline)
                self._has_anchor = True
                break
            except Missing:
                if not may_create:
                    break
                if is_new and not deadline.rest:
                    raise TopicMissing(f"Kafka has no topic {self.anchor.topic}") from None
            if not is_new:
                self._create_anchor()
                is_new = True
        return self._admin().cluster_id(self.anchor.topic, deadline)

    def _admin(self) -> Client:
        if not self._client:
            self._client = [Client(self._settings.config)]
        return self._client[0]

    def _create_anchor(self) -> None:
        """Create the anchor, with the cluster's default number of replicas."""
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

    def lacking(self, topics: Collection[str]) -> Mapping[str, BrokerError]:
        """Return the topics that do not exist, or to which this principal may not write, each with its error.

        :raises BrokerUnavailable, BrokerRefused: no answer.
        """
        # librdkafka would wait half a minute for a missing topic, and does not name a forbidden one.
        asked = sorted({*topics} - self._writable)
        if not asked:
            return {}
        deadline = Deadline.after(self._timeout)
        self._admin().forget()
        [answers] = self._admin().outcomes([requests.topic_permissions(asked)], deadline)
        lacking: dict[str, BrokerError] = {}
        for topic, answer in answers.items():
            code = answer.code() if isinstance(answer, ck.KafkaError) else None
            if code in MISSING:
                lacking[topic] = TopicMissing(f"Kafka has no topic {topic}", next_step=f"Create it. {_LACKING}")
            elif code not in {None, ck.KafkaError.TOPIC_AUTHORIZATION_FAILED}:
                raise self._admin().explained(answer, f"asking for topic {topic}", deadline)
            elif code is not None or "WRITE" not in (requests.allowed(answer) or _UNKNOWN):
                lacking[topic] = BrokerRefused(
                    f"Kafka does not let the relay write to topic {topic}",
                    next_step=f"Allow this principal to WRITE to it. {_LACKING}",
                )
            else:
                self._writable.add(topic)
        return lacking

    def send(self, mark: Mark, rows: Sequence[OutboxRow], *, before_commit: Callable[[], object]) -> Refusal | None:
        """Produce the rows and commit the mark, in one transaction.

        :param before_commit: called when all is in the transaction, which nobody sees yet; if it raises, nobody will.
        :return: ``None`` if it was committed. Otherwise it was not, because of some rows, or of Kafka's or the
            producer's state; then begin anew with `fence`: librdkafka has counted records that the broker has not.
        :raises BrokerUnavailable: it may have been committed or not, or can't be (`ProducerEnded`). Begin anew with
            `fence`.
        :raises BrokerRefused: Kafka refuses the transaction, whatever its rows.
        """
        producer = self._producer[0]
        self._failed.clear()
        self._reported.clear()
        doing = f"producing batch {mark.number}" if rows else f"committing to topic {self.anchor.topic}"
        offset = [ck.TopicPartition(*self.anchor, mark.number, mark.word)]
        began = time.monotonic()
        try:
            producer.begin_transaction()
            self._is_open = True
            if by_client := self._produce(producer, rows):
                self._give_up(producer)
                return Refusal(certain=by_client)
            failpoints.reach("outbox_produced")
            # One record is enough: the others arrive during the next call. That may take as long as a transaction if
            # Kafka does not answer, and raises what has ended the transaction, if no single record has.
            self._flush(producer, until=len(rows) - 1)
            self._mark(producer, offset)
            self._flush(producer)
            if self._failed:  # then not all rows may have been handed over
                raise ck.KafkaException(self._failed[0][2])  # noqa: TRY301 - as if the client had raised it
            failpoints.reach("outbox_in_transaction")
        except ck.KafkaException as raised:
            error = _cause(raised)
            with suppress(ck.KafkaException):
                self._hear(producer, time.monotonic() - began)
            if (refusal := self._refusal(error, rows)) is not None and not error.fatal():
                return self._proven(producer, refusal, rows)
            if error.code() == ck.KafkaError._TIMED_OUT and (topics := self._unanswered(producer)):  # noqa: SLF001
                doing += f", of which records of {topics} have no answer"
            raise self._trouble(error, doing, has_rows=bool(rows)) from None
        try:
            before_commit()
        except BaseException:
            self._abort()
            raise
        # Until Kafka answers, it may have this mark or the one before.
        self.kept = None
        try:
            self._within(producer.commit_transaction, self._timeout)
        except ck.KafkaException as raised:
            raise self._trouble(_cause(raised), doing) from None
        self._is_open = False
        self.kept = mark
        return None

    def _hear(self, producer: Any, took: float) -> None:
        """Wait for answers under way, which may name more rows: an abort forgets them.

        :param took: seconds until the first answer; as many without another answer are enough.
        """
        end, left = time.monotonic() + self._timeout, -1
        while left != len(producer) and time.monotonic() < end:
            left = len(producer)
            _serve(producer.flush, min(max(_GLANCE, took), _ABORT))

    def _give_up(self, producer: Any) -> Sequence[_Report]:
        """Abort the transaction, and serve the reports of its records, so that the next transaction does not get them.

        :return: the reports of records that failed or were purged.
        :raises ck.KafkaException: Kafka did not confirm the abort.
        """
        end = time.monotonic() + self._timeout
        while True:
            try:
                self._within(producer.abort_transaction, _ABORT)
                break
            except ck.KafkaException as error:
                if not _cause(error).retriable() or time.monotonic() >= end:
                    raise
        self._is_open = False
        while len(producer):
            _serve(producer.flush, _GLANCE)
            if time.monotonic() >= end:
                raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))  # noqa: SLF001
        reports, self._failed = self._failed, []
        return reports

    def _proven(self, producer: Any, refusal: Refusal, rows: Sequence[OutboxRow]) -> Refusal:
        """Abort, and return the refusal: as it is if Kafka confirms the abort, else as a mere suspicion."""
        self._writable.clear()  # the topic may be to blame, not its records
        handed = Counter(row.topic for row in rows[: self._handed])
        # If Kafka lets this very producer abort, nobody has fenced it or set another mark before. If not, its own state
        # may be to blame, and trials decide (decision 0095).
        try:
            reports = self._give_up(producer)
        except ck.KafkaException:
            return Refusal(suspected={**refusal.certain, **refusal.suspected})
        failpoints.reach("outbox_aborted")
        # A record without a report was written; one refused only because of others in its request would have been.
        failed = Counter(topic for (topic, _, _), _, error in reports if error.code() != _OTHERS)
        return replace(refusal, vouched={topic for topic, count in handed.items() if count > failed[topic]})

    def renew(self) -> None:
        """Set Kafka's mark once more while nothing else is sent; do nothing if the mark is not known for sure.

        :raises BrokerError: as `send` does; also if a transaction that was left open can't be aborted.
        """
        # Otherwise Kafka may let the offset expire: offsets.retention.minutes may be ten (decision 0095).
        if self.kept is not None and self._producer:
            self._abort()
            self.send(self.kept, (), before_commit=lambda: None)

    def _mark(self, producer: Any, offset: list[ck.TopicPartition]) -> None:
        group = self._consumer[0].consumer_group_metadata()
        self._within(partial(producer.send_offsets_to_transaction, offset, group), self._timeout)

    def _within(self, call: Callable[[float], object], seconds: float) -> None:
        """Make a call that gets this timeout, and wait little longer.

        :raises ck.KafkaException: the call's own error, or that the time is up.
        """
        # In another thread: librdkafka ignores the timeout if a coordinator dies meanwhile (its issue 5456). A call
        # that never returns can commit nothing: the next producer fences it (decision 0095).
        done = meanwhile("offsetstore-outbox-kafka", lambda: call(seconds))
        try:
            if not wait([done], timeout=seconds + _LATE).done:
                raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))  # noqa: SLF001
            done.result()
        finally:
            del done  # its error holds this frame, and so the producer

    def _produce(self, producer: Any, rows: Sequence[OutboxRow]) -> dict[int, str]:  # noqa: C901, PLR0912 - the client's answers
        """Hand the rows to librdkafka; return the rows that the client itself refuses, and why."""
        refused: dict[int, str] = {}
        self._handed = 0
        produce = producer.produce
        for place, (row, topic, key, value, headers, _) in enumerate(rows):
            was_empty = False
            while True:
                try:
                    if headers is None:
                        produce(topic, value, key)
                    else:
                        produce(topic, value, key, headers=list(headers))
                    self._handed += 1
                except BufferError as full:
                    if was_empty:
                        refused[row] = f"{full}: set queue.buffering.max.kbytes above the size of a record"
                        break
                    if was_empty := not len(producer):  # it was full, perhaps, and has emptied since
                        continue
                    self._flush(producer, until=len(producer) - 1)
                    if self._failed:
                        return refused
                    continue
                except ck.KafkaException as error:
                    if not _is_answer(_cause(error)) or _is_of_topic(_cause(error)):
                        raise
                    refused[row] = describe(_cause(error))
                except _UNFIT as error:  # its text quotes the contents
                    refused[row] = f"the client can't send it: {type(error).__name__}"
                break
            if place % _OFTEN == 0:
                _serve(producer.poll, 0)
                if self._failed:
                    break
        return refused

    def _note(self, error: ck.KafkaError | None, message: ck.Message) -> None:
        """Keep the report of a record that has failed."""
        # By its contents, not by its row: a callback for each record would cost each record time (decision 0095).
        if error is not None:
            record = message.topic(), message.key() or b"", message.value() or b""
            self._failed.append((record, (message.topic(), message.partition()), error))

    def _refusal(self, error: ck.KafkaError, rows: Sequence[OutboxRow]) -> Refusal | None:
        """Which of these rows Kafka refuses, provided that it aborts them; ``None`` if it has refused none.

        Rows are certain if the client distinguishes them from the rest of their request, as librdkafka does if Kafka
        names two or more. Otherwise the whole request is suspected.
        """
        answers = {record: answer for record, _, answer in self._failed if _is_answer(answer)}
        refused = {row.id: answers[record] for row in rows if (record := _reported_as(row)) in answers}
        if not refused and rows and _is_answer(error):
            return Refusal(suspected={row.id: describe(error) for row in rows})
        if not refused:
            return None
        named = self._named()
        alike: dict[_Record, list[OutboxRow]] = {}
        for row in rows:
            if (record := _reported_as(row)) in named:
                alike.setdefault(record, []).append(row)
        # Reports have no headers, and show a missing key or value as empty. Among rows that look alike and are the same
        # in these too, it does not matter which one is set aside.
        identified = {
            record: same
            for record, same in alike.items()
            if named[record] == len(same)
            or len({(row.headers, row.key is None, row.value is None) for row in same}) == 1
        }
        certain = {
            row.id: describe(refused[row.id]) for record, same in identified.items() for row in same[: named[record]]
        }
        suspected = {
            row.id: describe(refused[row.id])
            for row in rows
            if row.id in refused and _reported_as(row) not in identified
        }
        # A broker's failure proves nothing about a record: it may have been about to stop. Nor does a missing
        # permission: the broker may not have heard of it yet.
        is_word = all(
            answer.code() != ck.KafkaError.UNKNOWN and not _is_of_topic(answer) for answer in refused.values()
        )
        return Refusal(certain=certain, suspected=suspected, is_proven=is_word)

    def _named(self) -> Counter[_Record]:
        """The records that Kafka has named; in doubt none."""
        # Several requests of a partition may be refused, some as a whole: their records have the same report as named
        # ones. A request's reports come together, so such a request shows as several in a row (decision 0095).
        named = Counter[_Record]()
        partitions: dict[tuple[str | None, int | None], list[tuple[_Record, int]]] = {}
        for record, partition, error in self._failed:
            partitions.setdefault(partition, []).append((record, error.code()))
        for reports in partitions.values():
            codes = Counter(code for _, code in reports)
            if not codes[_OTHERS]:
                continue
            # One request was told apart, with at least one named record; a second request, of two or more, makes three.
            is_one = codes[ck.KafkaError.INVALID_RECORD] <= 2  # noqa: PLR2004
            for code, run in groupby(reports, itemgetter(1)):
                records = [record for record, _ in run]
                if code == ck.KafkaError.INVALID_RECORD and (is_one or len(records) == 1):
                    named.update(records)
        return named

    def _unanswered(self, producer: Any) -> str:
        """Drop the records that are left, and return their topics."""
        with suppress(ck.KafkaException):
            producer.purge()
            _serve(producer.flush, _GLANCE)
        return ", ".join(sorted({topic for (topic, _, _), _, _ in self._failed if topic is not None}))

    def _flush(self, producer: Any, until: int = 0) -> None:
        """Wait until ``until`` records are left, or one has failed. The timeout begins anew with each that arrives."""
        now = time.monotonic()
        end, last = now + self._timeout, now + self._transaction_seconds
        left = len(producer)
        while len(producer) > max(0, until) and not self._failed:
            _serve(producer.flush, _GLANCE)
            now = time.monotonic()
            if len(producer) < left:
                left, end = len(producer), now + self._timeout
            if now >= min(end, last):
                raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))  # noqa: SLF001

    def _trouble(self, error: ck.KafkaError, doing: str, *, has_rows: bool = True) -> BrokerError:
        """Translate an error; what a new producer may not meet becomes `BrokerUnavailable`."""
        if error.fatal() and not is_forbidden(error):
            return ProducerEnded(
                f"Kafka ended the producer while {doing}",
                found=describe(error),
                next_step="Another relay has begun, the transaction took longer than transaction.timeout.ms (while the "
                "database did not answer, perhaps), or that is above the brokers' transaction.max.timeout.ms.",
            )
        if error.retriable():
            return BrokerUnavailable(
                f"no answer from Kafka within {self._timeout:g} s while {doing}",
                found=describe(error),
                next_step=f"Check bootstrap.servers and that the brokers run; {_HARMLESS}.",
            )
        reads = {ck.KafkaError.GROUP_AUTHORIZATION_FAILED}
        if not has_rows:
            reads.add(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)  # the anchor's
        permission = "READ" if error.code() in reads else "WRITE to"
        return no_answer(error, self._reported, Doing(doing, permission, _HARMLESS, _NEEDED), self._timeout)


def _serve(call: Callable[[float], int], seconds: float) -> int:
    """Make a call that runs callbacks.

    :raises ck.KafkaException: a fatal error.
    """
    try:
        return call(seconds)
    # If a report comes with a fatal error, the client raises that as the cause of another error.
    except SystemError as error:
        if isinstance(error.__cause__, ck.KafkaException):
            raise error.__cause__ from None
        raise


def expect_exact(settings: Mapping[str, Any]) -> None:
    """Check that a producer with these settings keeps each key's order, commits what the relay counts, and can work.

    :raises ConfigurationError: a setting that breaks this. Its name is shown, never its value.
    """
    # librdkafka accepts some of the bad ones, and refuses others too late.
    for name in settings:
        if name in _OURS:
            raise ConfigurationError(
                f"the relay does not take the setting {name}",
                next_step="Leave it out: the relay sets it itself, so that each row is sent exactly once.",
            )
        if name in _FIXED and str(settings[name]).strip().lower() not in _FIXED[name]:
            raise ConfigurationError(
                f"with this value of the setting {name} the relay could not keep rows in order, or send each once",
                expected=" | ".join(sorted(_FIXED[name])),
                next_step="Leave it out, or give one of these.",
            )
    linger = next((name for name in _LINGER if name in settings), None)
    if linger is None:
        return
    patience = next((name for name in _PATIENCE if name in settings), "transaction.timeout.ms")
    if _milliseconds(settings[linger]) >= (_milliseconds(settings.get(patience, _TRANSACTION)) or math.inf):
        raise ConfigurationError(
            f"with this value of the setting {linger} no record would be sent in time",
            expected=f"milliseconds, fewer than those of {patience}",
            next_step="Leave it out: at the end of a batch, nothing lingers.",
        )


def _milliseconds(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return math.nan  # librdkafka itself refuses it, by its name


def _reported_as(row: OutboxRow) -> _Record:
    # Reports show a missing key or value as an empty one.
    return row.topic, row.key or b"", row.value or b""


def _cause(error: ck.KafkaException) -> ck.KafkaError:
    return cast("ck.KafkaError", error.args[0])


def _is_of_topic(error: ck.KafkaError) -> bool:
    """Whether the error is about the topic or a permission: then no record is at fault."""
    return error.code() in MISSING or is_forbidden(error)


def _is_answer(error: ck.KafkaError) -> bool:
    """Whether Kafka has refused, and would do so again. Trials tell whether a record is at fault."""
    # A refused timestamp is from the relay's clock: rows have none.
    if error.fatal() or error.code() == ck.KafkaError.INVALID_TIMESTAMP:
        return False
    return error.code() == ck.KafkaError.UNKNOWN or isinstance(broker_error(error, "producing"), BrokerRefused)
