"""One librdkafka admin client: its lifetime, its requests under a deadline, and the errors it reports meanwhile."""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from offsetstore.errors import BrokerError, ConfigurationError
from offsetstore.kafka.errors import MISSING, PASSING, WRONG_CREDENTIALS, Doing, broker_error, describe, no_answer
from offsetstore.kafka.java_settings import instead_of
from offsetstore.runtime.background import meanwhile
from offsetstore.runtime.functions import call

K = TypeVar("K", bound="Hashable")
_T = TypeVar("_T")

# librdkafka writes to stderr unless it is given a logger; this one is silent until an application listens to it.
LOG: Final = logging.getLogger("offsetstore.kafka")
LOG.addHandler(logging.NullHandler())

_OWN_SHARE: Final = 0.9  # of the time left: librdkafka then tells which part of a request was not answered
_GLANCE: Final = 0.02  # seconds between two looks at the errors that librdkafka reports meanwhile
_CLUSTER_ID: Final = "asking for the cluster's id"
_FIRST_TRY: Final = 1.0  # seconds of a request that waits in librdkafka, where nothing reports wrong credentials
PATIENCE: Final = 3.0  # seconds without an answer, after which people are told what is being waited for
BACKOFF: Final = 0.1  # seconds before the same request is sent again
MISSING_GRACE: Final = 1.0  # seconds that a new topic may take to become known to every broker
_SHOWN: Final = frozenset({"security.protocol", "sasl.mechanism", "sasl.mechanisms"})
_NUMBERS: Final = (".ms", ".bytes")
_PROPERTY: Final = re.compile(r'property:? "([^"]+)"|^(?:Failed to create \w+(?: client)?: )?([a-z.]+) failed')


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock, shared by all requests of one call."""

    seconds: float
    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(seconds, time.monotonic() + seconds)

    @property
    def rest(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - time.monotonic())

    def part(self, share: float) -> Deadline:
        """Return an earlier deadline, after this share of the time left; messages still name the call's whole time."""
        return Deadline(self.seconds, time.monotonic() + self.rest * share)


@dataclass(frozen=True)
class AdminRequest(Generic[K]):
    """One call to the admin client that returns futures.

    ``ask`` takes the client and the seconds left. ``doing`` says in an error what was requested. An error with a code
    in ``accepted`` counts as an answer: `Client.answers` returns the `KafkaError`. A result that ``is_empty`` counts as
    a passing error.
    """

    doing: Doing | str
    ask: Callable[[Any, float], Mapping[K, Future[Any]]]
    accepted: frozenset[int] = frozenset()
    is_empty: Callable[[K, Any], bool] = lambda _key, _result: False

    def outcome(self, key: K, future: Future[Any]) -> Any:
        """Return the result of a future that is done, or the `KafkaError` instead of it."""
        failure = future.exception()
        if failure is not None:
            return _kafka_error(failure)
        result = future.result()
        return KafkaError(KafkaError.OFFSET_NOT_AVAILABLE) if self.is_empty(key, result) else result


class Missing(Exception):
    """Kafka does not know these topics or partitions. `Broker` turns it into `TopicMissing`."""

    def __init__(self, keys: list[Hashable]) -> None:
        super().__init__(keys)
        self.keys = keys


