"""``offsetstore runs`` and ``offsetstore errors``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import OffsetGap
from offsetstore.protocol.events import BatchEnded, BatchStarted, MirrorTried, Retried
from tests.integration.cli.conftest import Here

P0 = TopicPartition("payments", 0)
RANGES = {P0: OffsetRange(0, 40)}


@pytest.fixture
def store(offsetstore_database: str, offsetstore_group: str) -> Iterator[OffsetStore]:
    """With a run that was closed, one that failed, and one that runs."""
    group, gap = offsetstore_group, OffsetGap("a gap", topic_partition=P0)
    with OffsetStore.connect(offsetstore_database) as store:
        store.claim(group, topics=["payments"]).close()
        with store.claim(group, topics=["payments"]) as failing:
            for event in (
                BatchStarted(group=group, batch=6, ranges=RANGES),
                BatchEnded(
                    outcome="written", group=group, batch=6, ranges=RANGES, rows={"": 40}, seconds={"write": 1.5}
                ),
                Retried(group=group, attempt=1, error=TimeoutError(), wait=0.1),
                BatchStarted(group=group, batch=7, ranges=RANGES),
                BatchEnded(outcome="failed", group=group, batch=7, ranges=RANGES, error=gap),
            ):
                failing.observers.on(event)
        with store.claim(group, topics=["payments"]):
            yield store


def rows(printed: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in printed.splitlines()]


@pytest.mark.behaviour("OPS-11", "OPS-1")
def test_the_runs_have_a_line_each_the_newest_last_and_hold_all_that_is_recorded(
    here: Here, store: OffsetStore, offsetstore_group: str
) -> None:
    runs = ("runs", "-g", offsetstore_group)
    head, *lines = rows(here(*runs))
    assert head == ["started", "until", "state", "phase", "batch", "rows", "epoch", "owner"]
    assert [line[2:7] for line in lines] == [
        ["ended", "starting", "-", "0", "1"],
        ["failed", "failed", "7", "40", "2"],
        ["live", "starting", "-", "0", "3"],
    ]
    assert lines[2][1] == "-"

    document = here.json(*runs, "-n", "2")
    failed, running = document["runs"]
    assert document["group"] == offsetstore_group
    assert (failed["state"], failed["batch"], failed["topics"]) == ("failed", 7, ["payments"])
    counted = {"written": 1, "offsets": 40, "batch_milliseconds": 1500, "rows": 40, "retries": 1, "failed": 1}
    assert failed["counters"] == counted
    assert running["ended_at"] is None
    text = here("runs", "--help")
    assert [key for key in running if key not in text] == []

    with store.claim(offsetstore_group, topics=["payments"]) as claim:
        claim.observers.on(MirrorTried(group=offsetstore_group, reason="no answer", is_over=False))
    assert here(*runs).splitlines()[-1] == "The last run could not copy the offsets to Kafka: no answer"


@pytest.mark.behaviour("OPS-11", "OPS-1")
@pytest.mark.usefixtures("store")
def test_the_errors_of_jobs_that_are_gone(here: Here, offsetstore_group: str) -> None:
    errors = ("errors", "-g", offsetstore_group)
    head, *lines = rows(here(*errors))
    assert head == ["at", "source", "times", "batch", "error", "text"]
    assert [line[1:5] for line in lines] == [["retry", "1", "-", "TimeoutError"], ["batch", "1", "7", "OffsetGap"]]
    assert lines[1][5].startswith("payments-0: a gap.")

    [error] = here.json(*errors, "--source", "batch")["errors"]
    assert here.json(*errors, "-n", "1")["errors"] == [error]
    assert (error["epoch"], error["topic"], error["partition"]) == (2, "payments", 0)
    assert error["ranges"] == f"{P0} {RANGES[P0]}"
    assert here.json(*errors, "--since", "2100-01-01T00:00Z")["errors"] == []
    text = here("errors", "--help")
    assert [key for key in error if key not in text] == []
    for command in ("runs", "errors"):
        assert "'biling'" in here.fail(1, command, "-g", "biling")
