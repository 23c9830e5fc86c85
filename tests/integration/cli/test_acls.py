"""``acls print``, ``check`` and ``apply`` on a Kafka that allows nothing without an ACL. No Spark here."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from offsetstore import TopicPartition
from offsetstore.errors import BrokerRefused
from offsetstore.kafka.acls import Acl
from offsetstore.kafka.admin import Record, create_topic, produce
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.offsets import CommittedOffset
from offsetstore.testing.fixtures import NewTopic
from tests.integration.cli.conftest import Run
from tests.support.authorized import JOB, Authorized
from tests.support.kafka_tools import install_kafka_tools
from tests.support.waiting import wait_until

WAYS = [("--spark-groups", "jobs"), ("--for", "operator")]


class Commands:
    """The three commands about one job, with a principal's credentials in a file."""

    def __init__(self, run: Run, authorized: Authorized, files: Path, topic: str, group: str) -> None:
        self._run, self._authorized, self._files = run, authorized, files
        self.topic, self.group = topic, group

    def call(self, command: str, *more: str, user: str = "job", password: str | None = None) -> Any:
        """Return click's result."""
        job = ("--principal", JOB, "-t", self.topic, "-g", self.group)
        if command == "print":
            return self._run("acls", command, *job, *more)
        options = self._authorized.options(user, password=password)
        servers = options.pop("kafka.bootstrap.servers")
        file = self._files / f"{user}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in options.items()))
        return self._run("acls", command, *job, *more, "--broker-config", str(file), brokers=servers)

    def printed(self, *more: str) -> list[Acl]:
        """What ``acls print`` gives, as values."""
        fields = ("principal", "resource", "name", "operation", "pattern", "purpose")
        documents = json.loads(self.call("print", *more, "--format", "json").stdout)["acls"]
        return [Acl(*(document[name] for name in fields)) for document in documents]

    def missing(self, *more: str) -> list[str]:
        """What ``acls check`` names."""
        result = self.call("check", *more, "--format", "json")
        document = json.loads(result.stdout)
        assert result.exit_code == (0 if document["allowed"] else 1)
        return [f"{acl['operation']} {acl['resource']} {acl['name']}" for acl in document["acls"] if not acl["allowed"]]


@pytest.fixture
def commands(run: Run, authorized: Authorized, tmp_path: Path) -> Commands:
    topic, group = f"payments-{uuid4().hex[:8]}", f"billing {uuid4().hex[:8]}"
    create_topic(authorized.kafka.bootstrap_servers, topic)
    produce(authorized.kafka.bootstrap_servers, topic, [Record(b"x")])
    return Commands(run, authorized, tmp_path, topic, group)


@pytest.mark.behaviour("OPS-14")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(way) or "job")
def test_a_missing_acl_is_named_whichever_it_is(
    way: tuple[str, ...], commands: Commands, authorized: Authorized
) -> None:
    if "jobs" in way:
        way = ("--spark-groups", f"jobs-{uuid4().hex[:8]}")
    needed = commands.printed(*way)
    names = [f"{acl.operation} {acl.resource} {acl.name}" for acl in needed]
    assert commands.missing(*way) == names

    authorized.allow(*needed)
    wait_until(lambda: commands.missing(*way) == [])
    for acl, name in zip(needed, names, strict=True):
        authorized.forbid(acl)
        wait_until(lambda: commands.missing(*way) == [name])  # noqa: B023 - called at once
        authorized.allow(acl)
    wait_until(lambda: commands.missing(*way) == [])
    assert commands.group not in authorized.groups()  # asking leaves nothing behind


@pytest.mark.behaviour("OPS-14")
def test_the_printed_commands_are_taken_by_kafkas_own_tool(
    commands: Commands, authorized: Authorized, tmp_path: Path
) -> None:
    authorized.allow_to_alter_the_cluster("User:administrator")
    login = authorized.options("administrator")
    servers = login.pop("kafka.bootstrap.servers")
    lines = "".join(f"{key.removeprefix('kafka.')}={value}\n" for key, value in login.items())
    (tmp_path / "admin.properties").write_text(lines)
    install_kafka_tools(tmp_path)
    more = ("--spark-groups", f"jobs-{uuid4().hex[:8]}")
    script = commands.call("print", *more).stdout
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["sh", "-e"], input=script, cwd=tmp_path, text=True, capture_output=True, check=False, timeout=120,
        env={**os.environ, "PATH": path, "OFFSETSTORE_BOOTSTRAP_SERVERS": servers},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: commands.missing(*more) == [])


@pytest.mark.behaviour("OPS-14")
def test_what_is_missing_is_told_with_its_command_and_only_an_administrator_may_create_it(
    commands: Commands, authorized: Authorized
) -> None:
    topic, group = commands.printed()
    authorized.allow(topic)
    wait_until(lambda: commands.missing() == [f"READ group {commands.group}"])
    result = commands.call("check")
    assert result.exit_code == 1
    header, first, second, told, command = result.stdout.splitlines()
    assert header.split() == ["operation", "resource", "name", "pattern", "state", "purpose"]
    assert (first.split()[4], second.split()[5]) == ("allowed", "MISSING")  # the group's name has a space
    assert told == "1 permission missing, which an administrator adds with:"
    assert command == group.command(authorized.kafka.sasl_bootstrap_servers)
    for more in ((), ("--execute",)):
        refused = commands.call("apply", *more)
        assert refused.exit_code == 4
        assert "these credentials may not create ACLs" in refused.stderr
        assert "no ALTER on the cluster" in refused.stderr


