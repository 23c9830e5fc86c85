"""``offsetstore runs`` and ``offsetstore errors``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from offsetstore import OffsetRange, OffsetStore, StartPolicy, TopicPartition
from offsetstore.errors import OffsetGap
from offsetstore.protocol.events import BatchEnded, BatchStarted, MirrorTried, Retried
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import join
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import Run

P0 = TopicPartition("payments", 0)
RANGES = {P0: OffsetRange(0, 40)}


@pytest.fixture
def store(offsetstore_database: str, offsetstore_group: str) -> Iterator[OffsetStore]:
    """With a run that was closed, one that failed, and one that runs."""
    group = offsetstore_group
    with OffsetStore.connect(offsetstore_database) as store:
        store.claim(group, topics=["payments"]).close()
        failing = store.claim(group, topics=["payments"])
        on = failing.observers.on
        on(BatchStarted(group=group, batch=6, ranges=RANGES))
        on(BatchEnded(outcome="written", group=group, batch=6, ranges=RANGES, rows={"": 40}, seconds={"write": 1.5}))
        on(Retried(group=group, attempt=1, error=TimeoutError(), wait=0.1))
        on(BatchStarted(group=group, batch=7, ranges=RANGES))
        on(
            BatchEnded(
                outcome="failed", group=group, batch=7, ranges=RANGES, error=OffsetGap("a gap", topic_partition=P0)
            )
        )
        failing.close()
        last = store.claim(group, topics=["payments"])
        yield store
        last.close()


@pytest.mark.behaviour("OPS-11", "OPS-1")
def test_the_runs_have_a_line_each_the_newest_last_and_hold_all_that_is_recorded(
    run: Run, store: OffsetStore, offsetstore_group: str, offsetstore_database: str
) -> None:
    result = run("runs", "-g", offsetstore_group, url=offsetstore_database)

    assert result.exit_code == 0, result.output
    head, *lines = [re.split(r" {2,}", line.strip()) for line in result.stdout.splitlines()]
    assert head == ["started", "until", "state", "phase", "batch", "rows", "epoch", "owner"]
    assert [line[2:7] for line in lines] == [
        ["ended", "starting", "-", "0", "1"],
        ["failed", "failed", "7", "40", "2"],
        ["live", "starting", "-", "0", "3"],
    ]
    assert lines[2][1] == "-"

    result = run("runs", "-g", offsetstore_group, "-n", "2", "--format", "json", url=offsetstore_database)
    document = json.loads(result.stdout)
    assert document["group"] == offsetstore_group
    failed, running = document["runs"]
    assert (failed["state"], failed["batch"], failed["topics"]) == ("failed", 7, ["payments"])
    assert failed["counters"] == {
        "written": 1,
        "offsets": 40,
        "batch_milliseconds": 1500,
        "rows": 40,
        "retries": 1,
        "failed": 1,
    }
    assert running["ended_at"] is None
    text = run("runs", "--help").stdout
    assert [key for key in running if key not in text] == []

    claim = store.claim(offsetstore_group, topics=["payments"])
    claim.observers.on(MirrorTried(group=offsetstore_group, reason="no answer", is_over=False))
    claim.close()
    result = run("runs", "-g", offsetstore_group, url=offsetstore_database)

    assert result.stdout.splitlines()[-1] == "The last run could not copy the offsets to Kafka: no answer"


@pytest.mark.behaviour("OPS-11", "OPS-1")
def test_the_errors_of_jobs_that_are_gone(
    run: Run, store: OffsetStore, offsetstore_group: str, offsetstore_database: str
) -> None:
    result = run("errors", "-g", offsetstore_group, url=offsetstore_database)
    assert result.exit_code == 0, result.output
    head, *lines = [re.split(r" {2,}", line.strip()) for line in result.stdout.splitlines()]
    assert head == ["at", "source", "times", "batch", "error", "text"]
    assert [line[1:5] for line in lines] == [["retry", "1", "-", "TimeoutError"], ["batch", "1", "7", "OffsetGap"]]
    assert lines[1][5].startswith("payments-0: a gap.")

    def found(*arguments: str) -> list[dict[str, Any]]:
        printed = run("errors", "-g", offsetstore_group, "--format", "json", *arguments, url=offsetstore_database)
        return json.loads(printed.stdout)["errors"]

    [error] = found("--source", "batch")
    assert error == found("-n", "1")[0]
    assert (error["epoch"], error["topic"], error["partition"]) == (2, "payments", 0)
    assert error["ranges"] == f"{P0} {RANGES[P0]}"
    assert found("--since", "2100-01-01T00:00Z") == []
    text = run("errors", "--help").stdout
    assert [key for key in error if key not in text] == []


@pytest.mark.behaviour("OPS-11", "CONS-21")
def test_consumers_record_their_runs_and_what_they_meet(
    run: Run, offsetstore_database: str, offsetstore_group: str
) -> None:
    group, broker = offsetstore_group, StaticBroker.with_topics({"payments": 1}, end=40)
    with OffsetStore.connect(offsetstore_database) as store:
        member = join(store, ClaimRequest(group, broker, ("payments",), StartPolicy(), "refuse", 5.0, group))
        gap = OffsetGap("a gap", topic_partition=P0)
        member.observers.on(BatchEnded(outcome="failed", group=group, batch=7, ranges=RANGES, error=gap))
        member.close()

    told = {name: run(name, "-g", group, url=offsetstore_database).stdout for name in ("runs", "errors")}
    assert [word in told["runs"] for word in ("failed", member.owner)] == [True] * 2
    assert "OffsetGap" in told["errors"]
    for command in told:
        result = run(command, "-g", "biling", url=offsetstore_database)
        assert (result.exit_code, "'biling'" in result.stderr) == (1, True)
