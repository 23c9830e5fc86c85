"""What ``acls print`` prints, and what the commands refuse without asking Kafka."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from offsetstore.cli.commands import cli
from offsetstore.kafka.acls import job_acls, relay_acls

PAGE = Path(__file__).parents[3] / "docs" / "relay.md"
JOB = ("--principal", "User:job", "-t", "payments", "-g", "billing")


@pytest.mark.behaviour("OPS-14")
def test_each_permission_is_a_command_below_what_it_is_for_and_the_document_has_all_that_an_acl_is_made_of() -> None:
    expected = job_acls("User:job", topics=["payments"], groups=["billing"])
    printed = CliRunner().invoke(cli, ["acls", "print", *JOB, "-b", "localhost:9092"]).stdout.splitlines()
    assert printed == [line for acl in expected for line in (f"# {acl.purpose}", acl.command("localhost:9092"))]

    def document(*more: str) -> list[dict[str, str]]:
        return json.loads(CliRunner().invoke(cli, ["acls", "print", *JOB, *more, "--format", "json"]).stdout)["acls"]

    for more, operations in {
        (): ["READ", "READ"],
        ("--no-mirror",): ["READ", "DESCRIBE"],
        ("--spark-groups", "jobs"): ["READ", "READ", "READ"],
        ("--for", "operator"): ["DESCRIBE", "DESCRIBE"],
    }.items():
        acls = document(*more)
        assert [acl["operation"] for acl in acls] == operations
        assert [acl["pattern"] for acl in acls] == ["literal", "literal", "prefixed"][: len(acls)]
    first = document()[0]
    what = {"resource": "topic", "name": "payments", "pattern": "literal", "operation": "READ"}
    told = {"purpose": expected[0].purpose, "command": expected[0].command()}
    assert first == {"principal": "User:job", "host": "*", "permission": "allow", **what, **told}


@pytest.mark.behaviour("OPS-14")
def test_a_relay_s_are_printed_by_the_command_of_its_page() -> None:
    [command] = re.findall(r"^ *\$ offsetstore (acls .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    result = CliRunner().invoke(cli, shlex.split(command))
    assert result.exit_code == 0, result.output
    expected = relay_acls("User:relay", topics=["payment-events"])
    assert [line for line in result.stdout.splitlines() if line[0] != "#"] == [acl.command() for acl in expected]
    other = CliRunner().invoke(cli, [*shlex.split(command), "--anchor", "acme", "--format", "json"])
    assert [acl["name"] for acl in json.loads(other.stdout)["acls"]][1:] == ["acme", "acme-", "acme-"]


def test_wrong_usage_is_said_before_kafka_is_asked() -> None:
    relay, nowhere = (*JOB[:-2], "--for", "relay"), ("-b", "127.0.0.1:1")
    for wrong in (
        ("print", "--principal", "job", "-t", "payments", "-g", "billing"),
        ("print", *JOB, "-t", ""),
        ("print", *JOB, "--spark-groups", ""),
        ("print", *JOB, "--for", "operator", "--no-mirror"),
        ("print", *JOB, "--for", "operator", "--spark-groups", "jobs"),
        ("print", *JOB, "--for", "relay"),
        ("print", *JOB, "--anchor", "acme"),
        ("print", *JOB[:-2]),
        ("print", *relay, "--no-mirror"),
        ("print", *relay, "--anchor", ""),
        ("check", *relay, *nowhere),
        ("check", *JOB),
        ("check", *JOB, "-t", "*", *nowhere),
        ("check", *JOB, "-g", "*", *nowhere),
        ("apply", *JOB),
    ):
        result = CliRunner(env={"OFFSETSTORE_BOOTSTRAP_SERVERS": None}).invoke(cli, ["acls", *wrong])
        assert result.exit_code == 2, wrong
