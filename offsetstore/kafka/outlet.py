"""The relay's side of Kafka: a transactional producer, and the mark of the last batch as an offset of its own group.

The offset is committed by the batch's transaction, on partition 0 of the anchor topic, whose records nobody reads;
the mark's word is the text that goes with it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, Final, cast

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from offsetstore.errors import BrokerError, BrokerRefused, BrokerUnavailable, TopicMissing
from offsetstore.kafka import requests
from offsetstore.kafka.client import LOG, Client, Deadline, Missing, let_go, make
from offsetstore.kafka.committed import committed_offsets, consumer_config, read_with
from offsetstore.kafka.errors import MISSING, Doing, broker_error, describe, is_forbidden, no_answer
from offsetstore.kafka.settings.librdkafka import ClientSettings
from offsetstore.offsets import TopicPartition
from offsetstore.protocol import failpoints
from offsetstore.protocol.background import meanwhile
from offsetstore.protocol.outbox import Mark, OutboxRow, Position, Refusal, new_word

_GLANCE: Final = 0.02  # seconds between two looks at what librdkafka reports meanwhile
_HARMLESS: Final = "nothing was counted as sent"
_LACKING: Final = "After a minute its rows are set aside, if rows of other topics wait."
_NEEDED: Final = "docs/outbox.md lists what a relay needs"
_RETRIES: Final = frozenset({"retries", "message.send.max.retries"})
_WORD: Final = len(new_word())
_UNKNOWN: Final = frozenset({"WRITE"})  # a service that does not tell what is allowed
_OFTEN: Final = 500  # records from one look at reports to the next
_LATE: Final = 1.0  # seconds that librdkafka may take longer than it was given
_GOODBYE: Final = 2.0  # seconds to abort a transaction at the end, which readers would wait for


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
        self._failed: list[tuple[tuple[str | None, Any, Any], ck.KafkaError]] = []
        self._transaction_seconds = float(settings.config.get("transaction.timeout.ms", 60_000)) / 1000
        self._writable: set[str] = set()
        self._client: list[Client] = []
        self._producer: list[Any] = []
        self._is_open = False
        # It never joins the group. Only committed offsets count: those of an open transaction are waited for.
        self._config = consumer_config(settings, name, self._reported, stable=True)
        self._consumer: list[Any] = [make(ck.Consumer, self._config, settings.config)]

    def close(self) -> None:
        """End the connections, and an open transaction if Kafka answers; else the next relay ends it, or its time."""
        self._abort()
        self._drop()
        if self._client:
            self._client.pop().close()
        if self._consumer:
            let_go(self._consumer)

    def _abort(self) -> None:
        """Abort an open transaction, if Kafka answers soon: readers would wait for its end."""
        if self._producer and self._is_open:
            with suppress(ck.KafkaException):
                self._producer[0].abort_transaction(_GOODBYE)
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
        """Make a new producer: the transactions of all earlier ones are ended, and they can commit nothing.

        :raises ConfigurationError: see `make`.
        :raises BrokerUnavailable: no answer in time.
        :raises BrokerRefused: Kafka refuses it: no WRITE on the transactional id, say.
        """
        self._drop()
        self._reported.clear()
        self._writable.clear()
        self._producer = [make(ck.Producer, self._producer_config(), self._settings.config)]
        try:
            self._producer[0].init_transactions(self._timeout)
        except ck.KafkaException as error:
            raise self._trouble(_cause(error), f"beginning as producer {self.name}") from None

    def _producer_config(self) -> dict[str, Any]:
        # How long to try, the relay alone decides. Only then is no answer of a passing state the last word on a record.
        given = {key: value for key, value in self._settings.config.items() if key not in _RETRIES}
        return {
            "logger": LOG,
            "partitioner": "murmur2_random",  # as Java's producers, and so Spark's own sink
            "linger.ms": 5,
            **given,
            "transactional.id": self.name,
            "delivery.report.only.error": True,
            "on_delivery": self._note,
            "error_cb": self._reported.append,
        }

    def position(self, *, is_fenced: bool) -> Position:
        """Ask for the cluster and for the mark that the group has; after `fence`, make the anchor if it is missing.

        :param is_fenced: ``False`` to disturb nobody: what an open transaction is about to commit is not waited for.
        :raises ConfigurationError: see `make`; without ``is_fenced``, also of the producer's settings.
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
            found = read_with(consumer, [self.anchor], doing, self._reported, deadline, config=self._config)
        else:
            let_go([make(ck.Producer, self._producer_config(), self._settings.config)])
            found = committed_offsets(self._settings, self.name, [self.anchor], deadline, doing=doing, stable=False)
        if self.anchor not in found:
            return Position(cluster_id, None)
        committed = found[self.anchor]
        # Of a text that somebody else has committed, the client can return more than there is.
        return Position(cluster_id, committed.next_offset, (committed.metadata or "")[:_WORD] or None)

    def _find_anchor(self, deadline: Deadline, *, may_create: bool) -> str | None:
        """Return the cluster's id; create the anchor if it is missing."""
        is_new = False
        self._admin().forget()
        while True:
            try:
                self._admin().answers([requests.topics([self.anchor.topic])], deadline)
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

    def lacking(self, topics: Collection[str]) -> Mapping[str, BrokerError]:
        """Find topics that do not exist, or to which this principal may not write, and say so.

        librdkafka would wait half a minute for the first, and of the second it does not say which they are.

        :raises BrokerUnavailable, BrokerRefused: no answer.
        """
        asked = sorted({*topics} - self._writable)
        if not asked:
            return {}
        deadline = Deadline.after(self._timeout)
        self._admin().forget()
        [found] = self._admin().outcomes([requests.topic_permissions(asked)], deadline)
        lacking: dict[str, BrokerError] = {}
        for topic, answer in found.items():
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
            producer's state; begin anew with `fence` if some are suspected or none is named.
        :raises BrokerUnavailable: whether it was committed is not known, or it can't be. Begin anew with `fence`.
        :raises BrokerRefused: Kafka refuses the transaction, whatever its rows are.
        """
        producer = self._producer[0]
        self._failed.clear()
        self._reported.clear()
        doing = f"producing batch {mark.number}" if rows else f"committing to topic {self.anchor.topic}"
        offset = [ck.TopicPartition(*self.anchor, mark.number, mark.word)]
        try:
            producer.begin_transaction()
            self._is_open = True
            if by_client := self._produce(producer, rows):
                producer.abort_transaction(self._timeout)
                self._is_open = False
                return Refusal(by_client=by_client)
            failpoints.reach("outbox_produced")
            # The others arrive during the next call, which may take as long as a transaction if Kafka does not answer,
            # and raises what has ended the transaction, if no single record has.
            self._flush(producer, until=len(rows) - 1)
            self._mark(producer, offset)
            self._flush(producer)
            if suspected := self._suspects(rows):
                return Refusal(suspected=suspected)
            if self._failed:  # then not all rows may have been handed over
                raise ck.KafkaException(self._failed[0][1])  # noqa: TRY301 - as if the client had raised it
            failpoints.reach("outbox_in_transaction")
        except ck.KafkaException as raised:
            error = _cause(raised)
            with suppress(ck.KafkaException):
                _serve(producer.flush, _GLANCE)  # for reports that say more
            suspected = self._suspects(rows)
            if not suspected and _is_answer(error):
                suspected = {row.id: describe(error) for row in rows}
            if suspected and not error.fatal():
                return Refusal(suspected=suspected)
            if error.code() == ck.KafkaError._TIMED_OUT and (topics := self._unanswered(producer)):  # noqa: SLF001
                doing += f", of which records of {topics} have no answer"
            raise self._trouble(error, doing, has_rows=bool(rows)) from None
        try:
            before_commit()
        except BaseException:
            self._abort()
            raise
        try:
            producer.commit_transaction(self._timeout)
        except ck.KafkaException as raised:
            raise self._trouble(_cause(raised), doing) from None
        self._is_open = False
        return None

    def _mark(self, producer: Any, offset: list[ck.TopicPartition]) -> None:
        """Put the mark into the transaction.

        In another thread: librdkafka heeds no timeout where the group's coordinator dies meanwhile (its issue 5456),
        and this thread would wait forever. What never returns there can commit nothing: a new producer fences it.
        """
        group, seconds = self._consumer[0].consumer_group_metadata(), self._timeout
        sent = meanwhile(
            "offsetstore-outbox-mark", lambda: producer.send_offsets_to_transaction(offset, group, seconds)
        )
        try:
            if not wait([sent], timeout=seconds + _LATE).done:
                raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))  # noqa: SLF001
            sent.result()
        finally:
            del sent  # its error holds this frame, and so the producer

    def _produce(self, producer: Any, rows: Sequence[OutboxRow]) -> dict[int, str]:  # noqa: C901 - the client's answers
        """Hand the rows to librdkafka; return those that it refuses by itself, and why."""
        refused: dict[int, str] = {}
        produce = producer.produce
        for place, (row, topic, key, value, headers) in enumerate(rows):
            while True:
                try:
                    if headers is None:
                        produce(topic, value, key)
                    else:
                        produce(topic, value, key, headers=list(headers))
                except BufferError as full:
                    if not len(producer):
                        refused[row] = f"{full}: set queue.buffering.max.kbytes above the size of a record"
                        break
                    self._flush(producer, until=len(producer) - 1)
                    if self._failed:
                        return refused
                    continue
                except ck.KafkaException as error:
                    if not _is_answer(_cause(error)):
                        raise
                    refused[row] = describe(_cause(error))
                break
            if place % _OFTEN == 0:
                _serve(producer.poll, 0)
                if self._failed:
                    break
        return refused

    def _note(self, error: ck.KafkaError | None, message: ck.Message) -> None:
        """Keep the report of a record that has failed. To say which row each one is, would cost each one time."""
        if error is not None:
            self._failed.append(((message.topic(), message.key() or b"", message.value() or b""), error))

    def _suspects(self, rows: Sequence[OutboxRow]) -> dict[int, str]:
        """The rows, among these, of records to which Kafka has said no."""
        answers = {record: describe(error) for record, error in self._failed if _is_answer(error)}
        if not answers:
            return {}
        records = {row.id: (row.topic, row.key or b"", row.value or b"") for row in rows}
        return {id_: answers[record] for id_, record in records.items() if record in answers}

    def _unanswered(self, producer: Any) -> str:
        """Name the topics of the records that are left, of which none is sent any more."""
        with suppress(ck.KafkaException):
            producer.purge()
            _serve(producer.flush, _GLANCE)
        return ", ".join(sorted({topic for (topic, _, _), _ in self._failed if topic is not None}))

    def _flush(self, producer: Any, until: int = 0) -> None:
        """Wait until so many records are left, or one has failed. The time begins anew with each that arrives."""
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
        """Our error; one that a new producer may not meet is `BrokerUnavailable`."""
        if error.fatal() and not is_forbidden(error):
            return BrokerUnavailable(
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
    """Call what runs callbacks. There the client raises a fatal error; if a report comes with it, as this one's cause.

    :raises ck.KafkaException: a fatal error.
    """
    try:
        return call(seconds)
    except SystemError as error:
        if isinstance(error.__cause__, ck.KafkaException):
            raise error.__cause__ from None
        raise


def _cause(error: ck.KafkaException) -> ck.KafkaError:
    return cast("ck.KafkaError", error.args[0])


def _is_answer(error: ck.KafkaError) -> bool:
    """Whether Kafka has answered, with what the same request meets again; whether a record is to blame, trials tell.

    A time that Kafka does not take is the relay's clock, and no record's: rows have none.
    """
    if error.fatal() or error.code() == ck.KafkaError.INVALID_TIMESTAMP:
        return False
    return error.code() == ck.KafkaError.UNKNOWN or isinstance(broker_error(error, "producing"), BrokerRefused)