class Client:
    """An `AdminClient`, for one process and for one thread at a time.

    :param on_silence: told what has had no answer for `PATIENCE` seconds, once for each `forget`.
    :raises ConfigurationError: see `make`.
    """

    def __init__(self, settings: Mapping[str, Any], on_silence: Callable[[str], None] = lambda _: None) -> None:
        self.pid = os.getpid()
        self._on_silence = on_silence
        self._patient_until = math.inf
        self._reported: deque[KafkaError] = deque(maxlen=100)
        config: dict[str, Any] = {
            "logger": LOG,
            **settings,
            "allow.auto.create.topics": False,  # `cluster_id` names a topic
            "error_cb": self._reported.append,
        }
        self._admin: Any = make(AdminClient, config, settings)

    def close(self) -> None:
        """End the connections and librdkafka's threads, here and now, whatever still holds the `AdminClient`."""
        # The garbage collector may run in one of librdkafka's own threads, which can't end the client it belongs to.
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.__exit__(None, None, None)

    def forget(self) -> None:
        """Drop what was reported since the last request: it says nothing about the next one."""
        self._admin.poll(0)
        self._reported.clear()
        self._patient_until = time.monotonic() + PATIENCE

    def answers(self, requests: list[AdminRequest[Any]], deadline: Deadline) -> list[dict[Any, Any]]:
        """Send all requests at once, repeat those with a passing error, and return the answers in the same order.

        :raises BrokerUnavailable: no answer by the deadline.
        :raises BrokerRefused: wrong credentials, as soon as librdkafka reports them, or no permission.
        :raises Missing: a topic does not exist.
        """
        answers: dict[int, dict[Any, Any]] = {}
        started = time.monotonic()
        while len(answers) < len(requests):
            open_ = [number for number in range(len(requests)) if number not in answers]
            # Closing a client while librdkafka reads an answer about topics ends the process, so each request must end
            # before the caller's deadline (decision 0010).
            seconds = max(deadline.rest * _OWN_SHARE, 0.001)
            asked = {number: requests[number].ask(self._admin, seconds) for number in open_}
            for number, futures in asked.items():
                answer = self._gather(requests[number], futures, deadline, started)
                if answer is not None:
                    answers[number] = answer
            if len(answers) < len(requests):
                self._pause(deadline)
        return [answers[number] for number in range(len(requests))]

    def outcomes(self, requests: list[AdminRequest[Any]], deadline: Deadline) -> list[dict[Any, Any]]:
        """Send all requests at once; return, in the same order, each key's answer or its `KafkaError`.

        A request is sent once more if any of its keys has a passing error; answers of the first time stay.

        :raises BrokerRefused: wrong credentials, as soon as librdkafka reports them.
        """
        outcomes = self._outcomes(requests, deadline)
        again = [
            number
            for number, answer in enumerate(outcomes)
            if any(isinstance(outcome, KafkaError) and outcome.code() in PASSING for outcome in answer.values())
        ]
        if again and deadline.rest > BACKOFF:
            self._pause(deadline)
            repeated = self._outcomes([requests[number] for number in again], deadline)
            for number, answer in zip(again, repeated, strict=True):
                had = {key: outcome for key, outcome in outcomes[number].items() if not isinstance(outcome, KafkaError)}
                outcomes[number] = {**outcomes[number], **answer, **had}
        return outcomes

    def _outcomes(self, requests: list[AdminRequest[Any]], deadline: Deadline) -> list[dict[Any, Any]]:
        seconds = max(deadline.rest * _OWN_SHARE, 0.001)
        asked = [request.ask(self._admin, seconds) for request in requests]
        outcomes: list[dict[Any, Any]] = []
        for request, futures in zip(requests, asked, strict=True):
            outcomes.append({key: self._outcome(request, key, future, deadline) for key, future in futures.items()})
        return outcomes

    def _outcome(self, request: AdminRequest[K], key: K, future: Future[Any], deadline: Deadline) -> Any:
        while not future.done():
            wait([future], timeout=min(_GLANCE, deadline.rest))
            self._serve(request.doing)
            if not future.done() and not deadline.rest:
                return KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 -- librdkafka's code, public all the same
        return request.outcome(key, future)

    def explained(self, error: KafkaError, doing: Doing | str, deadline: Deadline) -> BrokerError:
        """Translate an error of `outcomes`, with what librdkafka has reported meanwhile."""
        return no_answer(error, self._reported, doing, deadline.seconds)

    def cluster_id(self, topic: str, deadline: Deadline) -> str | None:
        """Ask which cluster this is, with a question about a topic, which need not exist.

        :raises BrokerUnavailable: no answer by the deadline.
        :raises BrokerRefused: wrong credentials.
        """
        # librdkafka's own request for the id ends the whole process if the answer names no broker, as it may while a
        # cluster starts (decision 0010).
        seconds = _FIRST_TRY
        while True:
            try:
                return self._admin.list_topics(topic, timeout=max(0.001, min(seconds, deadline.rest))).cluster_id
            except KafkaException as failure:
                error = _kafka_error(failure)
            self._serve(_CLUSTER_ID)
            if deadline.rest <= BACKOFF or (error.code() not in PASSING and error.code() != KafkaError._TIMED_OUT):  # noqa: SLF001 - public all the same
                raise no_answer(error, self._reported, _CLUSTER_ID, deadline.seconds)
            self._pause(deadline)
            seconds *= 2

    def all_topics(self, deadline: Deadline) -> list[str]:
        """Every topic that this principal may see; empty if Kafka does not say."""
        try:
            return list(self._admin.list_topics(timeout=deadline.rest).topics)
        except KafkaException:
            return []

    def _gather(
        self, request: AdminRequest[K], futures: Mapping[K, Future[Any]], deadline: Deadline, started: float
    ) -> dict[K, Any] | None:
        """Collect the answers to one request; ``None`` if it has to be sent again."""
        answer: dict[K, Any] = {}
        missing: list[Hashable] = []
        again = False
        for key, future in futures.items():
            self._wait(future, request.doing, deadline)
            outcome = request.outcome(key, future)
            if not isinstance(outcome, KafkaError) or outcome.code() in request.accepted:
                answer[key] = outcome
                continue
            code = outcome.code()
            in_time = deadline.rest > BACKOFF
            if code in MISSING and not (in_time and time.monotonic() - started < MISSING_GRACE):
                missing.append(key)
            elif in_time and (code in PASSING or code in MISSING):
                again = True
            else:
                raise no_answer(outcome, self._reported, request.doing, deadline.seconds)
        if missing:
            raise Missing(missing)
        return None if again else answer

    def _wait(self, future: Future[Any], doing: Doing | str, deadline: Deadline) -> None:
        while not future.done():
            wait([future], timeout=min(_GLANCE, deadline.rest))
            self._serve(doing)
            if not future.done() and not deadline.rest:
                raise no_answer(None, self._reported, doing, deadline.seconds)

    def _pause(self, deadline: Deadline) -> None:
        until = time.monotonic() + min(BACKOFF, deadline.rest)
        while (rest := until - time.monotonic()) > 0:
            time.sleep(min(_GLANCE, rest))
            self._serve("connecting")

    def _serve(self, doing: Doing | str) -> None:
        """Run librdkafka's callbacks; tell of a long silence.

        :raises BrokerRefused: wrong credentials.
        """
        # Nothing else runs the callbacks, and only they report wrong credentials.
        self._admin.poll(0)
        for error in self._reported:
            if error.code() in WRONG_CREDENTIALS:
                raise broker_error(error, doing)
        if time.monotonic() >= self._patient_until:
            self._patient_until = math.inf
            reported = [describe(error) for error in self._reported]
            self._on_silence(f"{doing}: {reported[-1]}" if reported else str(doing))


