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


BUSY: dict[str, Any] = {"phase": "batch", "phase_since": NOW - 6_000}
REPLAYS: dict[str, Any] = {"idle_work": "replay", "idle_work_since": NOW - 900}
ENDED: dict[str, Any] = {"is_active": False, "active_since": NOW - 31}
DEAD: list[tuple[dict[str, Any], Code, str]] = [
    ({"is_lost": True}, Code.CLAIM_LOST, "another claim has taken over"),
    (ENDED, Code.QUERY_ENDED, "its query ended 31 s (limit 30 s) ago"),
    (
        {**ENDED, "phase": "failed", "error": "Stuck"},
        Code.QUERY_ENDED,
        "its query ended with Stuck 31 s (limit 30 s) ago",
    ),
    (
        {"phase": "batch", "phase_since": NOW - 601},
        Code.BATCH_TOO_LONG,
        "the batch has been in flight for 601 s (limit 600 s)",
    ),
    (
        {**BUSY, "called": NOW - 601},
        Code.BATCH_TOO_LONG,
        "the batch has been in flight without another call of its handler for 601 s (limit 600 s)",
    ),
    (REPLAYS, Code.BATCH_TOO_LONG, "dead letters have been replayed for 900 s (limit 600 s)"),
    (
        {**REPLAYS, "called": NOW - 601},
        Code.BATCH_TOO_LONG,
        "dead letters have been replayed without another call of its handler for 601 s (limit 600 s)",
    ),
    ({**REPLAYS, "idle_work": "tick"}, Code.BATCH_TOO_LONG, "a tick has been running for 900 s (limit 600 s)"),
    ({"triggered": NOW - 301}, Code.POLLING_STALLED, "no trigger for 301 s (limit 300 s)"),
    ({"triggered": NOW - 901, "interval": 300.0}, Code.POLLING_STALLED, "no trigger for 901 s (limit 900 s)"),
    ({"java_answered": NOW - 16}, Code.JVM_GONE, "no answer from Java for 16 s (limit 15 s)"),
]


@pytest.mark.parametrize(("changes", "code", "text"), DEAD)
def test_what_a_restart_can_cure_fails_liveness(changes: dict[str, Any], code: Code, text: str) -> None:
    verdict = after(**changes)
    assert (verdict.codes, [one.text for one in verdict.findings]) == ((code,), [f"billing: {text}"])
    assert (verdict.is_live, verdict.is_ready) == (False, False)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_active": False, "active_since": NOW - 30},
        {"phase": "batch", "phase_since": NOW - 600},
        {**BUSY, "called": NOW - 600},  # its handler is called again and again, however long that takes
        {"idle_work": "replay", "idle_work_since": NOW - 600},
        {**REPLAYS, "called": NOW - 600},
        {"idle_work_since": NOW - 6_000},
        {"triggered": NOW - 300},
        {"triggered": NOW - 899, "interval": 300.0},
        {"triggered": None},
        {"java_answered": NOW - 15},
        {"java_answered": None},
        {"database_answered": NOW - 15},
        {"kafka_answered": NOW - 15, "is_kafka_failing": True},
        {"kafka_answered": NOW - 9_000},
        {"phase": "batch", "phase_since": NOW - 400, "triggered": NOW - 400},
        {"is_database_failing": True, **BUSY},  # an outage protects from its first failed request on
        {"is_kafka_failing": True, **BUSY},
        {"replays_letters": None, "is_active": None, "triggered": None, "java_answered": None},  # without a sink
        {"is_active": None, "is_draining": True},  # a drain of dead letters needs no query
        {"is_active": False, "is_draining": True},
    ],
    ids=str,
)
def test_within_its_limit_nothing_counts(changes: dict[str, Any]) -> None:
    verdict = after(**changes)
    assert (verdict, verdict.is_live, verdict.is_ready) == (Verdict(), True, True)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"database_answered": NOW - 16}, Code.DATABASE_UNREACHABLE),
        ({"kafka_answered": NOW - 16, "is_kafka_failing": True}, Code.KAFKA_UNREACHABLE),
    ],
)
@pytest.mark.parametrize(
    "hindered", [{}, BUSY, {"triggered": NOW - 6_000}, {**ENDED, "active_since": NOW - 6_000}, {"is_active": None}]
)
def test_an_outage_is_not_ready_and_nothing_that_it_may_cause_fails_liveness(
    changes: dict[str, Any], code: Code, hindered: dict[str, Any]
) -> None:
    verdict = after(**changes, **hindered)
    assert verdict.codes[0] is code
    assert (verdict.is_live, verdict.is_ready) == (True, False)