def test_a_missing_topic_and_a_wrong_password_are_no_missing_acls(commands: Commands, authorized: Authorized) -> None:
    authorized.allow(*commands.printed())
    wait_until(lambda: commands.missing() == [])
    gone = f"gone-{uuid4().hex[:8]}"
    authorized.allow(Acl(JOB, "topic", gone, "READ"))
    result = wait_until(lambda: (found := commands.call("check", "-t", gone)).exit_code == 4 and found)
    assert f"Kafka has no topic {gone}" in result.stderr

    result = commands.call("check", password="Hunter2-never-shown")
    assert result.exit_code == 4
    assert "Kafka refused the credentials" in result.stderr
    assert "Hunter2" not in result.output


def test_where_kafka_has_no_authorizer_all_is_allowed_and_none_can_be_created(
    run: Run, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    job = ("--principal", JOB, "-t", offsetstore_topic(1), "-g", offsetstore_group)
    servers = offsetstore_kafka.bootstrap_servers
    assert run("acls", "check", *job, brokers=servers).exit_code == 0
    result = run("acls", "apply", *job, "--execute", brokers=servers)
    assert result.exit_code == 4
    assert "no authorizer" in result.stderr


def expect_refused(ask: Any, what: str) -> None:
    with pytest.raises(BrokerRefused, match=what) as error:
        ask()
    assert "`offsetstore acls check`" in error.value.next_step


def consumed(authorized: Authorized, topic: str, group: str) -> KafkaError | None:
    """Read one record of a partition that is assigned; unlike Java's, this client looks for the group's coordinator."""
    consumer = Consumer({**authorized.librdkafka(), "group.id": group, "enable.auto.commit": False, "log_level": 0})
    consumer.assign([KafkaPartition(topic, 0, 0)])
    try:
        message = wait_until(lambda: consumer.poll(0.1))
        assert message is not None
        return message.error()
    finally:
        consumer.close()


@pytest.mark.behaviour("OPS-14")
def test_less_than_what_is_printed_is_too_little_for_the_start_the_mirror_or_the_reader(
    commands: Commands, authorized: Authorized
) -> None:
    topic, group = commands.printed()
    broker = authorized.broker()
    copied = {TopicPartition(commands.topic, 0): CommittedOffset(1)}

    def view() -> object:
        return broker.view(commands.group, [commands.topic])

    def commit() -> None:
        broker.commit(commands.group, copied)

    authorized.allow(topic)
    wait_until(lambda: commands.missing() == [f"READ group {commands.group}"])
    expect_refused(view, "GROUP_AUTHORIZATION_FAILED")  # no start
    expect_refused(commit, "GROUP_AUTHORIZATION_FAILED")
    authorized.allow(replace(group, operation="DESCRIBE"))
    wait_until(lambda: commands.missing("--no-mirror") == [])
    view()
    expect_refused(commit, "GROUP_AUTHORIZATION_FAILED")  # a start, but no mirror
    assert commands.missing() == [f"READ group {commands.group}"]
    authorized.allow(group)
    authorized.forbid(topic)
    wait_until(lambda: commands.missing() == [f"READ topic {commands.topic}"])
    expect_refused(view, "TOPIC_AUTHORIZATION_FAILED")
    authorized.allow(replace(topic, operation="DESCRIBE"))
    wait_until(lambda: commands.missing("--for", "operator") == [])
    view()
    expect_refused(commit, "TOPIC_AUTHORIZATION_FAILED")
    assert commands.missing() == [f"READ topic {commands.topic}"]
    unread = consumed(authorized, commands.topic, commands.group)
    assert unread is not None
    assert unread.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    authorized.allow(topic)
    wait_until(lambda: commands.missing() == [])
    view()
    commit()
    assert consumed(authorized, commands.topic, commands.group) is None
    broker.close()


@pytest.mark.behaviour("OPS-14")
def test_a_check_leaves_a_group_with_members_and_its_offsets_as_they_are(
    commands: Commands, authorized: Authorized
) -> None:
    authorized.allow(*commands.printed())
    wait_until(lambda: commands.missing() == [])
    broker = authorized.broker()
    kept = {TopicPartition(commands.topic, 0): CommittedOffset(1, "kept")}
    broker.commit(commands.group, kept)
    lost: list[object] = []
    member = Consumer({**authorized.librdkafka(), "group.id": commands.group, "enable.auto.commit": False})
    member.subscribe([commands.topic], on_revoke=lambda _, partitions: lost.append(partitions))
    try:
        wait_until(lambda: member.poll(0.05) is None and member.assignment())
        assert commands.missing() == []
        assert broker.committed_offsets(commands.group, kept) == kept
        member.poll(1)
        assert lost == []
    finally:
        member.close()
        broker.close()
