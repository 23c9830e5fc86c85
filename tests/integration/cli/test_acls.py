"""``acls print``, ``check`` and ``apply`` on a Kafka that allows nothing without an ACL, and docs/acls.md. No Spark."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

from offsetstore import TopicPartition
from offsetstore.kafka.acls import Acl, job_acls
from offsetstore.kafka.admin import NewRecord, create_topic, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.offsets import CommittedOffset
from offsetstore.testing.fixtures import NewTopic
from tests.integration.cli.conftest import Run, blocks, words
from tests.support.authorized import JOB, Authorized
from tests.support.kafka_tools import install_kafka_tools
from tests.support.waiting import wait_until


def write_properties(file: Path, options: dict[str, str], *, prefix: str = "") -> str:
    """Write a client's settings, without the prefix of their names, and return the brokers' addresses."""
    servers = options.pop("kafka.bootstrap.servers")
    file.write_text("".join(f"{key.removeprefix(prefix)}={value}\n" for key, value in options.items()))
    return servers


class Commands:
    """The three commands about one job, with a principal's credentials in a file."""

    def __init__(self, run: Run, authorized: Authorized, files: Path, topic: str, group: str) -> None:
        self._run, self._authorized, self._files = run, authorized, files
        self.topic, self.group = topic, group

    def call(self, command: str, *more: str, password: str | None = None) -> Any:
        """Return click's result."""
        job = ("--principal", JOB, "-t", self.topic, "-g", self.group)
        if command == "print":
            return self._run("acls", command, *job, *more)
        file = self._files / "job.properties"
        servers = write_properties(file, self._authorized.options("job", password=password))
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
    produce(authorized.kafka.bootstrap_servers, topic, [NewRecord(b"x")])
    return Commands(run, authorized, tmp_path, topic, group)


@pytest.mark.behaviour("OPS-14")
@pytest.mark.parametrize(
    "way", [("--spark-groups", f"jobs-{uuid4().hex[:8]}"), ("--for", "operator")], ids=["job", "operator"]
)
def test_a_missing_acl_is_named_whichever_it_is(
    way: tuple[str, ...], commands: Commands, authorized: Authorized
) -> None:
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
    servers = write_properties(tmp_path / "admin.properties", login, prefix="kafka.")
    install_kafka_tools(tmp_path)
    more = ("--spark-groups", f"jobs-{uuid4().hex[:8]}")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["sh", "-e"], input=commands.call("print", *more).stdout, cwd=tmp_path, text=True, capture_output=True,
        check=False, timeout=120, env={**os.environ, "PATH": path, "OFFSETSTORE_BOOTSTRAP_SERVERS": servers},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: commands.missing(*more) == [])


@pytest.mark.behaviour("OPS-14")
def test_what_is_missing_is_told_with_its_command_apart_from_other_refusals(
    commands: Commands, authorized: Authorized
) -> None:
    topic, group = commands.printed()
    authorized.allow(topic)
    wait_until(lambda: commands.missing() == [f"READ group {commands.group}"])
    result = commands.call("check")
    assert result.exit_code == 1
    header, first, second, counted, command = result.stdout.splitlines()
    assert header.split() == ["operation", "resource", "name", "pattern", "state", "purpose"]
    assert (first.split()[4], second.split()[5]) == ("allowed", "MISSING")  # the group's name has a space
    assert counted == "1 permission missing, which an administrator adds with:"
    assert command == group.command(authorized.kafka.sasl_bootstrap_servers)

    gone = f"gone-{uuid4().hex[:8]}"
    authorized.allow(group, Acl(JOB, "topic", gone, "READ"))
    wait_until(lambda: commands.call("check", "-t", gone).exit_code == 4)
    no_administrator = ("these credentials may not create ACLs", "no ALTER on the cluster")
    for refused, told in (
        (commands.call("apply"), no_administrator),
        (commands.call("apply", "--execute"), no_administrator),
        (commands.call("check", "-t", gone), (f"Kafka has no topic {gone}",)),
        (commands.call("check", password="Hunter2-never-shown"), ("Kafka refused the credentials",)),
    ):
        assert (refused.exit_code, "Hunter2" in refused.output) == (4, False)
        assert [each for each in told if each not in refused.stderr] == []


def test_where_kafka_has_no_authorizer_all_is_allowed_and_none_can_be_created(
    run: Run, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    job = ("--principal", JOB, "-t", offsetstore_topic(1), "-g", offsetstore_group)
    servers = offsetstore_kafka.bootstrap_servers
    assert run("acls", "check", *job, brokers=servers).exit_code == 0
    result = run("acls", "apply", *job, "--execute", brokers=servers)
    assert (result.exit_code, "no authorizer" in result.stderr) == (4, True)


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


@pytest.mark.behaviour("OPS-14")
def test_what_the_page_says_is_so(
    run: Run,
    authorized: Authorized,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its commands and its Python run as they stand there, in order, for `User:job` and a group `billing`."""
    create_topic(authorized.kafka.bootstrap_servers, "payments")
    authorized.allow_to_alter_the_cluster("User:administrator")
    monkeypatch.chdir(tmp_path)
    write_properties(Path("job.properties"), authorized.options("job"))
    servers = write_properties(Path("admin.properties"), authorized.options("administrator"))
    names: dict[str, Any] = {"kafka": authorized.options(), "administrator": authorized.librdkafka("administrator")}
    needed = job_acls(JOB, topics=["payments"], groups=["billing"])
    broker = authorized.broker()
    printed: list[str] = []
    for language, text in blocks("acls.md", "python", "console"):
        if language == "python":
            exec(text, names)  # noqa: S102 - the page's own words
            continue
        for arguments in map(words, text.splitlines()):
            if arguments[1] == "check":  # what was created applies a moment later
                wait_until(lambda: broker.missing_acls(needed) == ())
            result = run(*arguments, brokers=servers)
            assert result.exit_code == 0, result.output
            printed.append(result.stdout)

    assert ["to be created" in text for text in printed] == [False, False, False, True, False, False]
    assert printed[4].count("created") == 2
    assert "MISSING" not in printed[5]
    assert (names["missing"], names["created"]) == ((), ())
    assert capsys.readouterr().out == "\n"
    broker.close()
