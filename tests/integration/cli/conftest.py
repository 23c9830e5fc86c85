from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
import pytest
from click.testing import CliRunner, Result

from offsetstore import Broker, Claim, OffsetRange, OffsetStore, TopicPartition
from offsetstore.cli.commands import cli
from offsetstore.kafka.admin import NewRecord, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.testing.fixtures import NewTopic

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """The language and the text of each block that a page of the documentation has in these languages."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(rf"^ *```({'|'.join(languages)})\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [(language, textwrap.dedent(block)) for language, block in found]


def words(line: str) -> list[str]:
    """The arguments of a line that runs our command."""
    prompt, command, *arguments = shlex.split(line, comments=True)
    assert (prompt, command) == ("$", "offsetstore")
    return arguments


def advance(store: OffsetStore, claim: Claim, offsets: Mapping[TopicPartition, int]) -> None:
    """Let a job store these offsets."""
    with store.transaction(claim) as tx:
        plan = tx.lock({tp: OffsetRange(0, until) for tp, until in offsets.items()})
        tx.advance({tp: decision.remaining for tp, decision in plan.items()})


class Run(Protocol):
    """Calls the command line with a database and brokers in its environment."""

    def __call__(self, *arguments: str, url: str | None = None, brokers: str | None = None) -> Result:
        """Return its exit code and what it printed."""
        ...


@pytest.fixture
def run() -> Run:
    def call(*arguments: str, url: str | None = None, brokers: str | None = None) -> Result:
        environment = {"OFFSETSTORE_URL": url, "OFFSETSTORE_BOOTSTRAP_SERVERS": brokers}
        return CliRunner(env=environment).invoke(cli, arguments, prog_name="offsetstore")

    return call


class Here:
    """Calls the command line with the test's database; a command is expected to succeed, or to fail with a code."""

    def __init__(self, run: Run, url: str) -> None:
        self._run, self._url = run, url

    def __call__(self, *arguments: str, brokers: str | None = None) -> str:
        """Return what it prints."""
        result = self._run(*arguments, url=self._url, brokers=brokers)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str, brokers: str | None = None) -> Any:
        """Return its document."""
        return json.loads(self(*arguments, "--format", "json", brokers=brokers))

    def fail(self, code: int, *arguments: str, brokers: str | None = None) -> str:
        """Return what it tells of its error."""
        result = self._run(*arguments, url=self._url, brokers=brokers)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        return result.stderr


@pytest.fixture
def here(run: Run, offsetstore_database: str) -> Here:
    return Here(run, offsetstore_database)


@pytest.fixture
def servers(offsetstore_kafka: KafkaBroker) -> str:
    return offsetstore_kafka.bootstrap_servers


@pytest.fixture
def payments(offsetstore_topic: NewTopic, servers: str) -> str:
    """A topic of three partitions, ten records in each."""
    topic = offsetstore_topic(3)
    produce(servers, topic, [NewRecord(b"x", partition=i % 3) for i in range(30)])
    return topic


@pytest.fixture
def billing(offsetstore_database: str, servers: str, payments: str, offsetstore_group: str) -> Iterator[str]:
    """A group with a live job: 4, 5 and 0 are stored for `payments`, 2 and 8 are committed for partitions 0 and 1."""
    with OffsetStore.connect(offsetstore_database) as store:
        broker = Broker({"bootstrap.servers": servers})
        claim = store.claim(offsetstore_group, broker, topics=[payments], mirror_every=None)
        advance(store, claim, {TopicPartition(payments, 0): 4, TopicPartition(payments, 1): 5})
        commit(servers, offsetstore_group, payments, {0: 2, 1: 8})
        yield offsetstore_group


def commit(servers: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit as any other tool would."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(
        offsets=[confluent_kafka.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()],
        asynchronous=False,
    )
    consumer.close()