def test_what_an_outage_does_not_cause_fails_liveness_during_one() -> None:
    out: dict[str, Any] = {"database_answered": NOW - 6_000}
    assert not after(**out, is_lost=True).is_live
    assert after(**out, java_answered=NOW - 16).codes == (Code.JVM_GONE, Code.DATABASE_UNREACHABLE)
    assert not after(**out, java_answered=NOW - 16).is_live


@pytest.mark.parametrize(
    ("changes", "limit", "code"),
    [
        (BUSY, 600, Code.BATCH_TOO_LONG),
        ({"triggered": NOW - 6_000}, 300, Code.POLLING_STALLED),
        ({"is_active": False, "active_since": NOW - 6_000}, 30, Code.QUERY_ENDED),
    ],
)
def test_after_an_outage_the_limits_begin_again(changes: dict[str, Any], limit: float, code: Code) -> None:
    assert after(**changes, outage_ended=NOW - limit).findings == ()
    assert after(**changes, outage_ended=NOW - limit - 1).codes == (code,)


def test_a_paused_job_is_ready_for_as_long_as_it_takes() -> None:
    verdict = after(phase="paused", phase_since=NOW - 9_000)
    assert (verdict.codes, verdict.is_live, verdict.is_ready) == ((Code.PAUSED,), True, True)


def test_a_start_is_live_for_its_limit_and_ready_when_the_query_runs() -> None:
    for early in (of(began=NOW - 600, has_claimed=False), after(is_active=None, claimed=NOW - 600)):
        assert (early.codes, early.is_live, early.is_ready) == ((Code.STARTING,), True, False)
    for late in (of(began=NOW - 601, has_claimed=False), after(is_active=None, claimed=NOW - 601)):
        assert (late.codes, late.is_live) == ((Code.STARTING,), False)


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
    assert not after(is_active=None).is_live


def test_memory_counts_from_its_limit_on_if_it_has_one() -> None:
    limits = Limits(max_rss=1_000)
    assert of(WELL, limits=limits, rss=1_000).findings == ()
    verdict = of(WELL, limits=limits, rss=1_001)
    assert (verdict.codes, verdict.is_live) == ((Code.MEMORY,), False)
    assert verdict.findings[0].text == "1,001 bytes of memory (limit 1,000)"
    assert of(WELL, limits=limits, rss=None).findings == of(WELL, rss=10**12).findings == ()


def test_a_lost_claim_says_all_and_while_java_is_silent_nothing_is_said_of_the_query() -> None:
    gone: dict[str, Any] = {"is_active": False, "active_since": 0, "java_answered": 0}
    worst = replace(WELL, is_lost=True, database_answered=0, phase="batch", phase_since=0, **gone)
    assert of(worst).codes == (Code.CLAIM_LOST,)
    assert of(worst, limits=Limits(max_rss=1), rss=2).codes == (Code.CLAIM_LOST, Code.MEMORY)
    assert after(**gone).codes == after(java_answered=NOW - 400, triggered=NOW - 400).codes == (Code.JVM_GONE,)


def test_codes_stand_in_the_order_of_the_table_whatever_group_they_are_of() -> None:
    other = replace(WELL, group="audit", java_answered=0, phase="batch", phase_since=NOW - 700)
    paused = replace(WELL, group="refunds", phase="paused", phase_since=NOW)
    verdict = of(paused, other, replace(WELL, is_lost=True))
    assert verdict.codes == (Code.CLAIM_LOST, Code.BATCH_TOO_LONG, Code.JVM_GONE, Code.PAUSED)
    assert not verdict.is_live


def test_a_limit_is_above_0() -> None:
    for name in (field.name for field in fields(Limits)):
        bound = "1 or more bytes" if name == "max_rss" else "above 0 seconds"
        for value in (0, -1, float("nan"), float("inf"), True, "1"):
            wrong: dict[str, Any] = {name: value}
            with pytest.raises(ConfigurationError, match=f"Limits.{name} must be {bound}"):
                Limits(**wrong)
