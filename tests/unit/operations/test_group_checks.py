"""What is to be looked at when a group is not well: each check, on its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from offsetstore.errors import BrokerUnavailable, OffsetStoreError, TopicMissing, TopicRecreated, WrongCluster
from offsetstore.offsets import CommittedOffset, Pause, StoredOffset, Suspect, Token, TopicPartition
from offsetstore.operations.group_checks import Check, CheckName, check_group
from offsetstore.operations.lag import GroupLag, Lag, PartitionLag, TopicLag
from offsetstore.operations.people import StoreOverview
from offsetstore.protocol.database import GroupRow, HistoryEvent
from offsetstore.protocol.letters import State
from offsetstore.protocol.outbox import OutboxState
from offsetstore.protocol.runs import Ending, Run, RunStatus
from offsetstore.protocol.snapshot import GroupSnapshot, KafkaSnapshot, LogEnds

pytestmark = pytest.mark.behaviour("DASH-1")

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
TOKEN = Token(3, UUID(int=3))
P0 = TopicPartition("payments", 0)
SECOND = timedelta(seconds=1)
OWNER = GroupRow(TOKEN, "ana@host:7", NOW - timedelta(hours=2), 3 * SECOND)


def part(stored: int | None, beginning: int = 0, end: int = 100, **row: Any) -> PartitionLag:
    at = None if stored is None else StoredOffset(stored, TOKEN, **row)
    return PartitionLag(at, LogEnds(beginning, end, end), 60.0)


def lag_of(
    *parts: PartitionLag,
    owner: GroupRow = OWNER,
    error: OffsetStoreError | None = None,
    letters: Mapping[State, int] | None = None,
    kafka: GroupSnapshot | None = None,
) -> Lag:
    """Partitions of payments in the group billing."""
    topic = TopicLag(dict(enumerate(parts or (part(100),))), error)
    group = GroupLag(owner, {"payments": topic}, kafka or GroupSnapshot({}))
    store = StoreOverview(NOW, {"billing": owner}, {}, {"billing": letters or {}}, timedelta(0), {})
    return Lag({"billing": group}, store, KafkaSnapshot("cluster", {}, {}))


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
    name: CheckName, lag: Lag | None = None, run: Run | None = None, paused_by: HistoryEvent | None = None
) -> Check:
    [found] = [one for one in check_group("billing", lag or lag_of(), run, paused_by) if one.name == name]
    return found


def test_a_group_that_is_well_has_nothing_to_do() -> None:
    found = check_group("billing", lag_of(), run_of(phase="idle", batch=7))
    assert {one.verdict for one in found} == {"ok"}
    assert [one.next_step for one in found] == [""] * 11


def test_a_live_claim_tells_its_owner_and_heartbeat() -> None:
    found = check("claim")
    assert (found.verdict, found.at) == ("ok", NOW - 3 * SECOND)
    assert "ana@host:7, epoch 3" in found.text


def test_a_job_that_vanished_is_bad() -> None:
    found = check("claim", lag_of(owner=replace(OWNER, alive_for=60 * SECOND)), run_of(phase="batch"))
    assert (found.verdict, found.at) == ("bad", NOW - 60 * SECOND)
    assert "was killed, hangs, or can't reach the database" in found.text
    assert found.next_step == "offsetstore runs -g billing -n 5"


@pytest.mark.behaviour("OPS-22")
@pytest.mark.parametrize("silence", [3, 60])
def test_a_claim_that_is_held_after_the_query_failed_is_told_as_such(silence: int) -> None:
    owner = replace(OWNER, alive_for=silence * SECOND, ending="failed")
    found = check("claim", lag_of(owner=owner), run_of("failed", phase="failed"))
    assert (found.verdict, found.next_step) == ("bad", "offsetstore errors -g billing -n 5")
    assert found.text == "No job owns the group. The last run, of ana@host:7, epoch 3, failed:"


@pytest.mark.parametrize(
    ("ending", "verdict", "words", "command"),
    [
        ("closed", "attention", "ended cleanly", "runs"),
        ("fenced", "attention", "was fenced", "runs"),
        ("failed", "bad", "failed", "errors"),
    ],
)
def test_without_a_job_the_claim_says_how_the_last_run_ended(
    ending: Ending, verdict: str, words: str, command: str
) -> None:
    found = check("claim", lag_of(owner=replace(OWNER, alive_for=None)), run_of(ending))
    assert (found.verdict, found.at) == (verdict, NOW - 3 * SECOND)
    assert words in found.text
    assert found.next_step.startswith(f"offsetstore {command} ")


@pytest.mark.parametrize("run", [None, run_of("closed", Token(2, UUID(int=2)))])
def test_after_a_decision_no_run_is_blamed(run: Run | None) -> None:
    found = check("claim", lag_of(owner=replace(OWNER, alive_for=None)), run)
    assert (found.verdict, found.at) == ("attention", OWNER.claimed_at)
    assert found.next_step == "offsetstore history -g billing -n 5"


def test_a_batch_in_flight_is_bad_when_it_takes_too_long() -> None:
    short = check("batch", run=run_of(phase="batch", phase_age=599.0, batch=12, batch_offsets=500))
    assert (short.verdict, short.at) == ("ok", NOW - 599 * SECOND)
    assert short.text == "Batch 12 with 500 offsets is in flight since:"
    long = run_of(phase="batch", phase_age=601.0, batch=12)
    assert check("batch", run=long).verdict == "bad"
    pause = Pause(NOW, None, "a load")
    assert check("batch", lag_of(owner=replace(OWNER, pause=pause)), long).verdict == "ok"


def test_a_batch_that_failed_is_bad() -> None:
    found = check("batch", run=run_of("failed", phase="failed", batch=12))
    assert (found.verdict, found.text) == ("bad", "Batch 12 has failed and ended the query:")
    assert found.next_step == "offsetstore errors -g billing -n 5"
    assert check("batch", run=run_of("failed", phase="failed")).text == "The job has failed:"


def test_a_start_without_a_batch_needs_attention_if_records_wait() -> None:
    late = run_of(phase="starting", phase_age=601.0)
    assert check("batch", lag_of(part(40)), late).verdict == "attention"
    assert check("batch", lag_of(part(100)), late).verdict == "ok"
    assert check("batch", lag_of(part(40)), run_of(phase="starting", phase_age=599.0)).verdict == "ok"


def test_the_last_batch_of_a_run_that_has_ended_is_told() -> None:
    done = check("batch", run=run_of("closed", phase="idle", batch=12, last_batch_age=90.0))
    assert (done.verdict, done.at) == ("ok", NOW - 90 * SECOND)
    assert "Batch 12" in done.text
    cut = check("batch", run=run_of("fenced", phase="batch", batch=12))
    assert (cut.verdict, cut.at) == ("attention", None)
    assert check("batch", run=run_of("closed")).text == "The last run has reported no batch."
    assert check("batch", run=None).text == "No run was recorded."
    assert check("batch", run=run_of(phase="paused")).verdict == "ok"


def test_copies_that_can_not_be_made_need_attention() -> None:
    failing = check("copies in Kafka", run=run_of(phase="idle", mirror_error="not authorized"))
    assert failing.verdict == "attention"
    assert "not authorized" in failing.text
    assert failing.next_step == "offsetstore errors -g billing --source mirror -n 5"
    over = run_of("closed", mirror_error="not authorized")
    assert check("copies in Kafka", run=over).verdict == "ok"


@pytest.mark.parametrize(("committed", "words"), [(100, "has the stored offsets"), (60, "40 offsets behind")])
def test_copies_are_compared_with_the_store(committed: int, words: str) -> None:
    kafka = GroupSnapshot({P0: CommittedOffset(committed)})
    assert words in check("copies in Kafka", lag_of(kafka=kafka)).text
    assert check("copies in Kafka", lag_of(kafka=kafka)).verdict == "ok"
    without_job = check("copies in Kafka", lag_of(kafka=kafka, owner=replace(OWNER, alive_for=None)))
    assert without_job.verdict == ("ok" if committed == 100 else "attention")


def test_copies_ahead_of_the_store_are_bad_unless_a_job_makes_them_or_a_decision_counts_more() -> None:
    kafka = GroupSnapshot({P0: CommittedOffset(100)})
    left = replace(OWNER, alive_for=None)
    restored = check("copies in Kafka", lag_of(part(40), kafka=kafka, owner=left))
    assert restored.verdict == "bad"
    assert "60 offsets ahead of the store: the database is older" in restored.text
    assert restored.next_step == "offsetstore resolve -g billing -t payments -b HOST:PORT"
    assert check("copies in Kafka", lag_of(part(40), kafka=kafka)).verdict == "ok"
    pinned = part(40, pinned=True)
    decided = check("copies in Kafka", lag_of(pinned, kafka=kafka, owner=left))
    assert decided.verdict == "ok"
    assert "60 offsets ahead of offsets that a decision has set, which take precedence" in decided.text


def test_a_group_that_kafka_does_not_tell_of_needs_attention() -> None:
    found = check("copies in Kafka", lag_of(kafka=GroupSnapshot(error=BrokerUnavailable("no coordinator"))))
    assert found.verdict == "attention"
    assert "no coordinator" in found.text


def test_partitions_without_an_offset_are_counted_and_can_be_resolved() -> None:
    found = check("unread partitions", lag_of(part(100), part(None), part(None)))
    assert found.verdict == "attention"
    assert "2 partitions have no stored offset" in found.text
    assert found.next_step == "offsetstore resolve -g billing -t payments -b HOST:PORT"
    assert "1 partition has" in check("unread partitions", lag_of(part(100), part(None))).text


def test_headroom_is_the_smallest() -> None:
    found = check("headroom", lag_of(part(40, beginning=10), part(50, beginning=45)))
    assert (found.verdict, found.next_step) == ("ok", "")
    assert "5 offsets from payments-1" in found.text
    assert check("headroom", lag_of(part(100, beginning=100))).text == "Nothing unread is at risk from retention."


def test_headroom_of_none_needs_attention_once_retention_has_begun() -> None:
    assert check("headroom", lag_of(part(45, beginning=45))).verdict == "attention"
    assert check("headroom", lag_of(part(0, beginning=0))).verdict == "ok"


def test_records_that_were_removed_unread_are_a_loss() -> None:
    found = check("headroom", lag_of(part(40, beginning=45), part(40, beginning=50), part(40)))
    assert found.verdict == "bad"
    assert "Kafka has removed 15 offsets unread: payments-0, payments-1." in found.text
    assert found.next_step == "offsetstore resolve -g billing -t payments -b HOST:PORT"


def test_a_topic_that_was_created_anew_is_bad_and_another_error_needs_attention() -> None:
    anew = check("topics", lag_of(error=TopicRecreated("the topic payments was created anew")))
    assert (anew.verdict, anew.text) == ("bad", "the topic payments was created anew.")
    assert "on_recreated" in anew.next_step
    assert check("topics", lag_of(error=TopicMissing("Kafka has no topic payments"))).verdict == "attention"


def test_a_pause_says_why_until_when_and_by_whom() -> None:
    pause = Pause(NOW - 60 * SECOND, NOW + timedelta(hours=1), "a load")
    event = HistoryEvent("pause", None, None, None, TOKEN, "ana", "a load", pause.at)
    found = check("pause", lag_of(owner=replace(OWNER, pause=pause)), paused_by=event)
    assert (found.verdict, found.at) == ("attention", pause.at)
    assert found.text == "Paused by ana until 2025-03-01 13:00 UTC: a load. Since:"
    assert found.next_step.startswith("offsetstore resume -g billing")
    earlier = replace(event, at=NOW - timedelta(days=1))
    endless = replace(pause, until=None)
    found = check("pause", lag_of(owner=replace(OWNER, pause=endless)), paused_by=earlier)
    assert found.text == "Paused without an end: a load. Since:"


def test_a_pause_that_a_job_does_not_heed_is_bad() -> None:
    owner = replace(OWNER, pause=Pause(NOW - timedelta(hours=1), None, "a load"))
    goes_on = check("pause", lag_of(part(40, updated_at=NOW - SECOND, transaction_id=UUID(int=1)), owner=owner))
    assert goes_on.verdict == "bad"
    assert "But the job goes on" in goes_on.text
    last_batch = check("pause", lag_of(part(40, updated_at=NOW - timedelta(minutes=59)), owner=owner))
    assert last_batch.verdict == "attention"


def test_a_job_with_transactions_of_its_own_is_not_said_to_have_had_no_batch() -> None:
    advanced = part(40, updated_at=NOW - SECOND, transaction_id=UUID(int=1))
    found = check("batch", lag_of(advanced), run_of(phase="starting"))
    assert found.verdict == "ok"
    assert "The job reports no batches" in found.text
    never = check("batch", lag_of(part(40, updated_at=NOW - SECOND)), run_of(phase="starting"))
    assert never.text == "The job has had no batch yet; it claimed the group:"


def test_dead_letters_that_wait_for_a_decision_need_attention() -> None:
    found = check("dead letters", lag_of(letters={"dead": 2, "requested": 1}))
    assert found.verdict == "attention"
    assert found.text == "2 dead letters wait for a decision, 1 to be replayed by a job that has dead_letters=."
    assert found.next_step == "offsetstore dead-letters list -g billing --by error"
    assert check("dead letters", lag_of(letters={"requested": 1})).verdict == "ok"
    assert check("dead letters", lag_of(letters={"requested": 1}), run_of(replays_letters=True)).verdict == "ok"
    without_job = lag_of(letters={"requested": 1}, owner=replace(OWNER, alive_for=None))
    assert check("dead letters", without_job).verdict == "attention"


@pytest.mark.behaviour("DLQ-19")
def test_requested_letters_that_the_job_does_not_replay_need_attention() -> None:
    without = run_of(replays_letters=False)
    found = check("dead letters", lag_of(letters={"requested": 3}), without)
    assert (found.verdict, found.text) == ("attention", "3 to be replayed by no one: the job has no dead_letters=.")
    both = check("dead letters", lag_of(letters={"dead": 1, "requested": 3}), without)
    assert both.text.endswith("waits for a decision, 3 to be replayed by no one: the job has no dead_letters=.")
    assert check("dead letters", lag_of(), without).verdict == "ok"
    earlier = replace(without, token=replace(TOKEN, epoch=TOKEN.epoch - 1))
    assert check("dead letters", lag_of(letters={"requested": 3}), earlier).verdict == "ok"


@pytest.mark.behaviour("OUT-6", "OUT-7")
@pytest.mark.parametrize(
    ("outbox", "verdict", "words", "command"),
    [
        (None, "ok", "The group has no rows in the outbox.", ""),
        (OutboxState(1, NOW - 299 * SECOND), "ok", "1 row waits to be sent to Kafka. The oldest was written:", ""),
        (
            OutboxState(2, NOW - 301 * SECOND, 1),
            "bad",
            (
                "Kafka refuses 1 row, set aside until a person decides. 2 rows wait to be sent to Kafka: no relay "
                "runs, or it waits or falls behind, as its log says. A second relay would end the first: see "
                "docs/runbook.md#outboxstalled. The oldest was written:"
            ),
            "offsetstore outbox list -g billing",
        ),
        (
            OutboxState(0, None, 3),
            "attention",
            "Kafka refuses 3 rows, set aside until a person decides.",
            "offsetstore outbox list -g billing",
        ),
    ],
)
def test_what_waits_in_the_outbox_is_bad_when_it_is_late_and_what_is_set_aside_needs_attention(
    outbox: OutboxState | None, verdict: str, words: str, command: str
) -> None:
    lag = lag_of()
    found = check("outbox", replace(lag, store=replace(lag.store, outbox={"billing": outbox} if outbox else {})))
    assert (found.verdict, found.text, found.next_step) == (verdict, words, command)
    assert found.at == (outbox.oldest if outbox else None)


def test_contested_offsets_need_attention_and_pinned_ones_are_told() -> None:
    contested = check("pinned offsets", lag_of(part(40, contested=True, pinned=True)))
    assert contested.verdict == "attention"
    assert "payments-0" in contested.text
    pinned = check("pinned offsets", lag_of(*(part(40, pinned=True) for _ in range(5))))
    assert pinned.verdict == "ok"
    assert "payments-0, payments-1, payments-2 and 2 more" in pinned.text


@pytest.mark.behaviour("OPS-16")
def test_a_log_that_lost_records_is_bad_while_it_is_too_short_and_when_it_has_grown() -> None:
    short = check("logs", lag_of(part(103, end=100)))
    assert (short.verdict, short.next_step) == ("bad", "offsetstore resolve -g billing -t payments -b HOST:PORT")
    assert "payments-0 are 3 offsets beyond the log's end" in short.text
    grown = check("logs", lag_of(part(103, end=200, suspect=Suspect("the log ended at 100, below 103", NOW))))
    assert (grown.verdict, grown.at) == ("bad", NOW)
    assert "payments-0 lost records that had been read: the log ended at 100, below 103." in grown.text
    assert grown.next_step == "offsetstore history -g billing --event suspect -n 5"


def test_without_kafka_what_is_not_known_is_not_called_well() -> None:
    lag = replace(lag_of(), kafka=None, broker_error=BrokerUnavailable("Kafka does not answer"))
    unknown = [one.name for one in check_group("billing", lag, None) if one.verdict == "attention"]
    assert unknown == ["copies in Kafka", "unread partitions", "headroom", "topics", "logs"]


@pytest.mark.parametrize("error", [TopicRecreated("created anew"), WrongCluster("another cluster")])
def test_of_a_log_that_is_not_known_nothing_is_called_well(error: OffsetStoreError) -> None:
    lost = replace(part(40), log=None)
    kafka = GroupSnapshot({P0: CommittedOffset(100)})
    checks = check_group("billing", lag_of(part(100), lost, error=error, kafka=kafka), None)
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
        assert check("headroom", lag_of(known, lost)).text == unknown
    assert check("copies in Kafka", lag_of(part(100), lost)).text == unknown
    assert check("unread partitions", lag_of(part(100), lost)).text == unknown


def test_commands_can_be_copied_whatever_the_names_are() -> None:
    lag = lag_of(part(None))
    group = "my group; rm"
    renamed = replace(lag, groups={group: lag.groups["billing"]})
    found = {one.name: one.next_step for one in check_group(group, renamed, None)}
    assert found["unread partitions"] == "offsetstore resolve -g 'my group; rm' -t payments -b HOST:PORT"
    found = {one.name: one.next_step for one in check_group(group, renamed, None, schema="our jobs")}
    assert found["unread partitions"].startswith(
        "offsetstore resolve -g 'my group; rm' --schema 'our jobs' -t payments"
    )
