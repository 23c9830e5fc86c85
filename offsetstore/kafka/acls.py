"""The least ACLs of a job, an operator and a relay, and the commands that add them. Nothing here asks Kafka."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from offsetstore.errors import ConfigurationError
from offsetstore.kafka.settings import topic_names
from offsetstore.protocol.outbox import ANCHOR

Resource: TypeAlias = Literal["topic", "group", "transactional-id"]
Pattern: TypeAlias = Literal["literal", "prefixed"]
AclOperation: TypeAlias = Literal["READ", "WRITE", "DESCRIBE"]

ALL: Final = "*"
"""As a literal name: every topic, or every group."""

# Why each is needed. READ and WRITE include DESCRIBE, so no resource has a second line, which could be taken
# away unnoticed (decision 0039).
_READS: Final = "the job reads the records, and asks for topic id, log ends, and whether a log was truncated"
_MIRRORS: Final = "the job reads the group's committed offsets, and copies the stored ones there"
_LOOKS: Final = "the job reads the group's committed offsets"
_JOINS: Final = "Spark's driver joins such a group: spark.sql.streaming.kafka.useDeprecatedOffsetFetching=true"
_ENDS: Final = "status, resolve, reset and an exporter ask for ids and log ends"
_PRODUCES: Final = "the relay produces the outbox's records"
_ANCHORS: Final = "the relay's offset is on its partition; an administrator creates it, with one partition"
_POSITION: Final = "the relay commits its position with each transaction; the name ends with the store's id"
_FENCES: Final = "of two relays of a store, Kafka lets the last one commit"
_COMMITTED: Final = "they read the group's committed offsets"


@dataclass(frozen=True, slots=True)
class Acl:
    """One permission, from every host. With the pattern "prefixed", ``name`` is the prefix.

    ``purpose`` says what needs it, and is ignored when two are compared.
    """

    principal: str
    resource: Resource
    name: str
    operation: AclOperation
    pattern: Pattern = "literal"
    purpose: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}{'…' if self.pattern == 'prefixed' else ''}"

    def command(self, bootstrap_servers: str | None = None) -> str:
        """Return the command of Kafka's own tool that adds this ACL, for a POSIX shell.

        :param bootstrap_servers: the brokers; by default those of the variable OFFSETSTORE_BOOTSTRAP_SERVERS.
        """
        servers = shlex.quote(bootstrap_servers) if bootstrap_servers else '"$OFFSETSTORE_BOOTSTRAP_SERVERS"'
        prefixed = ["--resource-pattern-type", "prefixed"] if self.pattern == "prefixed" else []
        arguments = [
            "--add", "--allow-principal", self.principal, "--operation", self.operation,
            f"--{self.resource}", self.name, *prefixed,
        ]  # fmt: skip
        return f"kafka-acls --bootstrap-server {servers} --command-config admin.properties {shlex.join(arguments)}"


def job_acls(
    principal: str,
    *,
    topics: Collection[str],
    groups: Collection[str],
    mirror: bool = True,
    spark_groups: str | None = None,
) -> tuple[Acl, ...]:
    """Return what a job needs: its claim, its mirror, and Spark's reader.

    :param principal: as Kafka has it: ``User:billing``.
    :param groups: the job's groups in Kafka (``kafka_group``, or the consumer group's name).
    :param mirror: whether the stored offsets are copied to Kafka (``mirror_every``).
    :param spark_groups: the reader's ``groupIdPrefix``, by default ``spark-kafka-source``, if the session has
        ``spark.sql.streaming.kafka.useDeprecatedOffsetFetching=true``. Without that, Spark needs no group.
    :raises ConfigurationError: no ``Type:name``, an empty name, or no topic or group at all.
    """
    _check(principal, topics, groups)
    if spark_groups is not None and not spark_groups:
        raise ConfigurationError("the prefix of Spark's groups is empty", expected="spark-kafka-source")
    acls = [Acl(principal, "topic", topic, "READ", purpose=_READS) for topic in topic_names(topics)]
    operation, purpose = ("READ", _MIRRORS) if mirror else ("DESCRIBE", _LOOKS)
    acls += [Acl(principal, "group", group, operation, purpose=purpose) for group in dict.fromkeys(groups)]
    if spark_groups is not None:
        acls.append(Acl(principal, "group", f"{spark_groups}-", "READ", "prefixed", _JOINS))
    return tuple(acls)


def operator_acls(principal: str, *, topics: Collection[str], groups: Collection[str]) -> tuple[Acl, ...]:
    """Return what the commands `status`, `resolve` and `reset` need, and an exporter: they only look.

    :param principal: as Kafka has it: ``User:exporter``.
    :param topics: names, or `ALL`.
    :param groups: names, or `ALL`.
    :raises ConfigurationError: no ``Type:name``, an empty name, or no topic or group at all.
    """
    _check(principal, topics, groups)
    acls = [Acl(principal, "topic", topic, "DESCRIBE", purpose=_ENDS) for topic in topic_names(topics)]
    acls += [Acl(principal, "group", group, "DESCRIBE", purpose=_COMMITTED) for group in dict.fromkeys(groups)]
    return tuple(acls)


def relay_acls(principal: str, *, topics: Collection[str], anchor: str = ANCHOR) -> tuple[Acl, ...]:
    """Return what a relay needs if it does not create its anchor itself.

    :param principal: as Kafka has it: ``User:relay``.
    :param topics: of the records, or `ALL`.
    :param anchor: see `Relay`.
    :raises ConfigurationError: no ``Type:name``, an empty name, or no topic at all.
    """
    _check(principal, topics, [anchor])
    return (
        *(Acl(principal, "topic", topic, "WRITE", purpose=_PRODUCES) for topic in topic_names(topics)),
        Acl(principal, "topic", anchor, "READ", purpose=_ANCHORS),
        Acl(principal, "group", f"{anchor}-", "READ", "prefixed", _POSITION),
        Acl(principal, "transactional-id", f"{anchor}-", "WRITE", "prefixed", _FENCES),
    )


def probed_groups(acls: Collection[Acl]) -> Iterator[tuple[Acl, str]]:
    """Yield each group's ACL with the name of a group that it covers.

    :raises ConfigurationError: an ACL is for all groups or topics, so there is no name to ask for; or it is for a
        transactional id.
    """
    # Only a producer can ask for a transactional id: it would fence a relay, or leave an id behind (decision 0039).
    if any(acl.resource == "transactional-id" for acl in acls):
        raise ConfigurationError(
            "a permission for a transactional id can't be checked: asking for it would fence a relay",
            next_step="Start the relay: its error names what is missing.",
        )
    if any(acl.name == ALL for acl in acls):
        raise ConfigurationError(
            "a permission for all topics or groups can't be checked",
            found=ALL,
            expected="names",
            next_step="Name the topics and the groups.",
        )
    for acl in acls:
        if acl.resource == "group":
            # Any name with the prefix will do: asking does not create the group (decision 0039).
            yield acl, f"{acl.name}acls-check" if acl.pattern == "prefixed" else acl.name


def _check(principal: str, topics: Collection[str], groups: Collection[str]) -> None:
    kind, _, name = principal.partition(":")
    if not kind or not name:
        raise ConfigurationError(
            "the principal has no type or no name",
            found=repr(principal),
            expected="User:billing, as Kafka writes principals",
        )
    if isinstance(groups, str) or not all(groups):
        raise ConfigurationError("groups must be a list of names", found=repr(groups), expected='["billing"]')
    if not topics or not groups:
        raise ConfigurationError("ACLs are for topics and groups", found="none", expected="at least one of each")
