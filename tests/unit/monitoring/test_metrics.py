"""A job's metrics: what its events make of them. No Spark, no database."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import generate_latest

from offsetstore import OffsetRange, OffsetStore, Pause, Token, TopicPartition
from offsetstore.errors import LockTimeout, RowsRefused, StaleClaim
from offsetstore.monitoring import Metrics
from offsetstore.protocol.events import (
    BatchEnded,
    BatchStarted,
    ClaimEnded,
    ClaimTaken,
    CommitResolved,
    DatabaseAsked,
    Event,
    FlushEnded,
    HandlerCalled,
    HeldRecord,
    IdleWorkFailed,
    LettersReplayed,
    LettersWritten,
    MirrorTried,
    PauseChanged,
    RecordsDropped,
    RecordsHeld,
    Retried,
)
from offsetstore.testing import InMemoryOffsetStore, StaticBroker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("OPS-5")

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
GROUP = "billing"
P0, P1, Q0 = TopicPartition("payments", 0), TopicPartition("payments", 1), TopicPartition("refunds", 0)
RANGES = {P0: OffsetRange(0, 5), P1: OffsetRange(2, 4), Q0: OffsetRange(0, 1)}
CANARY = "canary"
TOKEN = Token(7, uuid4())
BATCH: dict[str, Any] = {"group": GROUP, "batch": 3, "ranges": RANGES}
ERROR = RowsRefused(f"the database refused {CANARY}", sqlstate="23514")
PAUSE = Pause(datetime.now(UTC), None, CANARY)
EVENTS: list[Event] = [
    ClaimTaken(group=GROUP, token=TOKEN, owner="host", starting=None),
    BatchStarted(**BATCH),
    BatchEnded(outcome="written", **BATCH, rows={"": 8, "sums": 2}, seconds={"plan": 0.5, "write": 1.5}),
    BatchStarted(**BATCH),
    BatchEnded(outcome="skipped", **BATCH),
    BatchStarted(**BATCH),
    BatchEnded(outcome="kept", **BATCH, rows={"": 8}, seconds={"plan": 9.0}),
    FlushEnded(group=GROUP, batches=(3, 4), ranges=RANGES, rows={"": 10}, seconds={"write": 0.5}),
    FlushEnded(group=GROUP, error=ERROR),
    IdleWorkFailed(group=GROUP, error=ValueError(CANARY)),
    BatchEnded(outcome="failed", **BATCH, error=ERROR),
    BatchStarted(**BATCH),
    BatchEnded(outcome="interrupted", **BATCH),
    BatchEnded(outcome="failed", **BATCH, error=ERROR, stored={Q0: OffsetRange(0, 1)}, rows={"": 100}),
    BatchEnded(outcome="interrupted", **BATCH, stored={P1: OffsetRange(2, 3)}, rows={"": 200}),
    LettersWritten(group=GROUP, batch=3, ranges=RANGES, letters={"refused": 2, "rejected": 1}),
    LettersReplayed(group=GROUP, replayed=4, failed=1),
    HandlerCalled(group=GROUP, calls=9, retries=3, timeouts=1, seconds=2.5, lag=0.75),
    HandlerCalled(group=GROUP, calls=1, seconds=0.5, lag=0.25),
    RecordsDropped(group=GROUP, by="Expire", records=7),
    RecordsHeld(group=GROUP, held={P0: HeldRecord("Delay", 17, 1e9), P1: HeldRecord("Delay", 4, 1e9)}),
    RecordsHeld(group=GROUP, held={P0: HeldRecord("Delay", 17, 1e9)}),
    PauseChanged(group=GROUP, pause=PAUSE),
    Retried(group=GROUP, attempt=1, error=LockTimeout(CANARY), wait=0.1),
    CommitResolved(group=GROUP, topic_partition=P0, happened=True),
    CommitResolved(group=GROUP, topic_partition=P0, happened=None),
    MirrorTried(group=GROUP, offsets={P0: 5}),
    MirrorTried(group=GROUP, reason=CANARY, is_over=False),
    MirrorTried(group=GROUP, reason=CANARY, is_over=True),
    DatabaseAsked(group=GROUP, error=OSError(CANARY)),
]
COUNTED = {
    "claim_epoch": 7,
    "claim_held": 1,
    "paused": 1,
    "batches_total written": 1,
    "batches_total skipped": 1,
    "batches_total kept": 1,
    "batches_total failed": 2,
    "batches_total interrupted": 2,
    "batch_duration_seconds_count": 3,
    "batch_started_timestamp_seconds": 0,
    "batch_phase_seconds_sum plan": 0.5,
    "batch_phase_seconds_sum write": 2.0,
    "batch_phase_seconds_count write": 2,
    "offsets_total payments written": 8,
    "offsets_total refunds written": 2,
    "offsets_total payments skipped": 7,
    "offsets_total payments kept": 7,
    "rows_written_total ": 318,
    "rows_written_total sums": 2,
    "flushes_total written": 1,
    "flushes_total failed": 1,
    "errors_total RowsRefused": 3,
    "errors_total ValueError": 1,
    "dead_letters_total refused": 2,
    "dead_letters_total rejected": 1,
    "dead_letters_replayed_total written": 4,
    "dead_letters_replayed_total failed": 1,
    "handler_calls_total": 10,
    "records_dropped_total Expire": 7,
    "held_partitions": 1,
    "handler_retries_total": 3,
    "handler_timeouts_total": 1,
    "handler_seconds_total": 3.0,
    "handler_loop_lag_seconds": 0.25,
    "retries_total LockTimeout": 1,
    "lost_commits_total committed": 1,
    "lost_commits_total unknown": 1,
    "mirror_commits_total done": 1,
    "mirror_commits_total failed": 1,
    "mirror_commits_total ended": 1,
    "heartbeats_missed_total": 1,
}


KNOWN = (
    "batches_total", "flushes_total", "lost_commits_total", "dead_letters_total", "dead_letters_replayed_total",
    "mirror_commits_total", "heartbeats_missed_total", "batch_duration_seconds_count",
    "handler_calls_total", "handler_retries_total", "handler_timeouts_total", "handler_seconds_total",
)  # fmt: skip
"""The counters whose labels are known beforehand."""
UNSEEN = {"dead_letters_total raised", "dead_letters_total sequence", "lost_commits_total rolled_back"}


def values(metrics: Metrics) -> dict[str, float]:
    """Each sample, by its name without prefix and its other labels."""
    found: dict[str, float] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name not in {"consumergroup", "le"}]
            if not sample.name.endswith(("_created", "_bucket")):
                found[" ".join([sample.name.removeprefix("offsetstore_"), *labels])] = sample.value
    return found


def after(*events: Event) -> Metrics:
    metrics = Metrics()
    for event in events:
        metrics.on(event)
    return metrics


def test_each_event_is_counted_and_what_is_over_is_taken_back() -> None:
    found = values(after(*EVENTS))
    assert {name: found.get(name) for name in COUNTED} == COUNTED
    moments = {"last_batch_timestamp_seconds", "mirror_last_success_timestamp_seconds"}
    assert all(found[name] > 1_700_000_000 for name in moments)
    others = {name for name in found.keys() - COUNTED.keys() - moments if found[name]}
    assert {name.split()[0] for name in others} <= {
        "build_info", "batch_duration_seconds_sum", "batch_phase_seconds_count", "offsets_total",
    }  # fmt: skip
    ends = (PauseChanged(pause=None, group=GROUP), ClaimEnded(outcome="fenced", group=GROUP, token=TOKEN))
    over = values(after(*EVENTS, *ends))
    assert (over["paused"], over["claim_held"]) == (0, 0)


def test_from_the_claim_on_nothing_has_happened_zero_times() -> None:
    found = values(after(EVENTS[0]))
    known = {name for name in COUNTED if name.startswith(KNOWN)}
    assert {name: found.get(name) for name in known} == dict.fromkeys(known, 0)
    assert len(known) == len({name for name in found if name.startswith(KNOWN)}) - len(UNSEEN)
    assert all(found[name] == 0 for name in UNSEEN)


def test_a_closed_claim_leaves_its_counters_and_no_gauge() -> None:
    closed = ClaimEnded(outcome="closed", group=GROUP, token=TOKEN)
    in_mid_batch = after(*EVENTS, BatchStarted(**BATCH), closed, BatchEnded(outcome="failed", **BATCH, error=ERROR))
    gauges = {family.name for family in in_mid_batch.registry.collect() if family.type == "gauge" and family.samples}
    assert gauges == {"offsetstore_build_info"}
    assert values(in_mid_batch)["batches_total failed"] == 3
    again = after(EVENTS[0], ClaimTaken(group=GROUP, token=Token(8, uuid4()), owner="host", starting=None), closed)
    assert values(again)["claim_held"] == 1, "it is about the next claim"


@pytest.mark.behaviour("OPS-3")
def test_a_group_that_was_renamed_is_no_longer_held_and_gone_when_its_claim_is_closed(
    offsetstore_database: str,
) -> None:
    metrics = Metrics()
    with OffsetStore.connect(offsetstore_database, observers=[metrics]) as store:
        claim = store.claim(GROUP, topics=["payments"])
        with claim.transaction() as tx:
            tx.advance({P0: tx.lock({P0: OffsetRange(0, 1)})[P0].remaining})
        store.rename_group(GROUP, "invoicing", reason="ticket 17")
        with pytest.raises(StaleClaim), claim.transaction() as tx:
            tx.lock({P0: OffsetRange(1, 2)})
        assert values(metrics)["claim_held"] == 0
        claim.close()
        assert "claim_held" not in values(metrics)


def test_a_batch_in_flight_shows_since_when_and_one_that_ended_badly_is_neither_in_flight_nor_waiting() -> None:
    assert values(after(EVENTS[0]))["batch_started_timestamp_seconds"] == 0
    assert values(after(*EVENTS[:2]))["batch_started_timestamp_seconds"] > 1_700_000_000
    for end in (BatchEnded(outcome="failed", **BATCH, error=ERROR), BatchEnded(outcome="interrupted", **BATCH)):
        found = values(after(*EVENTS[:2], PauseChanged(group=GROUP, pause=PAUSE), end))
        assert (found["batch_started_timestamp_seconds"], found["paused"]) == (0, 0)
        assert found.get("batch_duration_seconds_count", 0) == 0


@pytest.mark.behaviour("OPS-7")
def test_every_series_names_its_group_and_none_a_partition_or_a_text_of_an_error_or_a_person() -> None:
    registry = after(*EVENTS).registry
    assert CANARY not in generate_latest(registry).decode()
    families = [*registry.collect()]
    samples = [sample for family in families for sample in family.samples]
    assert samples
    assert all(sample.labels["consumergroup"] == GROUP for sample in samples)
    assert not any("partition" in sample.labels for sample in samples)
    assert all(family.name.startswith("offsetstore_") and family.documentation for family in families)


def test_a_store_tells_of_its_claims_from_the_first_to_the_last() -> None:
    metrics = Metrics()
    with InMemoryOffsetStore(observers=[metrics]) as store:
        first = store.claim(GROUP, topics=["payments"])
        second = store.claim(GROUP, topics=["payments"])
        assert (values(metrics)["claim_epoch"], values(metrics)["claim_held"]) == (2, 1)
        first.close()
        assert values(metrics)["claim_held"] == 1, "another claim has the group"
        second.close()
        second.close()
        with pytest.raises(StaleClaim), store.transaction(first) as tx:
            tx.lock({P0: OffsetRange(0, 1)})
        assert "claim_held" not in values(metrics)
        with store.claim(GROUP, topics=["payments"]), store.claim("audit", topics=["payments"]):
            [held] = [one for one in metrics.registry.collect() if one.name == "offsetstore_claim_held"]
            assert {one.labels["consumergroup"]: one.value for one in held.samples} == {GROUP: 1, "audit": 1}
    assert "claim_held" not in values(metrics)


def test_the_alerts_are_about_series_that_are_there_from_the_claim_on_or_the_first_success() -> None:
    rules = (files("offsetstore") / "assets" / "prometheus" / "offsetstore.rules.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `offsetstore_(\w+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"offsetstore_(\w+)", rules)) & listed
    found = values(after(EVENTS[0], MirrorTried(group=GROUP, offsets={})))
    assert len(named) > 3
    assert named <= {name.split()[0] for name in found}
    assert set(re.findall(r'outcome=~?"([^"]+)"', rules)) == {"done", "failed", "ended", "unknown"}
    counters = ["lost_commits_total unknown", *(f"mirror_commits_total {one}" for one in ("done", "failed", "ended"))]
    assert found.keys() >= set(counters)


@pytest.mark.behaviour("OPS-13")
def test_a_mirror_that_another_application_ends_is_counted_at_once_and_one_that_ends_as_it_should_is_not() -> None:
    metrics, broker = Metrics(), StaticBroker.with_topics({"payments": 1})
    store = InMemoryOffsetStore(observers=[metrics])
    with store.claim(GROUP, broker), store.claim(GROUP, broker, mirror_every=None) as alone:
        assert alone.mirror is None
    store.claim(GROUP, broker).close()
    found = values(metrics)
    assert (found["mirror_commits_total ended"], "claim_held" in found) == (0, False)

    broker.members.add(GROUP)
    with store.claim(GROUP, broker):
        wait_until(lambda: values(metrics)["mirror_commits_total ended"] == 1)
        assert values(metrics)["claim_held"] == 1


def test_the_page_lists_each_metric_with_its_labels() -> None:
    listed = dict(re.findall(r"^\| `offsetstore_(\w+)` \| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    made: dict[str, set[str]] = {}
    for family in after(*EVENTS).registry.collect():
        name = family.name.removeprefix("offsetstore_") + ("_total" if family.type == "counter" else "")
        made[name] = {label for sample in family.samples for label in sample.labels} - {"consumergroup", "le"}
    assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in listed.items()} == made
