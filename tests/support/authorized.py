"""A Kafka that allows nothing without an ACL: StandardAuthorizer, default deny, users that log in with a password."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, cast

from confluent_kafka import admin as kafka_admin

from offsetstore import Broker
from offsetstore.kafka.acls import Acl
from offsetstore.kafka.requests import binding
from offsetstore.local.kafka import KafkaBroker
from tests.support.waiting import wait_until

_ADMIN: Final = cast("Any", kafka_admin)  # its types are public, but not marked as exported

JOB: Final = "User:job"
PASSWORDS: Final = {"job": "job-secret", "administrator": "administrator-secret"}
"""Neither may do anything at first. The listener without credentials is a super user's."""

_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_USERS: Final = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
_SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "false",
    "super.users": "User:ANONYMOUS",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{_LOGIN} {_USERS};",
}


class Authorized:
    """The broker, and what its super user does: give and take ACLs, which apply some milliseconds later."""

    def __init__(self, kafka: KafkaBroker) -> None:
        self.kafka = kafka
        self._admin: Any = _ADMIN.AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    @classmethod
    @contextmanager
    def started(cls) -> Generator[Authorized]:
        with KafkaBroker(settings=_SETTINGS, heap="256m") as kafka:
            yield cls(kafka)

    def options(self, user: str = "job", *, password: str | None = None) -> dict[str, str]:
        """With which Spark's reader logs in, and `Broker.from_spark`."""
        secret = PASSWORDS[user] if password is None else password
        return {
            "kafka.bootstrap.servers": self.kafka.sasl_bootstrap_servers,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'{_LOGIN} username="{user}" password="{secret}";',
        }

    def broker(self, user: str = "job") -> Broker:
        return Broker.from_spark(self.options(user), timeout=60)

    def librdkafka(self, user: str = "job") -> dict[str, Any]:
        """The same for librdkafka."""
        return {
            "bootstrap.servers": self.kafka.sasl_bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }

    def allow(self, *acls: Acl) -> None:
        self._create([binding(acl) for acl in acls])

    def allow_to_alter_the_cluster(self, principal: str) -> None:
        """Make an administrator of ACLs."""
        cluster = (_ADMIN.ResourceType.BROKER, "kafka-cluster", _ADMIN.ResourcePatternType.LITERAL)
        allowed = (principal, "*", _ADMIN.AclOperation.ALTER, _ADMIN.AclPermissionType.ALLOW)
        self._create([_ADMIN.AclBinding(*cluster, *allowed)])

    def forbid(self, acl: Acl) -> None:
        """Take it away; it must be there."""
        gone = _only(binding(acl))
        [future] = self._admin.delete_acls([gone]).values()
        assert len(future.result(30)) == 1
        wait_until(lambda: not self._admin.describe_acls(gone).result(30))  # the controller answers before the broker

    def groups(self) -> list[str]:
        """Every group that Kafka has."""
        return sorted(each.group_id for each in self._admin.list_consumer_groups().result(30).valid)

    def _create(self, bindings: list[Any]) -> None:
        """Create them, and wait until the broker knows them: its controller answers before it does."""
        for future in self._admin.create_acls(bindings).values():
            future.result(30)
        wait_until(lambda: all(self._admin.describe_acls(_only(one)).result(30) for one in bindings))


def _only(one: Any) -> Any:
    """The filter that finds this ACL alone."""
    return _ADMIN.AclBindingFilter(
        one.restype, one.name, one.resource_pattern_type, one.principal, "*", one.operation, one.permission_type
    )
