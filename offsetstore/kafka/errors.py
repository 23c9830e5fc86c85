"""Turns librdkafka's error codes into our errors: which are worth another try, and what to do about the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError

from offsetstore.errors import BrokerError, BrokerRefused, BrokerUnavailable, TlsFailed

MISSING: Final = frozenset({
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_EXCEPTION,  # a name that no topic can have
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 -- librdkafka's own codes are public in spite of the underscore
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
})  # fmt: skip
"""Codes for a missing topic. They can pass: right after its creation, not every broker knows the topic."""

PASSING: Final = frozenset({
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_CONTROLLER,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._WAIT_COORD,  # noqa: SLF001
})  # fmt: skip
"""Codes of a cluster that is starting, moving a leader or a coordinator: the same request is sent again."""

WRONG_CREDENTIALS: Final = frozenset({
    KafkaError._AUTHENTICATION,  # noqa: SLF001
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
})  # fmt: skip
"""Codes that another try does not change; librdkafka itself would try forever."""

_SILENCE: Final = frozenset({
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._WAIT_COORD,  # noqa: SLF001
})  # fmt: skip

_OPENSSL: Final = "SSL routines"  # a broker that refuses our certificate says so after the handshake

_CHECK: Final = "Check bootstrap.servers and that the brokers run"
_NO_ACL: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
}


@dataclass(frozen=True, slots=True)
class Doing:
    """What was requested of Kafka, for error messages.

    ``what`` says it in plain words: "reading the offsets of group billing". ``permission`` is the operation that
    Kafka's ACLs must allow, ``harmless`` says what was left untouched, and ``needed`` where all permissions are named.
    """

    what: str
    permission: str = "DESCRIBE"
    harmless: str = "nothing was changed"
    needed: str = "`offsetstore acls check` names all that is missing"

    def __str__(self) -> str:
        return self.what


def is_forbidden(error: KafkaError) -> bool:
    return error.code() in _NO_ACL


def broker_error(error: KafkaError, doing: Doing | str) -> BrokerError:
    """Translate an error that another try will not change."""
    doing = doing if isinstance(doing, Doing) else Doing(doing)
    code = error.code()
    if code in WRONG_CREDENTIALS:
        return BrokerRefused(
            "Kafka refused the credentials",
            found=describe(error),
            next_step=f"Check security.protocol, sasl.* and the ACLs of this principal; {doing.harmless}.",
        )
    if code in _NO_ACL:
        return BrokerRefused(
            f"Kafka refused a request while {doing}",
            found=describe(error),
            next_step=f"Allow this principal to {doing.permission} the {_NO_ACL[code]} ({doing.needed}); "
            f"{doing.harmless}.",
        )
    if code == KafkaError.SECURITY_DISABLED:
        return BrokerRefused(
            f"Kafka refused a request while {doing}",
            found=describe(error),
            next_step="The brokers have no authorizer (authorizer.class.name): every principal may do everything.",
        )
    if code == KafkaError._SSL:  # noqa: SLF001
        return _no_tls(error, doing)
    # Kafka's own codes are positive, except UNKNOWN (-1); librdkafka's are negative.
    if code > 0 and code not in PASSING:
        return BrokerRefused(
            f"Kafka refused a request while {doing}",
            found=describe(error),
            next_step=f"Look up the code in Kafka's protocol guide, and see the broker's log; {doing.harmless}.",
        )
    failed = code == KafkaError.UNKNOWN  # a broker, by an exception
    return BrokerUnavailable(
        f"{'Kafka failed' if failed else 'no answer from Kafka'} while {doing}",
        found=describe(error),
        next_step=f"{'See the log of the broker' if failed else _CHECK}; {doing.harmless}.",
    )


def _no_tls(error: KafkaError, doing: Doing) -> TlsFailed:
    return TlsFailed(
        "could not establish a TLS connection to Kafka",
        found=describe(error),
        next_step="Check security.protocol, the certificate authorities, the host name, and whether the broker "
        f"requires a client certificate; {doing.harmless}.",
    )


def describe(error: KafkaError) -> str:
    """Return name and text; librdkafka's texts hold addresses and reasons, but no settings."""
    # A fatal error's text says the same thing twice: "Fatal error: WHAT: Fatal consumer error: WHAT".
    text = error.str().strip().removeprefix("Fatal error: ").partition(": Fatal consumer error: ")[0]
    return f"{error.name()}: {text}"


def no_answer(
    error: KafkaError | None, reported: Iterable[KafkaError], doing: Doing | str, seconds: float
) -> BrokerError:
    """Translate an error or a missing answer, with what librdkafka reported meanwhile: it says more than "timed out".

    :param seconds: how long the whole call was allowed to take.
    """
    doing = doing if isinstance(doing, Doing) else Doing(doing)
    if error is not None and error.code() not in _SILENCE:
        return broker_error(error, doing)
    telling = [report for report in reported if report.code() != KafkaError._ALL_BROKERS_DOWN]  # noqa: SLF001
    for report in telling:
        if report.code() == KafkaError._SSL or _OPENSSL in report.str():  # noqa: SLF001
            return _no_tls(report, doing)
    last = telling[-1] if telling else error
    return BrokerUnavailable(
        f"no answer from Kafka within {seconds:g} s while {doing}",
        found=None if last is None else describe(last),
        next_step=f"Check bootstrap.servers, security.protocol, and that the brokers run; {doing.harmless}.",
    )
