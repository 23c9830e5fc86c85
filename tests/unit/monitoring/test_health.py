"""The judgement of a job, from facts alone."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from offsetstore.errors import ConfigurationError
from offsetstore.monitoring.health import Code, Facts, Limits, Verdict, judge
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.events import HeldRecord
from offsetstore.protocol.job_state import JobState

pytestmark = pytest.mark.behaviour("OPS-4")

NOW = 10_000.0
LIMITS = Limits()
WELL = JobState(
    group="billing",
    claimed=0.0,
    replays_letters=False,
    is_active=True,
    active_since=100.0,
    triggered=NOW - 2,
    java_answered=NOW - 2,
    database_answered=NOW - 2,
    kafka_answered=NOW - 2,
)


def of(*groups: JobState, limits: Limits = LIMITS, **process: Any) -> Verdict:
    known: dict[str, Any] = {"began": 0.0, "has_claimed": True, "groups": groups, **process}
    return judge(Facts(**known), limits, NOW)


def after(limits: Limits = LIMITS, **changes: Any) -> Verdict:
    return of(replace(WELL, **changes), limits=limits)


def test_a_job_that_makes_progress_is_live_and_ready() -> None:
    assert of(WELL) == Verdict()
    assert (of(WELL).is_live, of(WELL).is_ready) == (True, True)
    assert after(phase="batch", phase_since=NOW - 599).findings == ()


DEAD: list[tuple[dict[str, Any], Code, str]] = [
    ({"is_lost": True}, Code.CLAIM_LOST, "billing: another claim has taken over"),
    (
        {"is_active": False, "active_since": NOW - 31},
        Code.QUERY_ENDED,
        "billing: its query ended 31 s (limit 30 s) ago",
    ),
    (
        {"is_active": False, "active_since": NOW - 31, "phase": "failed", "error": "HandlerStuck"},
        Code.QUERY_ENDED,
        "billing: its query ended with HandlerStuck 31 s (limit 30 s) ago",
    ),
    (
        {"phase": "batch", "phase_since": NOW - 601},
        Code.BATCH_TOO_LONG,
        "billing: the batch has been in flight for 601 s (limit 600 s)",
    ),
    (
        {"idle_work": "replay", "idle_work_since": NOW - 601},
        Code.BATCH_TOO_LONG,
        "billing: dead letters have been replayed for 601 s (limit 600 s)",
    ),
    (
        {"idle_work": "replay", "idle_work_since": NOW - 900, "called": NOW - 601},
        Code.BATCH_TOO_LONG,
        "billing: dead letters have been replayed without another call of its handler for 601 s (limit 600 s)",
    ),
    (
        {"idle_work": "tick", "idle_work_since": NOW - 601},
        Code.BATCH_TOO_LONG,
        "billing: a tick has been running for 601 s (limit 600 s)",
    ),
    ({"triggered": NOW - 301}, Code.POLLING_STALLED, "billing: no trigger for 301 s (limit 300 s)"),
    ({"java_answered": NOW - 16}, Code.JVM_GONE, "billing: no answer from Java for 16 s (limit 15 s)"),
]


@pytest.mark.parametrize(("changes", "code", "text"), DEAD)
def test_what_a_restart_can_cure_fails_liveness(changes: dict[str, Any], code: Code, text: str) -> None:
    verdict = after(**changes)
    assert (verdict.codes, [one.text for one in verdict.findings]) == ((code,), [text])
    assert (verdict.is_live, verdict.is_ready) == (False, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_active": False, "active_since": NOW - 30},
        {"phase": "batch", "phase_since": NOW - 600},
        {"idle_work": "replay", "idle_work_since": NOW - 600},
        {"idle_work": "replay", "idle_work_since": NOW - 900, "called": NOW - 600},
        {"idle_work_since": NOW - 6_000},
        {"triggered": NOW - 300},
        {"triggered": NOW - 9_000, "interval": 3_600.0},
        {"triggered": None},
        {"java_answered": NOW - 15},
        {"java_answered": None},
        {"database_answered": NOW - 15},
        {"kafka_answered": NOW - 15, "is_kafka_failing": True},
        {"kafka_answered": NOW - 9_000},
        {"phase": "batch", "phase_since": NOW - 400, "triggered": NOW - 400},
    ],
    ids=str,
)
def test_within_its_limit_nothing_counts(changes: dict[str, Any]) -> None:
    assert after(**changes).findings == ()


def test_a_long_interval_stretches_the_limit_of_polling() -> None:
    assert after(triggered=NOW - 901, interval=300.0).codes == (Code.POLLING_STALLED,)
    assert after(triggered=NOW - 899, interval=300.0).codes == ()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"database_answered": NOW - 16}, Code.DATABASE_UNREACHABLE),
        ({"kafka_answered": NOW - 16, "is_kafka_failing": True}, Code.KAFKA_UNREACHABLE),
    ],
)
def test_an_outage_is_not_ready_and_nothing_that_it_may_cause_fails_liveness(
    changes: dict[str, Any], code: Code
) -> None:
    caused: list[dict[str, Any]] = [
        {},
        {"phase": "batch", "phase_since": NOW - 6_000},
        {"triggered": NOW - 6_000},
        {"is_active": False, "active_since": NOW - 6_000},
        {"is_active": None},
    ]
    for hindered in caused:
        verdict = after(**changes, **hindered)
        assert verdict.codes[0] is code
        assert (verdict.is_live, verdict.is_ready) == (True, False), hindered


@pytest.mark.parametrize("flag", ["is_database_failing", "is_kafka_failing"])
def test_an_outage_protects_from_its_first_failed_request_on(flag: str) -> None:
    away: dict[str, Any] = {flag: True}
    assert after(**away, phase="batch", phase_since=NOW - 6_000).findings == ()


def test_what_an_outage_does_not_cause_fails_liveness_during_one() -> None:
    out: dict[str, Any] = {"database_answered": NOW - 6_000}
    assert not after(**out, is_lost=True).is_live
    assert after(**out, java_answered=NOW - 16).codes == (Code.JVM_GONE, Code.DATABASE_UNREACHABLE)
    assert not after(**out, java_answered=NOW - 16).is_live


@pytest.mark.parametrize(
    ("changes", "limit", "code"),
    [
        ({"phase": "batch", "phase_since": NOW - 6_000}, 600, Code.BATCH_TOO_LONG),
        ({"triggered": NOW - 6_000}, 300, Code.POLLING_STALLED),
        ({"is_active": False, "active_since": NOW - 6_000}, 30, Code.QUERY_ENDED),
    ],
)
def test_after_an_outage_the_limits_begin_again(changes: dict[str, Any], limit: float, code: Code) -> None:
    assert after(**changes, outage_ended=NOW - limit).findings == ()
    assert after(**changes, outage_ended=NOW - limit - 1).codes == (code,)


def test_a_batch_whose_handler_is_called_again_and_again_is_live_however_long_it_takes() -> None:
    batch: dict[str, Any] = {"phase": "batch", "phase_since": NOW - 6_000}
    assert after(**batch, called=NOW - 600).findings == ()
    assert after(**batch, called=NOW - 601).codes == (Code.BATCH_TOO_LONG,)


def test_a_paused_job_is_ready_for_as_long_as_it_takes() -> None:
    verdict = after(phase="paused", phase_since=NOW - 9_000)
    assert (verdict.codes, verdict.is_live, verdict.is_ready) == ((Code.PAUSED,), True, True)


def test_a_start_is_live_for_its_limit_and_ready_when_the_query_runs() -> None:
    for early in (of(began=NOW - 600, has_claimed=False), after(is_active=None, claimed=NOW - 600)):
        assert (early.codes, early.is_live, early.is_ready) == ((Code.STARTING,), True, False)
    for late in (of(began=NOW - 601, has_claimed=False), after(is_active=None, claimed=NOW - 601)):
        assert (late.codes, late.is_live) == ((Code.STARTING,), False)


def test_a_claim_without_a_sink_has_started() -> None:
    assert after(replays_letters=None, is_active=None, triggered=None, java_answered=None).findings == ()


def test_a_process_that_has_closed_its_claims_may_have_other_work_and_is_not_ready() -> None:
    closed = of(has_claimed=True)
    assert (closed.codes, closed.is_live, closed.is_ready) == ((Code.QUERY_ENDED,), True, False)


@pytest.mark.behaviour("CONS-20")
def test_a_filter_that_holds_a_partition_for_far_too_long_is_told_with_record_and_date_and_restarts_nothing() -> None:
    held = {
        TopicPartition("payments", 3): HeldRecord("Delay", 17, 1_577_817_862_000.0),
        TopicPartition("payments", 4): HeldRecord("Delay", 9, 4_102_444_800.0),
    }
    found = after(held=held)
    assert (found.codes, found.is_live, found.is_ready) == ((Code.PARTITION_HELD,), True, True)
    assert [one.text for one in found.findings] == [
        "billing: payments-3 stands: the filter Delay holds it at record 17, until the year 51969",
        "billing: payments-4 stands: the filter Delay holds it at record 9, until 2100-01-01 00:00:00 UTC",
    ]


def test_a_query_that_has_ended_well_is_not_ready_and_kills_no_process() -> None:
    ended = after(is_active=False, has_ended_well=True)
    assert (ended.codes, ended.is_live, ended.is_ready) == ((Code.QUERY_ENDED,), True, False)
    assert "without an error" in ended.findings[0].text
    assert not after(is_active=False).is_live


def test_a_drain_of_dead_letters_needs_no_query() -> None:
    assert after(is_active=None, is_draining=True).findings == ()
    assert after(is_active=False, is_draining=True).findings == ()
    assert not after(is_active=None).is_live


def test_memory_counts_from_its_limit_on_if_it_has_one() -> None:
    limits = Limits(max_rss=1_000)
    assert of(WELL, limits=limits, rss=1_000).findings == ()
    verdict = of(WELL, limits=limits, rss=1_001)
    assert (verdict.codes, verdict.is_live) == ((Code.MEMORY,), False)
    assert verdict.findings[0].text == "1,001 bytes of memory (limit 1,000)"
    assert of(WELL, limits=limits, rss=None).findings == of(WELL, rss=10**12).findings == ()


def test_a_lost_claim_comes_first_and_says_all() -> None:
    worst = replace(
        WELL,
        is_lost=True,
        is_active=False,
        active_since=0,
        java_answered=0,
        database_answered=0,
        phase="batch",
        phase_since=0,
    )
    assert of(worst).codes == (Code.CLAIM_LOST,)
    assert of(worst, limits=Limits(max_rss=1), rss=2).codes == (Code.CLAIM_LOST, Code.MEMORY)


def test_codes_stand_in_the_order_of_the_table_whatever_group_they_are_of() -> None:
    other = replace(WELL, group="audit", java_answered=0, phase="batch", phase_since=NOW - 700)
    paused = replace(WELL, group="refunds", phase="paused", phase_since=NOW)
    lost = replace(WELL, is_lost=True)
    verdict = of(paused, other, lost)
    assert verdict.codes == (Code.CLAIM_LOST, Code.BATCH_TOO_LONG, Code.JVM_GONE, Code.PAUSED)
    assert not verdict.is_live


def test_while_java_is_silent_nothing_is_said_of_the_query() -> None:
    assert after(java_answered=NOW - 400, triggered=NOW - 400).codes == (Code.JVM_GONE,)
    assert after(java_answered=NOW - 400, is_active=False, active_since=0).codes == (Code.JVM_GONE,)


def test_a_limit_is_above_0() -> None:
    for name in (field.name for field in fields(Limits)):
        bound = "1 or more bytes" if name == "max_rss" else "above 0 seconds"
        for value in (0, -1, float("nan"), float("inf"), True, "1"):
            wrong: dict[str, Any] = {name: value}
            with pytest.raises(ConfigurationError, match=f"Limits.{name} must be {bound}"):
                Limits(**wrong)
