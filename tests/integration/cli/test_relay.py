"""``offsetstore relay`` as a process: taken over, stopped, and what it says."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offsetstore import OffsetStore
from offsetstore.testing.fixtures import NewTopic
from offsetstore.testing.job_process import JobProcess
from tests.integration.cli.conftest import DOCS, Run
from tests.integration.conftest import Query
from tests.support.outbox import numbered, put, values
from tests.support.waiting import wait_until

PAGE = (DOCS / "relay.md").read_text(encoding="utf-8")
RECOVERY = (DOCS / "relay-recovery.md").read_text(encoding="utf-8")


@contextmanager
def relay(url: str, servers: str, anchor: str, log: Path) -> Generator[JobProcess]:
    """The command of the page, with the addresses of a test."""
    [line] = re.findall(r"^ *\$ offsetstore (relay .*)$", PAGE, re.MULTILINE)
    arguments = [servers if one == "localhost:9092" else one for one in shlex.split(line)]
    command = ["-c", "from offsetstore.cli.main import main; main()", *arguments, "--anchor", anchor]
    with JobProcess(command, log, environment={"OFFSETSTORE_URL": url}) as process:
        yield process


@pytest.mark.behaviour("OUT-4")
def test_the_first_ends_when_a_second_takes_over_and_that_one_ends_well_at_sigterm(
    offsetstore_database: str, servers: str, offsetstore_topic: NewTopic, tmp_path: Path, query: Query
) -> None:
    topic, anchor = offsetstore_topic(1), offsetstore_topic(1)
    logs = tmp_path / "first", tmp_path / "second"
    with (
        OffsetStore.connect(offsetstore_database) as store,
        relay(offsetstore_database, servers, anchor, logs[0]) as first,
    ):
        put(store, numbered(topic, [0]))
        wait_until(lambda: query("SELECT count(*) FROM outbox") == [(0,)], timeout=60)
        with relay(offsetstore_database, servers, anchor, logs[1]) as second:
            wait_until(lambda: "Producing the outbox of store" in second.log.read_text(), timeout=60)
            wait_until(lambda: (put(store, numbered(topic, [1])), first.exit_status is not None)[1], timeout=60)
            assert first.exit_status == 6, first.end_of_log
            wait_until(lambda: query("SELECT count(*) FROM outbox") == [(0,)], timeout=60)
            os.kill(second.pid, signal.SIGTERM)
            wait_until(lambda: second.exit_status is not None, timeout=60)
            assert second.exit_status == 0, second.end_of_log

    assert "another relay has taken the outbox over" in logs[0].read_text()
    found = values(servers, topic)
    assert found == sorted(found)
    assert [found.count(0), {*found}] == [1, {0, 1}]


@pytest.mark.behaviour("OUT-5")
def test_a_lost_number_ends_it_with_code_1_and_the_options_that_decide(
    run: Run, offsetstore_database: str, servers: str, offsetstore_topic: NewTopic, query: Query
) -> None:
    anchor = offsetstore_topic(1)
    query(
        "INSERT INTO outbox_relays (shard, token, owner, batch, ids) "
        "VALUES (0, '00000000-0000-0000-0000-000000000000', 'ana', 5, '{7,8}')"
    )

    before = signal.getsignal(signal.SIGTERM)  # the process that runs the command may go on, as this one does
    ended = run("relay", "--anchor", anchor, url=offsetstore_database, brokers=servers)

    assert signal.getsignal(signal.SIGTERM) is before
    assert ended.exit_code == 1, ended.output
    assert "another cluster" in ended.stderr
    told = " ".join(ended.stderr.split())
    assert "--on-uncertain skip if they are there, or --on-uncertain repeat if they are not" in told
    assert values(servers, anchor) == []
    query("INSERT INTO outbox (consumer_group, topic) SELECT 'billing', 'events' FROM generate_series(1, 8)")
    [look] = re.findall(r"`(SELECT \* FROM outbox .*?)`", RECOVERY)
    assert [row[0] for row in query(look)] == [7, 8]
