"""Which ACLs a job and an operator need; that a job runs with them is tests/integration/spark/test_acls.py."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from offsetstore.errors import ConfigurationError
from offsetstore.kafka.acls import ALL, Acl, job_acls, operator_acls, relay_acls
from offsetstore.kafka.requests import binding
from tests.support.authorized import JOB

TOPICS = ["payments", "refunds"]
GROUPS = ["billing"]


@pytest.mark.behaviour("OPS-14")
@pytest.mark.parametrize(
    ("needed", "given", "named"),
    [
        (job_acls, {}, ["READ on topic payments", "READ on topic refunds", "READ on group billing"]),
        (job_acls, {"topics": ["a", "a"], "groups": ["g", "g"]}, ["READ on topic a", "READ on group g"]),
        (job_acls, {"topics": ["a"], "mirror": False}, ["READ on topic a", "DESCRIBE on group billing"]),
        (
            job_acls,
            {"topics": ["a"], "spark_groups": "spark-kafka-source"},
            ["READ on topic a", "READ on group billing", "READ on group spark-kafka-source-…"],
        ),
        (
            operator_acls,
            {"topics": [ALL], "groups": ["billing", "audit"]},
            ["DESCRIBE on topic *", "DESCRIBE on group billing", "DESCRIBE on group audit"],
        ),
    ],
)
def test_a_job_reads_its_topics_and_its_group_and_an_operator_only_looks(
    needed: Callable[..., tuple[Acl, ...]], given: dict[str, Any], named: list[str]
) -> None:
    acls = needed(JOB, **{"topics": TOPICS, "groups": GROUPS, **given})
    assert [str(acl) for acl in acls] == named
    assert {acl.principal for acl in acls} == {JOB}
    assert all(acl.purpose for acl in acls)


@pytest.mark.behaviour("OPS-14")
def test_a_relay_writes_topics_and_has_names_that_begin_with_its_anchor() -> None:
    acls = relay_acls("User:relay", topics=["events", "events"], anchor="acme")
    assert [str(acl) for acl in acls] == [
        "WRITE on topic events", "READ on topic acme", "READ on group acme-…", "WRITE on transactional-id acme-…"
    ]  # fmt: skip
    assert acls[-1].command().endswith("--operation WRITE --transactional-id acme- --resource-pattern-type prefixed")
    assert binding(acls[-1]).restype.name == "TRANSACTIONAL_ID"


def test_the_purpose_does_not_tell_two_acls_apart() -> None:
    assert Acl(JOB, "topic", "payments", "READ", purpose="one") == Acl(JOB, "topic", "payments", "READ", purpose="two")
    assert Acl(JOB, "topic", "payments", "READ") != Acl(JOB, "topic", "payments", "DESCRIBE")


def test_the_command_is_kafkas_own_and_safe_in_a_shell() -> None:
    [topic, group, prefix] = job_acls(
        "User:CN=job, O=Sales", topics=["payments"], groups=["it's $HOME"], spark_groups="jobs"
    )
    beginning = ["--command-config", "admin.properties", "--add", "--allow-principal", "User:CN=job, O=Sales"]
    assert topic.command() == (
        'kafka-acls --bootstrap-server "$OFFSETSTORE_BOOTSTRAP_SERVERS" --command-config admin.properties '
        "--add --allow-principal 'User:CN=job, O=Sales' --operation READ --topic payments"
    )
    assert shlex.split(group.command("localhost:9092")) == [
        "kafka-acls", "--bootstrap-server", "localhost:9092", *beginning,
        "--operation", "READ", "--group", "it's $HOME",
    ]  # fmt: skip
    assert shlex.split(prefix.command())[-4:] == ["--group", "jobs-", "--resource-pattern-type", "prefixed"]


@pytest.mark.parametrize("needed", [job_acls, operator_acls])
@pytest.mark.parametrize(
    "wrong",
    [
        *({"principal": principal} for principal in ("job", "User:", ":job")),
        *({"topics": topics} for topics in ("payments", [""], [])),
        *({"groups": groups} for groups in ("billing", [""], [])),
    ],
)
def test_a_principal_has_a_type_and_there_are_topics_and_groups(
    needed: Callable[..., tuple[Acl, ...]], wrong: dict[str, Any]
) -> None:
    given = {"principal": JOB, "topics": TOPICS, "groups": GROUPS, **wrong}
    with pytest.raises(ConfigurationError) as refused:
        needed(given.pop("principal"), **given)
    assert refused.value.expected


def test_the_prefix_of_sparks_groups_is_not_all_groups() -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        job_acls(JOB, topics=TOPICS, groups=GROUPS, spark_groups="")
