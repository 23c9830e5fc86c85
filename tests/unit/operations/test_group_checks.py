"""What is to be looked at when a group is not well: each check, on its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from offsetstore.errors import BrokerUnavailable, OffsetStoreError, TopicMissing, TopicRecreated, WrongCluster
from offsetstore.offsets import CommittedOffset, Pause, StoredOffset, Suspect, Token, TopicPartition
from offsetstore.operations.group_checks import Check, CheckName, check_group
from offsetstore.operations.group_state import GroupState, PartitionState, TopicState
from offsetstore.operations.group_status import GroupStatus, judge_group, standing, state_of
from offsetstore.operations.people import LastRun, Requested
from offsetstore.protocol.database import GroupRow, HistoryEvent
from offsetstore.protocol.outbox import OutboxState, RelayState, RelayStatus, relay_state
from offsetstore.protocol.ports import GroupSnapshot, LogEnds
from offsetstore.protocol.runs import Ending, FleetMember, Run, RunState, RunStatus, telling_run

pytestmark = pytest.mark.behaviour("DASH-1")

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
TOKEN = Token(3, UUID(int=3))
P0 = TopicPartition("payments", 0)
SECOND = timedelta(seconds=1)
MEMBER = FleetMember(UUID(int=9), "ana@host:8", NOW - timedelta(hours=1), 2 * SECOND)
UNKNOWN = (
    "perhaps by no one: no sink or consumer with dead_letters= is known to run, and a job that stores offsets in "
    "transactions of its own replays none"
)
OWNER = GroupRow(TOKEN, "ana@host:7", NOW - timedelta(hours=2), 3 * SECOND)


def part(stored: int | None, beginning: int = 0, end: int = 100, **row: Any) -> PartitionState:
    at = None if stored is None else StoredOffset(stored, TOKEN, **row)
    return PartitionState(at, LogEnds(beginning, end, end), lag_seconds=60.0)


def state(
    *parts: PartitionState, error: OffsetStoreError | None = None, copies: int | None = None, **more: Any
) -> GroupState:
    """Partitions of payments in the group billing.

    :param copies: what Kafka has of the first one.
    """
    partitions = {TopicPartition("payments", number): one for number, one in enumerate(parts or (part(100),))}
    if copies is not None:
        partitions[P0] = replace(partitions[P0], committed=CommittedOffset(copies))
    rows = {tp: one.stored for tp, one in partitions.items() if one.stored is not None}
    facts: dict[str, Any] = {"owner": OWNER, "read_at": NOW, "stored": rows, "kafka": GroupSnapshot({}), **more}
    return GroupState("billing", topics={"payments": TopicState(partitions, error)}, **facts)


def requested(
    letters: Mapping[TopicPartition, int] | int,
    run: LastRun | None = None,
    *,
    owner: GroupRow = OWNER,
    token: Token = TOKEN,
    since: datetime = NOW,
    dead: int = 0,
) -> GroupState:
    """A group with `P0` stored, and so many requested letters of partitions, or of that one."""
    counts = {P0: letters} if isinstance(letters, int) else letters
    return state(
        replace(part(100), stored=StoredOffset(100, token)),
        owner=owner,
        run=run,
        dead_letters={"dead": dead, "requested": sum(counts.values())},
        requested={tp: Requested(count, since) for tp, count in counts.items()},
        members=[MEMBER],
    )


def run_of(ending: Ending | None = None, token: Token = TOKEN, **status: Any) -> Run:
    """A run that was last seen three seconds ago, or ended then."""
    seen = NOW - 3 * SECOND
    return Run(
        group="billing",
        token=token,
        owner="ana@host:7",
        topics=("payments",),
        versions={},
        started_at=OWNER.claimed_at,
        seen_at=seen,
        ended_at=None if ending is None else seen,
        ending=ending,
        next_at=None,
        read_at=NOW,
        status=RunStatus(**status),
    )


def check(
    name: CheckName, group: GroupState | None = None, run: Run | None = None, paused_by: HistoryEvent | None = None
) -> Check:
    [found] = [one for one in check_group(group or state(), run, paused_by) if one.name == name]
    return found


def test_a_group_that_is_well_has_nothing_to_do() -> None:
    found = check_group(state(), run_of(phase="idle", batch=7))
    assert {one.verdict for one in found} == {"ok"}
    assert [one.next_step for one in found] == [""] * 12


class Case(NamedTuple):
    """What a check says of a group; each of these texts is a part of it."""

    name: CheckName
    verdict: str
    words: str = ""
    command: str = ""
    group: GroupState | None = None
    run: Run | None = None
    at: datetime | None = None


LEFT = replace(OWNER, alive_for=None)
PAUSED = replace(OWNER, pause=Pause(NOW - timedelta(hours=1), None, "a load"))
FAILED = replace(OWNER, ending="failed")
SEEN = NOW - 3 * SECOND
LATE, SOON = run_of(phase="starting", phase_age=601.0), run_of(phase="starting", phase_age=599.0)
LONG = run_of(phase="batch", phase_age=601.0, batch=12)
SHORT = run_of(phase="batch", phase_age=599.0, batch=12, batch_offsets=500)
MIRROR_FAILS: dict[str, Any] = {"mirror_error": "not authorized"}
RESOLVE = "resolve -g billing -t payments -b HOST:PORT"
STILL_ON = part(40, updated_at=NOW - SECOND, transaction_id=UUID(int=1))


@pytest.mark.behaviour("OPS-22", "CONS-21")
@pytest.mark.parametrize(
    "case",
    [
        Case("claim", "ok", "ana@host:7, epoch 3", at=SEEN),
        Case("claim", "bad", "was killed, hangs, or can't reach the database", "runs -g billing -n 5",
             state(owner=replace(OWNER, alive_for=60 * SECOND)), run_of(phase="batch"), NOW - 60 * SECOND),
        *(
            Case("claim", "bad", "No job owns the group. The last run, of ana@host:7, epoch 3, failed:",
                 "errors -g billing -n 5", state(owner=replace(FAILED, alive_for=silent)), run_of("failed"), SEEN)
            for silent in (3 * SECOND, 60 * SECOND, None)
        ),
        Case("claim", "bad", "the last start was refused", "errors -g billing --source start -n 5",
             state(owner=replace(LEFT, is_refused=True)), run_of("closed"), OWNER.claimed_at),
        Case("claim", "attention", "ended cleanly", "runs ", state(owner=LEFT), run_of("closed"), SEEN),
        Case("claim", "attention", "was fenced", "runs ", state(owner=LEFT), run_of("fenced"), SEEN),
        *(
            Case("claim", "attention", "", "history -g billing -n 5", state(owner=LEFT), run, OWNER.claimed_at)
            for run in (None, run_of("closed", Token(2, UUID(int=2))))
        ),
        Case("batch", "ok", "Batch 12 with 500 offsets is in flight since:", "", None, SHORT, NOW - 599 * SECOND),
        Case("batch", "bad", run=LONG),
        Case("batch", "ok", group=state(owner=PAUSED), run=LONG),
        Case("batch", "bad", "Batch 12 has failed and ended the query:", "errors -g billing -n 5",
             run=run_of("failed", phase="failed", batch=12)),
        Case("batch", "bad", "The job has failed:", "errors", run=run_of("failed", phase="failed")),
        Case("batch", "attention", group=state(part(40)), run=LATE),
        Case("batch", "ok", group=state(part(100)), run=LATE),
        Case("batch", "ok", group=state(part(40)), run=SOON),
        Case("copies in Kafka", "attention", "not authorized", "errors -g billing --source mirror -n 5",
             run=run_of(phase="idle", **MIRROR_FAILS)),
        Case("copies in Kafka", "ok", run=run_of("closed", **MIRROR_FAILS)),
        Case("copies in Kafka", "ok", "has the stored offsets", group=state(copies=100)),
        Case("copies in Kafka", "ok", "40 offsets behind", group=state(copies=60)),
        Case("copies in Kafka", "ok", group=state(copies=100, owner=LEFT)),
        Case("copies in Kafka", "attention", group=state(copies=60, owner=LEFT)),
        Case("copies in Kafka", "bad", "60 offsets ahead of the store: the database is older", RESOLVE,
             state(part(40), copies=100, owner=LEFT)),
        Case("copies in Kafka", "ok", group=state(part(40), copies=100)),
        Case("copies in Kafka", "ok", "60 offsets ahead of offsets that a decision has set, which take precedence",
             group=state(part(40, pinned=True), copies=100, owner=LEFT)),
        Case("unread partitions", "attention", "2 partitions have no stored offset", RESOLVE,
             state(part(100), part(None), part(None))),
        Case("headroom", "ok", "5 offsets from payments-1",
             group=state(part(40, beginning=10), part(50, beginning=45))),
        Case("headroom", "ok", "Nothing unread is at risk from retention.", group=state(part(100, beginning=100))),
        Case("headroom", "attention", group=state(part(45, beginning=45))),
        Case("headroom", "ok", group=state(part(0, beginning=0))),
        Case("headroom", "bad", "Kafka has removed 15 offsets unread: payments-0, payments-1.", RESOLVE,
             state(part(40, beginning=45), part(40, beginning=50), part(40))),
        Case("topics", "bad", "created anew.", "on_recreated", state(error=TopicRecreated("created anew"))),
        Case("topics", "attention", group=state(error=TopicMissing("Kafka has no topic payments"))),
        Case("pause", "bad", "But the job goes on", group=state(STILL_ON, owner=PAUSED)),
        Case("pause", "attention", group=state(part(40, updated_at=NOW - timedelta(minutes=59)), owner=PAUSED)),
        Case("pinned offsets", "attention", "payments-0", group=state(part(40, contested=True, pinned=True))),
        Case("pinned offsets", "ok", "payments-0, payments-1, payments-2 and 2 more",
             group=state(*(part(40, pinned=True) for _ in range(5)))),
    ],
    ids=lambda case: f"{case.name} {case.verdict} {case.words[:20]}",
)  # fmt: skip
def test_a_check_says_how_bad_it_is_why_and_what_to_do(case: Case) -> None:
    found = check(case.name, case.group, case.run)
    assert (found.verdict, case.words in found.text, case.command in found.next_step) == (case.verdict, True, True)
    assert case.at in {None, found.at}


MINUTE = 60 * SECOND
OLD: dict[str, Any] = {"updated_at": NOW - 40 * MINUTE, "transaction_id": UUID(int=1)}
YOUNG: dict[str, Any] = {**OLD, "updated_at": NOW - MINUTE}


def stands(seconds: float | None = 3000.0, **changes: Any) -> PartitionState:
    """A partition whose offset stands at 40 of 100."""
    return replace(part(40, **OLD), lag_seconds=seconds, **changes)


@pytest.mark.behaviour("CONS-20")
@pytest.mark.parametrize(
    ("stuck", "why"),
    [
        (
            stands(),
            "record is 50m old. What to do: 'PartitionStands' on the page 'Runbook' of the documentation.",
        ),
        (stands(None, is_asked=True), "Its first unread record has no timestamp."),
        (stands(0.0, is_ahead=True), "Its first unread record has a timestamp ahead of the clock"),
        (
            stands(log=LogEnds(0, 100, 40)),
            "open transaction. What to do: 'HangingTransaction' on the page 'Runbook' of the documentation.",
        ),
    ],
)
def test_a_partition_that_stands_while_others_advance_is_bad(stuck: PartitionState, why: str) -> None:
    group = state(part(100, **YOUNG), stuck)
    found = check("standing partitions", group)
    assert (found.verdict, found.at) == ("bad", NOW - 40 * MINUTE)
    assert found.text.startswith("payments-1 has stood at offset 40 while others advanced. ")
    assert why in found.text
    assert found.next_step == "offsetstore errors -g billing -n 5"
    assert GroupStatus.of(group).error == "1 partition stands while others advance"
    assert judge_group(group) == ("partition-stands",)

    longest = replace(part(40, updated_at=NOW - 90 * MINUTE), lag_seconds=3000.0)
    found = check("standing partitions", state(part(100, **YOUNG), stuck, longest))
    assert found.text.startswith("payments-2 has stood")
    assert "while others advanced, and so has 1 more. " in found.text


@pytest.mark.behaviour("CONS-20")
@pytest.mark.parametrize(
    ("parts", "owner"),
    [
        ([part(100, **YOUNG), part(100, **OLD)], OWNER),  # it has no new records
        ([part(100, **YOUNG), stands(60.0)], OWNER),  # a rare partition: its record has just come
        ([part(100, **YOUNG), stands(is_bound=True)], OWNER),  # and may be younger
        ([part(40, **YOUNG), part(40, **YOUNG)], OWNER),  # old records, of which some were read just now
        ([part(100, **YOUNG), stands()], replace(OWNER, claimed_at=NOW - MINUTE)),  # a backlog that was just claimed
        ([part(100, **YOUNG), part(40, updated_at=NOW - MINUTE)], OWNER),  # or assigned
        ([part(100, **YOUNG), stands()], replace(OWNER, pause=Pause(NOW, None, "a load"))),
        ([part(100, **YOUNG), stands()], replace(OWNER, alive_for=None)),  # "claim" says so
        ([part(100, **OLD), stands()], OWNER),  # no other one advances: that is `stalled`
        ([part(100, **YOUNG), stands(None)], OWNER),  # Kafka did not tell how old its record is
        ([part(100, **YOUNG), part(None)], OWNER),
        ([part(100, **YOUNG), replace(stands(), log=None)], OWNER),
    ],
)
def test_what_only_looks_like_a_partition_that_stands_is_none(parts: list[PartitionState], owner: GroupRow) -> None:
    group = state(*parts, owner=owner)
    assert (check("standing partitions", group).verdict, standing(group)) == ("ok", {})


@pytest.mark.behaviour("CONS-20")
def test_without_the_records_ages_it_is_not_known_whether_a_partition_stands() -> None:
    group = state(part(100, **YOUNG), stands(None), broker_error=BrokerUnavailable("no answer"))
    assert check("standing partitions", group).verdict == "attention"


def test_a_pause_says_why_until_when_and_by_whom() -> None:
    pause = Pause(NOW - 60 * SECOND, NOW + timedelta(hours=1), "a load")
    event = HistoryEvent("pause", None, None, None, TOKEN, "ana", "a load", pause.at)
    found = check("pause", state(owner=replace(OWNER, pause=pause)), paused_by=event)
    assert (found.verdict, found.at) == ("attention", pause.at)
    assert found.text == "Paused by ana until 2025-03-01 13:00 UTC: a load. Since:"
    assert found.next_step.startswith("offsetstore resume -g billing")
    earlier = replace(event, at=NOW - timedelta(days=1))
    endless = replace(pause, until=None)
    found = check("pause", state(owner=replace(OWNER, pause=endless)), paused_by=earlier)
    assert found.text == "Paused without an end: a load. Since:"


WITHOUT, WITH, SILENT_RUN = (LastRun(None, None, {}, None, ("payments",), said) for said in (False, True, None))
FLEET = replace(OWNER, fleet="a fleet")
OF_MEMBER = replace(TOKEN, claim_id=MEMBER.member_id)
LATE_REPLAY = NOW - timedelta(minutes=11)
ELSEWHERE = {TopicPartition("refunds", 0): 2, P0: 4, TopicPartition("payments", 7): 1}
NOT_READ = (
    "but for 2 letters of refunds-0, which it does not read and 1 letter of payments-7, which have no stored offset"
)
NOT_DONE = "which has not done so since 2025-03-01 11:49 UTC: its log says why"


@pytest.mark.behaviour("DLQ-19", "OPS-24")
@pytest.mark.parametrize(
    ("group", "count", "whom"),
    [
        (requested(1, dead=2), 1, UNKNOWN),
        (requested(3, WITHOUT, dead=2), 3, "by no one: the job has no dead_letters="),
        (requested(3, WITHOUT), 3, "by no one: the job has no dead_letters="),
        (requested(3), 3, UNKNOWN),  # a fleet, or a job, of an earlier release
        (requested(3, owner=LEFT), 3, "by a job that has dead_letters="),
        (requested(3, SILENT_RUN), 3, UNKNOWN),  # transactions of its own, or no sink yet
        (requested(ELSEWHERE, WITH), 7, f"by the job, {NOT_READ}"),
        (requested(4, WITH, since=LATE_REPLAY), 4, f"by the job, {NOT_DONE}"),
        (requested(4, WITH, owner=FLEET), 4, "by the job, but for 4 letters of payments-0, which no process has"),
    ],
)
def test_dead_letters_that_wait_for_a_decision_or_for_a_job_that_replays_them_need_attention(
    group: GroupState, count: int, whom: str
) -> None:
    found = check("dead letters", group)
    has_dead = bool(group.dead_letters["dead"])
    waits = "2 dead letters wait for a decision, " if has_dead else ""
    assert (found.verdict, found.text) == ("attention", f"{waits}{count} to be replayed {whom}.")
    shown = "--by error" if has_dead else "--state requested"
    assert found.next_step == f"offsetstore dead-letters list -g billing {shown}"


@pytest.mark.behaviour("OPS-24")
@pytest.mark.parametrize(
    "group",
    [
        state(run=WITHOUT),
        requested(1, WITH),
        requested(4, WITH, since=NOW - timedelta(minutes=9)),
        requested(4, WITH, since=LATE_REPLAY, owner=PAUSED),
        requested(4, WITH, owner=FLEET, token=OF_MEMBER),
    ],
)
def test_letters_that_are_soon_replayed_are_well(group: GroupState) -> None:
    found = check("dead letters", group)
    assert (found.verdict, found.next_step, group.unreplayed) == ("ok", "", None)
    if group.dead_letters.get("requested") == 1:
        assert found.text == "1 to be replayed by a job that has dead_letters=."


WAITS = OutboxState(1, NOW, row=17, topic="events")
REFUSED = "Kafka refuses 1 row, set aside until a person decides."
STALLED = (
    "2 rows wait to be sent to Kafka. The relay relay@host:9 runs. "
    "See 'OutboxStalled' on the page 'Runbook' of the documentation."
)
ROW = "The first is row 17, for topic events. The oldest was written:"
OUTBOX = "offsetstore outbox list -g billing"


@pytest.mark.behaviour("OUT-6", "OUT-7", "OUT-10")
@pytest.mark.parametrize(
    ("outbox", "verdict", "words", "command"),
    [
        (None, "ok", "The group has no rows in the outbox.", ""),
        (replace(WAITS, oldest=NOW - 299 * SECOND), "ok", f"1 row waits to be sent to Kafka. {ROW}", ""),
        (replace(WAITS, rows=2, oldest=NOW - 301 * SECOND, refused=1), "bad", f"{REFUSED} {STALLED} {ROW}", OUTBOX),
        (OutboxState(0, None, 3), "attention", "Kafka refuses 3 rows, set aside until a person decides.", OUTBOX),
    ],
)
def test_what_waits_in_the_outbox_is_bad_when_it_is_late_and_what_is_set_aside_needs_attention(
    outbox: OutboxState | None, verdict: str, words: str, command: str
) -> None:
    found = check("outbox", state(outbox=outbox, relay=RelayStatus("live", "relay@host:9", NOW)))
    assert (found.verdict, found.text, found.next_step) == (verdict, words, command)
    assert found.at == (outbox.oldest if outbox else None)


RELAY = RelayStatus("ended", "r@host:9", NOW, NOW)


@pytest.mark.behaviour("OUT-13")
@pytest.mark.parametrize(
    ("relay", "words"),
    [
        (None, "No relay was ever started: `offsetstore relay` sends the rows."),
        (replace(RELAY, state="stalled", error="no answer"), "runs, and sends nothing. Its last error: no answer"),
        (replace(RELAY, state="silent"), "r@host:9 fell silent at 2025-03-01 12:00 UTC: it was killed"),
        (RELAY, "ended cleanly at 2025-03-01 12:00 UTC: start it again."),
        (replace(RELAY, state="failed", error="uncertain"), "Its last error: uncertain"),
        (replace(RELAY, state="fenced"), "was fenced by another one"),
    ],
    ids=lambda given: given.state if isinstance(given, RelayStatus) else "",
)
def test_rows_that_no_relay_sends_tell_how_the_relay_is(relay: RelayStatus | None, words: str) -> None:
    for seconds, verdict in ((1, "attention"), (301, "bad")):
        group = state(outbox=OutboxState(1, NOW - seconds * SECOND), relay=relay)
        found = check("outbox", group)
        assert (found.verdict, words in found.text) == (verdict, True)
        is_late = verdict == "bad"
        told = GroupStatus.of(group).error
        assert (told or "").startswith("1 row of the outbox not sent: ") is is_late
        assert ("no-live-relay" in judge_group(group)) is is_late
    assert check("outbox", state(relay=relay)).verdict == "ok"


@pytest.mark.behaviour("OUT-13")
def test_a_relay_is_stalled_once_a_row_has_waited_and_it_has_sent_none_for_five_minutes() -> None:
    def state(run: RunState, waited: float | None, idle: float) -> RelayState:
        found = None if waited is None else waited * SECOND
        return relay_state(run, waited=found, idle=idle * SECOND)

    assert state("live", 301, 301) == "stalled"
    assert state("live", 3600, 299) == "live", "it falls behind, or has begun"
    assert state("live", 299, 3600) == "live", "nothing waited"
    assert state("live", None, 3600) == "live"
    assert state("silent", 301, 301) == "silent"


@pytest.mark.behaviour("CONS-21")
def test_a_job_that_fails_at_each_start_is_told_although_the_next_one_is_live() -> None:
    for failures, verdict in ((2, "ok"), (3, "bad")):
        group = state(owner=replace(OWNER, failures=failures))
        found = check("claim", group, run_of(phase="starting"))
        assert (found.verdict, found.at) == (verdict, NOW - 3 * SECOND)
        assert ("starts-fail" in judge_group(group)) is (verdict == "bad")
    assert found.text.startswith("3 runs failed or fell silent in 15 minutes, and the job is started again")
    assert found.next_step == "offsetstore errors -g billing -n 5"


@pytest.mark.behaviour("CONS-21")
def test_of_a_fleet_the_member_is_told_that_ended_last_or_is_busy_for_longest() -> None:
    def member(number: int, ending: Ending | None = None, *, seen: float = 3, **status: Any) -> Run:
        run = run_of(ending, Token(3, UUID(int=number)), **status)
        return replace(run, is_member=True, seen_at=NOW - seen * SECOND, owner=f"m{number}@host")

    ended = [member(7, "failed"), member(8, "closed", seen=9)]
    assert telling_run(ended) == ended[0]
    found = check("claim", state(owner=replace(OWNER, alive_for=None, ending="failed", fleet="f")), ended[0])
    assert (found.verdict, found.text) == ("bad", "No job owns the group. The last run, of m7@host, epoch 3, failed:")
    live = [member(5, phase="batch", phase_age=9), member(6, phase="batch", phase_age=700), member(9, phase_age=900)]
    assert telling_run([*ended, *live]) == live[1]
    assert check("batch", None, live[1]).verdict == "bad"
    assert telling_run([]) is None
    assert telling_run([*ended, run_of()]) == run_of(), "a job has taken over"


@pytest.mark.behaviour("OPS-16")
def test_a_log_that_lost_records_is_bad_while_it_is_too_short_and_when_it_has_grown() -> None:
    short = check("logs", state(part(103, end=100)))
    assert (short.verdict, short.next_step) == ("bad", "offsetstore resolve -g billing -t payments -b HOST:PORT")
    assert "payments-0 are 3 offsets beyond the log's end" in short.text
    grown = check("logs", state(part(103, end=200, suspect=Suspect("the log ended at 100, below 103", NOW))))
    assert (grown.verdict, grown.at) == ("bad", NOW)
    assert "payments-0 lost records that had been read: the log ended at 100, below 103." in grown.text
    assert grown.next_step == "offsetstore history -g billing --event suspect -n 5"


def test_without_kafka_what_is_not_known_is_not_called_well() -> None:
    group = state(kafka=None, broker_error=BrokerUnavailable("Kafka does not answer"))
    unknown = [one.name for one in check_group(group, None) if one.verdict == "attention"]
    assert unknown == ["standing partitions", "copies in Kafka", "unread partitions", "headroom", "topics", "logs"]


@pytest.mark.parametrize("error", [TopicRecreated("created anew"), WrongCluster("another cluster")])
def test_of_a_log_that_is_not_known_nothing_is_called_well(error: OffsetStoreError) -> None:
    lost = replace(part(40), log=None)
    checks = check_group(state(part(100), lost, error=error, copies=100), None)
    found = {one.name: (one.verdict, one.text) for one in checks if one.verdict != "ok"}
    unknown = "Not known of payments-1: Kafka shows no log that the stored offset belongs to."
    assert found == {
        "copies in Kafka": ("attention", unknown),
        "unread partitions": ("attention", "Not known of payments: see topics."),
        "headroom": ("attention", unknown),
        "topics": ("bad", f"{error.what}."),
        "logs": ("attention", unknown),
    }
    for known in (part(40), part(40, beginning=10)):
        assert check("headroom", state(known, lost)).text == unknown
    assert check("copies in Kafka", state(part(100), lost)).text == unknown
    assert check("unread partitions", state(part(100), lost)).text == unknown


def test_commands_can_be_copied_whatever_the_names_are() -> None:
    group = replace(state(part(None)), group="my group; rm")
    found = {one.name: one.next_step for one in check_group(group, None)}
    assert found["unread partitions"] == "offsetstore resolve -g 'my group; rm' -t payments -b HOST:PORT"
    found = {one.name: one.next_step for one in check_group(group, None, schema="our jobs")}
    assert found["unread partitions"].startswith(
        "offsetstore resolve -g 'my group; rm' --schema 'our jobs' -t payments"
    )


def unread(age: float = 60.0, advanced: float = 1, **changes: Any) -> PartitionState:
    """Six records, the first of them so many seconds old; the offset has advanced so many minutes ago."""
    return replace(part(94, updated_at=NOW - advanced * MINUTE), **{"lag_seconds": age, **changes})


IDLE = part(100, updated_at=NOW - 60 * MINUTE)
SILENT = replace(OWNER, alive_for=MINUTE)
STATES: dict[str, tuple[list[PartitionState], GroupRow, str]] = {
    "it reads": ([unread()], OWNER, "live"),
    "idle": ([IDLE], OWNER, "live"),
    "a backlog that shrinks": ([unread(3600)], OWNER, "live"),
    "a record after an idle time": ([unread(60, 60)], OWNER, "live"),
    "no progress, and old records": ([unread(901, 16)], OWNER, "stalled"),
    "no progress, and records that may be younger": ([unread(901, 16, is_bound=True)], OWNER, "live"),
    "no progress, and Kafka is silent": ([unread(60, 16, log=None)], OWNER, "live"),
    "vanished, with records unread": ([unread()], SILENT, "stalled"),
    "vanished, and Kafka is silent": ([unread(log=None)], SILENT, "stalled"),
    "vanished, with nothing to read": ([IDLE], SILENT, "silent"),
    "left": ([unread()], LEFT, "ended"),
    "left long ago, with old records": ([unread(901, 16)], LEFT, "stalled"),
    "failed a moment ago": ([unread()], FAILED, "failed"),
    "failed, and the claim was never closed": ([unread()], replace(SILENT, ending="failed"), "failed"),
    "failed long ago": ([unread(901, 16)], replace(LEFT, ending="failed"), "failed"),
    "its query has ended cleanly": ([unread()], replace(SILENT, ending="closed"), "ended"),
    "another partition may be younger": ([unread(901, 16), unread(9000, 16, is_bound=True)], OWNER, "stalled"),
    "another partition has no leader": ([unread(901, 16), unread(9000, 16, log=None)], OWNER, "stalled"),
}


@pytest.mark.parametrize(("parts", "owner", "expected"), STATES.values(), ids=STATES)
def test_a_group_is_in_one_word(parts: list[PartitionState], owner: GroupRow, expected: str) -> None:
    assert state_of(state(*parts, owner=owner)) == expected
    paused = state(*parts, owner=replace(owner, pause=Pause(NOW, None, "a load")))
    assert state_of(paused) == "paused", "whatever else is the case"


def test_a_killed_member_is_listed_until_others_have_all_of_its_partitions_and_for_five_minutes() -> None:
    """If all are killed, or one has partitions that nobody took, that stays in sight."""

    def member(number: int, silence: timedelta) -> FleetMember:
        return FleetMember(UUID(int=number), f"host:{number}", NOW - timedelta(hours=1), silence)

    def listed(taken_by: int, *members: FleetMember) -> list[int]:
        row = StoredOffset(100, Token(3, UUID(int=taken_by)))
        found = state(PartitionState(row), members=members)
        return [one.member.member_id.int for one in found.of_members]

    live, killed, killed_now = member(9, 2 * SECOND), member(8, timedelta(minutes=6)), member(7, timedelta(minutes=4))
    assert listed(9, live, killed, killed_now) == [9, 7]
    assert listed(8, live, killed) == [9, 8]
    assert listed(5, killed) == []  # what took its partitions has ended since
    assert listed(TOKEN.claim_id.int, killed) == [8]  # as the fleet was founded