def make(kind: Callable[[dict[str, Any]], _T], config: dict[str, Any], settings: Mapping[str, Any]) -> _T:
    """Make one of librdkafka's clients.

    :param settings: the user's own part of ``config``; an exception from a function among them leaves the poll.
    :raises ConfigurationError: librdkafka refuses a setting. The message names the key, never a value.
    """
    functions = {name: partial(call, fn) for name, fn in settings.items() if callable(fn) and config[name] is fn}
    try:
        return kind({**config, **functions})
    except (KafkaException, TypeError, ValueError) as error:
        refused = _refused_setting(error, settings)
    raise refused  # outside the handler: the cause's text can hold the setting's value


def with_consumer(config: dict[str, Any], settings: Mapping[str, Any], use: Callable[[Consumer], _T]) -> _T:
    """Make a consumer as `make` does, use it, and let it go: it has joined no group that it would have to leave."""
    holder = [make(Consumer, config, settings)]
    try:
        return use(holder[0])
    finally:
        let_go(holder)


def let_go(holder: list[Any]) -> None:
    """End a consumer, without waiting for it.

    :param holder: holds the only reference to the consumer, and is emptied.
    """
    # librdkafka waits for the answer to the last request: up to socket.timeout.ms, a minute, if a broker is silent
    # (decision 0010).
    ended = meanwhile("offsetstore-kafka-end", holder.clear)
    if ended.done() and ended.exception() is not None:  # no thread could be started: waiting is better than leaking
        holder.clear()


def _kafka_error(error: BaseException) -> KafkaError:
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    raise error


def _refused_setting(error: Exception, settings: Mapping[str, Any]) -> ConfigurationError:
    """Say which setting librdkafka refuses, not its value. Don't raise it from ``error``: that text can hold it."""
    cause = cast("object", error.args[0]) if error.args else None
    text = cause.str().strip() if isinstance(cause, KafkaError) else str(error)
    match = _PROPERTY.search(text)
    key = next(filter(None, match.groups()), None) if match else None
    # librdkafka repeats values in its texts, and a value can be a password.
    hidden = (str(value) for name, value in settings.items() if name not in _SHOWN and not name.endswith(_NUMBERS))
    if any(value and value in text for value in hidden):
        text = "a value that it does not accept"
    return ConfigurationError(
        f"librdkafka refuses the setting {key}" if key else "librdkafka refuses the settings",
        found=text,
        next_step=(None if key else instead_of(settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))))
        or "Correct it: librdkafka's CONFIGURATION.md lists the settings and their values.",
    )
