"""Requests to Kafka, and the answers in our own types: only this module handles librdkafka's untyped results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, cast

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from offsetstore.kafka.acls import Acl
from offsetstore.kafka.client import AdminRequest
from offsetstore.kafka.errors import Doing
from offsetstore.offsets import TopicPartition, Watermarks

_ADMIN: Final = cast("Any", ck_admin)  # public, but not marked as exported
_OffsetSpec: Final[Any] = _ADMIN.OffsetSpec
_ZERO_ID: Final = str(ck.Uuid(0, 0))  # the answer of a broker that is older than topic ids
_URL_SAFE: Final = str.maketrans("+/", "-_")

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""A topic that each cluster has, to ask about if no other is known."""

EARLIEST: Final[Any] = _OffsetSpec.earliest()
LATEST: Final[Any] = _OffsetSpec.latest()


def at(timestamp_ms: int) -> Any:
    """The first offset at or after a time, in milliseconds since 1970."""
    return _OffsetSpec.for_timestamp(timestamp_ms)


def topics(names: Sequence[str]) -> AdminRequest[str]:
    """Ids and partitions, by topic."""

    def ask(admin: Any, seconds: float) -> Mapping[str, Future[Any]]:
        return admin.describe_topics(ck.TopicCollection(list(names)), request_timeout=seconds)

    return AdminRequest(f"describing {', '.join(names)}", ask)


def topic_id(description: Any) -> str | None:
    """The id as Kafka writes it, 22 characters of URL-safe base64; ``None`` if the broker is too old to have ids."""
    # librdkafka uses the standard alphabet.
    text = str(description.topic_id).translate(_URL_SAFE)
    return None if text == _ZERO_ID else text


def partition_numbers(description: Any) -> list[int]:
    """Every partition's number, whether or not it has a leader."""
    return [info.id for info in description.partitions]


def led_partitions(description: Any) -> list[int]:
    """The numbers of the partitions that have a leader; for others librdkafka waits as long as the request may take."""
    return [info.id for info in description.partitions if info.leader is not None]


def groups() -> AdminRequest[str]:
    """The state of every group that this principal may see; one answer, under the key ``groups``.

    Each broker reports the groups that it coordinates.
    """
    # To describe one group, or to read its offsets, the admin client looks for the coordinator, and ends the whole
    # process if that is starting or moving (decision 0010).

    def ask(admin: Any, seconds: float) -> Mapping[str, Future[Any]]:
        return {"groups": admin.list_consumer_groups(request_timeout=seconds)}

    return AdminRequest("looking for members of the group", ask)


def has_members(answer: Mapping[str, Any], group: str) -> bool | ck.KafkaError:
    """Whether `groups` shows members of the group; an error if a broker did not answer and no other knows the group."""
    for listing in answer["groups"].valid:
        if listing.group_id == group:
            # A group that only has offsets, like our copies, has no members; brokers before 2.6 report no state for it.
            # A state that librdkafka has no name for belongs to a newer protocol, and to a group that is not empty.
            return not listing.is_simple_consumer_group and listing.state not in {
                ck.ConsumerGroupState.EMPTY,
                ck.ConsumerGroupState.DEAD,
            }
    return next(iter(answer["groups"].errors), False)


def offsets(partitions: Sequence[TopicPartition], spec: Any, *, read_committed: bool) -> AdminRequest[TopicPartition]:
    """One offset of each partition. librdkafka sends one request to each leader, for all its partitions."""
    return offsets_at(dict.fromkeys(partitions, spec), read_committed=read_committed)


def offsets_at(specs: Mapping[TopicPartition, Any], *, read_committed: bool) -> AdminRequest[TopicPartition]:
    """Like `offsets`, with a ``spec`` for each partition."""

    def ask(admin: Any, seconds: float) -> Mapping[TopicPartition, Future[Any]]:
        wanted = {ck.TopicPartition(tp.topic, tp.partition): spec for tp, spec in specs.items()}
        isolation = ck.IsolationLevel.READ_COMMITTED if read_committed else ck.IsolationLevel.READ_UNCOMMITTED
        asked = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=seconds)
        return {TopicPartition(tp.topic, tp.partition): future for tp, future in asked.items()}

    def is_empty(tp: TopicPartition, info: Any) -> bool:
        # While leaders change, librdkafka may return -1001 without an error; -1 is an answer only to a time.
        return info.offset < (0 if specs[tp] in {EARLIEST, LATEST} else -1)

    doing = f"reading the log ends of {', '.join(sorted({tp.topic for tp in specs}))}"
    return AdminRequest(doing, ask, is_empty=is_empty)


