"""What can't work ends in bounded time, with an exit code, the way out, and no password."""

from __future__ import annotations

import time

import pytest
from click.testing import Result

from offsetstore.local.free_ports import free_port
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.postgres.schema import HEAD
from offsetstore.testing.fixtures import NewTopic
from tests.integration.cli.conftest import Run

_SECONDS = 10.0
_COMMANDS = [["migrate"], ["migrate", "--check"], ["status", "-g", "billing"]]


def _timed(run: Run, *arguments: str, url: str | None = None, brokers: str | None = None) -> Result:
    started = time.monotonic()
    result = run(*arguments, url=url, brokers=brokers)
    assert time.monotonic() - started < _SECONDS
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize("command", _COMMANDS)
def test_no_server_at_the_url(run: Run, command: list[str]) -> None:
    result = _timed(run, *command, url=f"postgresql://job:canary@127.0.0.1:{free_port()}/payments")
    assert result.exit_code == 3
    assert "Error: the database can't be reached" in result.stderr
    assert "  expected:  a server that answers, and knows the role, its password and the database\n" in result.stderr
    assert "  next step: Check --url or OFFSETSTORE_URL" in result.stderr
    assert "canary" not in result.output


@pytest.mark.behaviour("START-17")
@pytest.mark.parametrize(("command", "code"), [(["status", "-g", "billing"], 3), (["migrate", "--check"], 1)])
def test_an_older_revision(
    run: Run, command: list[str], code: int, offsetstore_database: str, offsetstore_postgres: PostgresServer
) -> None:
    name = offsetstore_database.rpartition("/")[2]
    offsetstore_postgres.sql("UPDATE offsetstore_version SET version_num = '0000'", database=name)
    result = _timed(run, *command, url=offsetstore_database)
    assert result.exit_code == code
    assert "  found:     revision 0000\n" in result.stderr
    assert f"  expected:  revision {HEAD}\n" in result.stderr
    assert "offsetstore migrate" in result.stderr


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_reason_that_is_no_utf_8(run: Run, offsetstore_database: str, command: str) -> None:
    """So Python passes on what the terminal's encoding does not have."""
    result = _timed(run, command, "-g", "billing", "--reason", "ticket \udcff", url=offsetstore_database)
    assert result.exit_code == 2
    assert "reason can't be stored" in result.stderr
    assert "a lone surrogate, character 8 of 8" in result.stderr


def test_a_role_that_may_not_read(run: Run, offsetstore_database: str, offsetstore_postgres: PostgresServer) -> None:
    role = f"reader_{offsetstore_database.rpartition('_')[2]}"
    offsetstore_postgres.sql(f"CREATE ROLE {role} LOGIN")
    url = offsetstore_database.replace("//postgres", f"//{role}", 1)
    try:
        result = _timed(run, "status", "-g", "billing", url=url)
    finally:
        offsetstore_postgres.sql(f"DROP ROLE {role}")
    assert result.exit_code == 3
    assert "permission denied for table" in result.stderr
    assert f"`offsetstore grants --role {role}`" in result.stderr


@pytest.mark.behaviour("START-16")
def test_an_unknown_topic(
    run: Run, offsetstore_database: str, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic
) -> None:
    topic = offsetstore_topic(1)
    arguments = ["resolve", "-g", "billing", "-t", f"{topic}s"]
    result = _timed(run, *arguments, url=offsetstore_database, brokers=offsetstore_kafka.bootstrap_servers)
    assert result.exit_code == 4
    assert f"Error: Kafka has no topic {topic}s\n" in result.stderr
    assert f"at {offsetstore_kafka.bootstrap_servers}, of those that this principal may see\n" in result.stderr
    assert "  expected:  this topic at these brokers\n" in result.stderr
    assert f"Did you mean {topic}? Create the topic or correct its name; nothing was changed." in result.stderr


@pytest.mark.behaviour("START-16")
def test_a_dead_broker(run: Run, offsetstore_database: str) -> None:
    arguments = ["resolve", "-g", "billing", "-t", "payments", "--timeout", "1"]
    result = _timed(run, *arguments, url=offsetstore_database, brokers=f"127.0.0.1:{free_port()}")
    assert result.exit_code == 4
    assert "no answer from Kafka within 1 s" in result.stderr
    assert "  next step: Check bootstrap.servers" in result.stderr


@pytest.mark.behaviour("START-16")
def test_wrong_credentials(run: Run, offsetstore_kafka: KafkaBroker) -> None:
    options = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=job", "sasl.password=canary"]
    arguments = ["resolve", "-g", "billing", "-t", "payments", "--no-store", *(f"-o{option}" for option in options)]
    result = _timed(run, *arguments, brokers=offsetstore_kafka.sasl_bootstrap_servers)
    assert result.exit_code == 4
    assert "Error: Kafka refused the credentials\n" in result.stderr
    assert "canary" not in result.output