def watermarks(beginning: Any, end: Any, latest: Any) -> Watermarks:
    """Combine three answers of `offsets`: the earliest, the end for the job, the latest reading uncommitted."""
    epoch = latest.leader_epoch  # negative if the broker is too old to say
    known = epoch if epoch is not None and epoch >= 0 else None
    high = latest.offset
    # The last two are asked at the same time, so a transaction may have ended in between.
    return Watermarks(beginning.offset, min(end.offset, high), high=high, leader_epoch=known)


def topic_permissions(names: Sequence[str]) -> AdminRequest[str]:
    """What this principal may do with each topic, for `allowed`; an error where it may not even describe it."""

    def ask(admin: Any, seconds: float) -> Mapping[str, Future[Any]]:
        wanted = ck.TopicCollection(list(names))
        return admin.describe_topics(wanted, include_authorized_operations=True, request_timeout=seconds)

    doing = f"asking what is allowed on {', '.join(names)}"
    return AdminRequest(doing, ask, accepted=frozenset({ck.KafkaError.TOPIC_AUTHORIZATION_FAILED}))


def cluster_permissions() -> AdminRequest[str]:
    """What this principal may do with the cluster, for `allowed`; one answer, under the key ``cluster``.

    Ask for `Client.cluster_id` first, and ask this seldom: it can end the whole process (decision 0010).
    """

    def ask(admin: Any, seconds: float) -> Mapping[str, Future[Any]]:
        return {"cluster": admin.describe_cluster(include_authorized_operations=True, request_timeout=seconds)}

    return AdminRequest("asking what is allowed on the cluster", ask)


def allowed(description: Any) -> frozenset[str]:
    """The operations that a description names, such as ``READ``; DESCRIBE, too, if another operation includes it."""
    if isinstance(description, ck.KafkaError):
        return frozenset()
    return frozenset(operation.name for operation in description.authorized_operations or ())  # None if there are none


def acls_of(principal: str) -> AdminRequest[str]:
    """All ACLs that name this principal, for `has_acl`; one answer, under the key ``acls``.

    Without DESCRIBE on the cluster, Kafka answers that there are none.
    """

    def ask(admin: Any, seconds: float) -> Mapping[str, Future[Any]]:
        wanted = _ADMIN.AclBindingFilter(
            _ADMIN.ResourceType.ANY,
            None,
            _ADMIN.ResourcePatternType.ANY,
            principal,
            None,
            _ADMIN.AclOperation.ANY,
            _ADMIN.AclPermissionType.ANY,
        )
        return {"acls": admin.describe_acls(wanted, request_timeout=seconds)}

    return AdminRequest(f"reading the ACLs of {principal}", ask)


def has_acl(answer: Mapping[str, Any], acl: Acl) -> bool:
    """Whether `acls_of` shows exactly this ACL; another one that includes it does not count."""
    return binding(acl) in answer["acls"]


def new_acls(acls: Sequence[Acl]) -> AdminRequest[Acl]:
    """Create these ACLs; existing ones stay as they are."""

    def ask(admin: Any, seconds: float) -> Mapping[Acl, Future[Any]]:
        made = admin.create_acls([binding(acl) for acl in acls], request_timeout=seconds)
        return {acl: made[binding(acl)] for acl in acls}

    return AdminRequest(Doing(f"creating {len(acls)} ACLs", "ALTER", "some may have been created"), ask)


def binding(acl: Acl) -> Any:
    """The ACL in librdkafka's own type."""
    return _ADMIN.AclBinding(
        _ADMIN.ResourceType[acl.resource.upper().replace("-", "_")],
        acl.name,
        _ADMIN.ResourcePatternType[acl.pattern.upper()],
        acl.principal,
        "*",
        _ADMIN.AclOperation[acl.operation],
        _ADMIN.AclPermissionType.ALLOW,
    )
