"""What the mirror copies to Kafka, when, and what it does where Kafka or the database won't have it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from offsetstore import Claim, OffsetRange, OffsetStore, StartPolicy, TopicPartition, errors, resolve_starting_offsets
from offsetstore.errors import BrokerRefused, BrokerUnavailable, MetadataRefused, StoreRewound
from offsetstore.offsets import CommittedOffset, TopicLog, Watermarks
from offsetstore.protocol.database import NewOffset
from offsetstore.protocol.events import MirrorTried
from offsetstore.protocol.starting import Reason, Start
from offsetstore.protocol.store_facts import Stamp, digest
from offsetstore.store import mirror as mirrors
from offsetstore.store import sessions
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import join
from offsetstore.store.mirror import Mirror
from offsetstore.testing import InMemoryOffsetStore, StaticBroker
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

GROUP = "billing"
P0, P1, P2, P3 = (TopicPartition("payments", number) for number in range(4))
OFTEN = 0.01
SELDOM = 600.0


class StrictBroker(StaticBroker):
    """Takes texts of ``longest`` characters."""

    longest = 100

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        if any(len(offset.metadata or "") > self.longest for offset in offsets.values()):
            self.asked.append("refused")
            raise MetadataRefused("too long")
        super().commit(group, offsets)


class TimedBroker(StaticBroker):
    """Notes when it was asked to commit."""

    def __init__(self, current: Any) -> None:
        super().__init__(current)
        self.times: list[float] = []

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self.times.append(time.monotonic())
        super().commit(group, offsets)


class HangingBroker(StaticBroker):
    """Does not answer until it is told to."""

    answers = threading.Event()

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        assert self.answers.wait(20)
        super().commit(group, offsets)


@pytest.fixture
def renamable(offsetstore_database: str) -> Iterator[OffsetStore]:
    with OffsetStore.connect(offsetstore_database) as made:
        yield made


@pytest.fixture
def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 3}, end=100)


def advance(store: OffsetStore, claim: Claim, tp: TopicPartition, until: int, metadata: object = None) -> None:
    row = store.offsets(claim.group).get(tp)
    with store.transaction(claim) as tx:
        plan = tx.lock({tp: OffsetRange(row.next_offset if row else 0, until)})
        tx.advance({tp: plan[tp].remaining}, metadata=metadata)


def copied(broker: StaticBroker) -> dict[TopicPartition, int]:
    return {tp: offset.next_offset for tp, offset in broker.current.committed.items()}


def of(claim: Claim) -> Mirror:
    assert claim.mirror is not None
    return claim.mirror


def copying(store: OffsetStore, broker: StaticBroker) -> Claim:
    """A job that has stored 40 in the first partition, which is copied."""
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    advance(store, claim, P0, 40)
    wait_until(lambda: copied(broker).get(P0) == 40)
    return claim


def starts(store: OffsetStore, broker: StaticBroker, group: str = GROUP, **how: Any) -> Mapping[TopicPartition, Start]:
    """Where a job starts that dies before its mirror has its turn."""
    starting = store.claim(group, broker, mirror_every=None, **how).starting
    assert starting is not None
    return starting.starts


# -- what is copied


@pytest.mark.behaviour("META-11", "MIRROR-2", "MIRROR-6")
def test_a_clean_stop_copies_what_is_stored_each_with_the_stamp_and_the_job_s_metadata_after_it(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    with store.claim(GROUP, broker, mirror_every=SELDOM, kafka_group="billing-in-kafka") as claim:
        advance(store, claim, P0, 40, metadata={"trace": "7f3a"})
        advance(store, claim, P1, 5, metadata="too long for any broker" * 200)
        assert broker.commits == []

    stamp = Stamp(store.database.store_id(), claim.token.epoch, digest(GROUP))
    assert broker.commits == [
        (
            "billing-in-kafka",
            {
                P0: CommittedOffset(40, f'offsetstore:2:{digest(GROUP)}:{stamp.store_id}:1;{{"trace":"7f3a"}}'),
                P1: CommittedOffset(5, stamp.text()),
                P2: CommittedOffset(0, stamp.text()),  # so that Kafka shows the lag of what was never read, too
            },
        )
    ]
    assert {Stamp.of(offset) for offset in broker.current.committed.values()} == {stamp}


@pytest.mark.behaviour("OPS-15")
def test_only_what_has_changed_is_copied_again_and_a_partition_that_comes_while_the_job_runs_too(
    store: InMemoryOffsetStore, recorder: Recorder, broker: StaticBroker
) -> None:
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: copied(broker))
    advance(store, claim, P1, 7)
    wait_until(lambda: copied(broker)[P1] == 7)
    quiet = len(recorder.of(MirrorTried, "done"))
    wait_until(lambda: len(recorder.of(MirrorTried, "done")) > quiet)
    broker.current.topics["payments"].partitions[3] = Watermarks(0, 10)
    advance(store, claim, P3, 5)
    claim.close()

    assert [list(offsets) for _, offsets in broker.commits] == [[P0, P1, P2], [P1], [P3]]
    told = [one.offsets for one in recorder.of(MirrorTried, "done")]
    assert [offsets for offsets in told if offsets][:2] == [{P0: 0, P1: 0, P2: 0}, {P1: 7}]
    assert copied(broker) == {P0: 0, P1: 7, P2: 0, P3: 5}


def test_all_is_copied_again_before_kafka_forgets_it(
    store: InMemoryOffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "_FULL_COPY_SECONDS", 0.05)
    store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: len(broker.commits) > 2)

    assert {len(offsets) for _, offsets in broker.commits} == {3}


@pytest.mark.behaviour("MIRROR-2")
def test_it_copies_at_most_as_often_as_it_was_told(store: InMemoryOffsetStore) -> None:
    broker = TimedBroker.with_topics({"payments": 1}, end=1000)
    began, until = time.monotonic(), 0
    claim = store.claim(GROUP, broker, mirror_every=0.1)
    while len(broker.times) < 4:
        until += 1
        advance(store, claim, P0, until)

    gaps = [later - earlier for earlier, later in zip([began, *broker.times], broker.times, strict=False)]
    assert min(gaps) >= 0.09
    assert until > len(broker.times)


def test_partitions_that_kafka_does_not_show_to_the_job_are_left_alone(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    store.claim(GROUP, broker, mirror_every=None).close()
    store.claim(GROUP, StaticBroker.with_topics({"refunds": 1}), mirror_every=None).close()
    two = {number: Watermarks(0, 100) for number in range(2)}
    broker.current = replace(broker.current, topics={"payments": TopicLog("payments-id", two)})
    store.claim(GROUP, broker, mirror_every=SELDOM).close()

    assert copied(broker) == {P0: 0, P1: 0}


@pytest.mark.parametrize("arguments", [{"mirror_every": None}, {"topics": ["payments"], "broker": None}, {}])
def test_there_is_no_mirror_where_there_is_nothing_to_copy_to(
    store: InMemoryOffsetStore, broker: StaticBroker, arguments: dict[str, Any]
) -> None:
    class ReadOnly:
        """A broker that somebody made for job starts alone."""

        topics, view, topic_ids = broker.topics, broker.view, broker.topic_ids

    given: dict[str, Any] = {"broker": broker, **(arguments or {"broker": ReadOnly()})}
    with store.claim(GROUP, **given) as claim:
        assert claim.mirror is None
    assert broker.commits == []


# -- who may copy


@pytest.mark.behaviour("MIRROR-3")
def test_a_stale_claim_copies_nothing_not_even_at_its_end(store: InMemoryOffsetStore, broker: StaticBroker) -> None:
    stale = store.claim(GROUP, broker, mirror_every=SELDOM)
    advance(store, stale, P0, 40)
    store.claim(GROUP, broker, mirror_every=None)
    stale.close()

    assert broker.commits == []
    assert of(stale).ended == "the claim has been taken over"


@pytest.mark.behaviour("MIRROR-3", "START-6")
def test_a_database_that_is_restored_under_the_job_does_not_pull_the_copy_back(
    store: InMemoryOffsetStore, broker: StaticBroker, caplog: pytest.LogCaptureFixture
) -> None:
    claim = copying(store, broker)
    session = store.database.begin(name="restore")
    session.set_partitions(GROUP, claim.token, {P0: NewOffset(10, None, None, pinned=False)})
    session.commit()

    wait_until(lambda: of(claim).ended)
    claim.close()
    assert copied(broker)[P0] == 40
    assert caplog.text.count("its database is older than the copy in Kafka") == 1


# -- what stands in the way


@pytest.mark.behaviour("MIRROR-5")
def test_an_outage_costs_a_warning_at_its_beginning_and_its_end_and_is_counted(
    store: InMemoryOffsetStore, recorder: Recorder, broker: StaticBroker, caplog: pytest.LogCaptureFixture
) -> None:
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: broker.commits)
    assert not recorder.of(MirrorTried, "failed", "ended")
    caplog.clear()
    broker.error = BrokerUnavailable("no answer")
    advance(store, claim, P0, 40)
    wait_until(lambda: len(recorder.of(MirrorTried, "failed", "ended")) >= 3)
    before = len(recorder.of(MirrorTried, "done"))
    advance(store, claim, P0, 50)
    broker.error = None
    wait_until(lambda: copied(broker)[P0] == 50)
    wait_until(lambda: len(recorder.of(MirrorTried, "done")) > before)

    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2
    assert "to Kafka; the job continues" in warnings[0]
    assert "no answer" in warnings[0]
    assert "copied to Kafka again" in warnings[1]
    assert of(claim).ended is None


@pytest.mark.behaviour("MIRROR-5")
@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(3)], ids=repr)
def test_an_error_that_nobody_foresaw_does_not_end_it(
    store: InMemoryOffsetStore,
    recorder: Recorder,
    broker: StaticBroker,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    broker.commit_error = error  # pyright: ignore[reportAttributeAccessIssue] - just what it should not raise
    store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: recorder.of(MirrorTried, "failed", "ended"))
    broker.commit_error = None
    wait_until(lambda: broker.commits)
    assert type(error).__name__ in caplog.text


@pytest.mark.behaviour("MIRROR-5")
def test_a_broker_that_says_no_is_asked_less_often(store: InMemoryOffsetStore) -> None:
    broker = TimedBroker.with_topics({"payments": 3}, end=100)
    broker.commit_error = BrokerRefused("the group has members")
    claim = store.claim(GROUP, broker, mirror_every=0.05)
    wait_until(lambda: len(broker.times) >= 2)
    assert broker.times[1] - broker.times[0] > 0.4
    broker.commit_error = None
    claim.close()
    assert copied(broker) == {P0: 0, P1: 0, P2: 0}


@pytest.mark.behaviour("MIRROR-5", "MIRROR-2")
def test_the_end_of_the_job_waits_for_a_silent_broker_in_vain_and_not_for_long(
    store: InMemoryOffsetStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mirrors, "LAST_COMMIT", 0.2)
    broker = HangingBroker.with_topics({"payments": 3}, end=100)
    claim = store.claim(GROUP, broker, mirror_every=SELDOM)
    began = time.monotonic()
    claim.close()
    assert time.monotonic() - began < 15
    assert caplog.text.count("closed without its last commit to Kafka") == 1
    claim.close()
    assert caplog.text.count("closed without its last commit to Kafka") == 1
    broker.answers.set()


@pytest.mark.behaviour("MIRROR-6")
def test_a_broker_that_takes_short_texts_gets_the_stamp_alone(store: InMemoryOffsetStore, recorder: Recorder) -> None:
    broker = StrictBroker.with_topics({"payments": 1}, end=100)
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    advance(store, claim, P0, 40, metadata="x" * 100)
    wait_until(lambda: copied(broker).get(P0) == 40)
    advance(store, claim, P0, 50, metadata="y" * 100)
    wait_until(lambda: copied(broker)[P0] == 50)

    assert {offset.metadata for _, offsets in broker.commits for offset in offsets.values()} == {
        Stamp(store.database.store_id(), 1, digest(GROUP)).text()
    }
    assert broker.asked.count("refused") == 1
    assert not recorder.of(MirrorTried, "failed", "ended")


@pytest.mark.behaviour("MIRROR-6")
def test_a_broker_that_refuses_even_the_stamp_gets_nothing(
    store: InMemoryOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    broker = StrictBroker.with_topics({"payments": 1}, end=100)
    broker.longest = 20
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: of(claim).ended)
    advance(store, claim, P0, 40)
    claim.close()

    assert broker.commits == []
    assert caplog.text.count("Kafka does not accept its stamp") == 1


# -- pins


@pytest.mark.behaviour("START-21")
def test_a_pin_comes_off_when_kafka_has_the_copy_and_not_before(
    store: InMemoryOffsetStore, recorder: Recorder, broker: StaticBroker
) -> None:
    with store.claim(GROUP, broker, mirror_every=SELDOM) as claim:
        advance(store, claim, P0, 40)
    store.reset(GROUP, {P0: 10}, reason="again")
    broker.commit_error = BrokerUnavailable("no answer")
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: len(recorder.of(MirrorTried, "failed", "ended")) > 1)
    assert store.offsets(GROUP)[P0].pinned
    assert copied(broker)[P0] == 40

    broker.commit_error = None
    wait_until(lambda: not store.offsets(GROUP)[P0].pinned)
    assert copied(broker)[P0] == 10


# -- what the next start makes of it


@pytest.mark.behaviour("START-21")
def test_a_stale_job_s_copy_that_comes_after_everything_else_does_not_count(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    with store.claim(GROUP, broker, mirror_every=SELDOM) as claim:
        advance(store, claim, P0, 40)
    late = broker.current.committed[P0]
    store.reset(GROUP, {P0: 10}, reason="again")
    store.claim(GROUP, broker, mirror_every=SELDOM).close()
    assert not store.offsets(GROUP)[P0].pinned
    broker.commit(GROUP, {P0: late})

    assert [starts(store, broker)[P0].offset for _ in range(2)] == [10, 10]


@pytest.mark.behaviour("START-6")
@pytest.mark.parametrize("override", ["stored", "kafka"])
def test_after_a_restore_epochs_go_on_above_those_that_kafka_has_seen(
    store: InMemoryOffsetStore, broker: StaticBroker, override: Any
) -> None:
    copy = CommittedOffset(40, Stamp(store.database.store_id(), 9).text())
    store.claim(GROUP, broker, mirror_every=None).close()
    broker.current = replace(broker.current, committed={P0: copy})

    claim = store.claim(GROUP, broker, policy=StartPolicy(on_rewound=override), mirror_every=SELDOM)
    assert claim.token.epoch == 10
    claim.close()
    broker.commit(GROUP, {P0: replace(copy, next_offset=50)})  # by a job of the lost database

    assert starts(store, broker)[P0].offset == {"stored": 0, "kafka": 40}[override]


@pytest.mark.behaviour("START-6")
def test_a_rewound_row_is_noticed_also_after_claims_that_did_not_look_at_it(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    store.claim(GROUP, broker, mirror_every=None).close()
    copy = CommittedOffset(40, Stamp(store.database.store_id(), 1).text())
    broker.current = replace(broker.current, committed={P0: copy})
    store.claim(GROUP, topics=["payments"]).close()
    store.reset(GROUP, {P1: 7}, reason="another partition")

    with pytest.raises(StoreRewound, match="the database is older than our own copy"):
        store.claim(GROUP, broker)


# -- another application in the same group


def contested(store: InMemoryOffsetStore) -> list[tuple[TopicPartition | None, str]]:
    return [(line.topic_partition, line.reason) for line in store.history(GROUP) if line.event == "contested"]


@pytest.mark.behaviour("MIRROR-7", "START-18")
@pytest.mark.parametrize("offset", [30, 40, 70], ids=["below", "the same", "above"])
def test_what_another_application_commits_under_the_job_is_neither_overwritten_nor_adopted(
    store: InMemoryOffsetStore, broker: StaticBroker, caplog: pytest.LogCaptureFixture, offset: int
) -> None:
    claim = store.claim(GROUP, broker, mirror_every=SELDOM)
    advance(store, claim, P0, 40)
    broker.set_committed({P0: offset})
    claim.close()

    assert broker.commits == []
    assert copied(broker) == {P0: offset}
    assert "another application uses group" in str(of(claim).ended)
    assert caplog.text.count(f"it has committed payments-0 at {offset}") == 1
    assert contested(store) == [
        (P0, f"another application uses the group 'billing' in Kafka: it has committed {offset}")
    ]
    for prefer in ("larger", "agree"):
        policy = replace(StartPolicy(), prefer=prefer)
        with pytest.raises(errors.KafkaGroupContested, match=f"{offset} committed, 40 stored") as caught:
            store.claim(GROUP, broker, policy=policy)
        assert caught.value.topic_partition == P0
        assert all(way in caught.value.next_step for way in ("kafka_group=", 'prefer="stored"', "offsetstore reset"))
        with pytest.raises(errors.KafkaGroupContested):
            resolve_starting_offsets(broker, group=GROUP, store=store, policy=policy)
    assert store.offsets(GROUP)[P0].next_offset == 40


@pytest.mark.behaviour("MIRROR-7", "START-18")
def test_the_stored_offset_counts_again_once_that_is_decided_and_through_as_many_starts_as_it_takes(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    with store.claim(GROUP, broker, mirror_every=SELDOM) as claim:
        advance(store, claim, P0, 40)
        broker.set_committed({P0: 70})

    assert starts(store, broker, policy=StartPolicy(prefer="stored"))[P0].reason is Reason.CONTEST_STORED
    assert contested(store)[1:] == [(P0, Reason.CONTEST_STORED.value)]
    assert [starts(store, broker)[P0].reason for _ in range(2)] == [Reason.PINNED] * 2
    store.claim(GROUP, broker, mirror_every=SELDOM).close()
    assert copied(broker)[P0] == 40
    row = store.offsets(GROUP)[P0]
    assert (row.next_offset, row.pinned, row.contested) == (40, False, False)


@pytest.mark.behaviour("MIRROR-7", "START-21")
def test_a_reset_decides_for_the_partition_that_it_sets(store: InMemoryOffsetStore, broker: StaticBroker) -> None:
    with store.claim(GROUP, broker, mirror_every=SELDOM):
        broker.set_committed({P0: 70, P1: 7})
    store.reset(GROUP, {P0: 70}, reason="it was an operator's move")

    with pytest.raises(errors.KafkaGroupContested, match="payments-1"):
        store.claim(GROUP, broker)
    store.reset(GROUP, {P1: 3}, reason="it was not")
    store.claim(GROUP, broker, mirror_every=SELDOM).close()
    assert copied(broker) == {P0: 70, P1: 3, P2: 0}
    assert not any(row.contested for row in store.offsets(GROUP).values())


@pytest.mark.behaviour("MIRROR-7")
def test_a_partition_that_the_job_has_not_met_is_not_adopted_from_the_other_application_either(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    with store.claim(GROUP, broker, mirror_every=SELDOM):
        broker.set_committed({P0: 70})
    broker.current.topics["payments"].partitions[3] = Watermarks(0, 100)
    store.reset(GROUP, {P0: 70}, reason="as it says")
    broker.set_committed({P3: 50})

    with pytest.raises(errors.KafkaGroupContested, match=r"payments-3.*50 committed, no stored offset"):
        store.claim(GROUP, broker)
    assert starts(store, broker, policy=StartPolicy(prefer="stored"))[P3].offset == 0
    assert starts(store, broker)[P3].offset == 0, "the decision holds for the next start"


@pytest.mark.behaviour("MIRROR-7")
def test_a_text_of_another_client_that_reads_otherwise_each_time_is_no_other_commit(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    """Of a text that does not end with a zero byte, librdkafka shows what stands behind it."""
    copies = {P0: CommittedOffset(30, "consumer-1!")}
    broker.current = replace(broker.current, committed=copies)
    claim = store.claim(GROUP, broker, mirror_every=SELDOM)
    broker.current = replace(broker.current, committed={P0: CommittedOffset(30, "consumer-1A\x02")})
    advance(store, claim, P0, 40)
    claim.close()

    assert copied(broker)[P0] == 40
    assert contested(store) == []


@pytest.mark.behaviour("MIRROR-7", "START-18")
def test_what_the_claim_has_read_may_be_overwritten_once_and_not_if_it_comes_again(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    first = store.claim(GROUP, broker, mirror_every=None)
    advance(store, first, P0, 40)
    broker.set_committed({P0: 30})
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: copied(broker)[P0] == 40)
    broker.set_committed({P0: 30})
    wait_until(lambda: of(claim).ended)
    advance(store, claim, P0, 50)
    claim.close()

    assert copied(broker)[P0] == 30


@pytest.mark.behaviour("MIRROR-7", "MIRROR-5")
def test_a_commit_of_our_own_whose_answer_was_lost_is_no_other_application_s(store: InMemoryOffsetStore) -> None:
    class Silent(StaticBroker):
        """Takes every other commit, and does not say so."""

        def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
            super().commit(group, offsets)
            if len(self.commits) % 2:
                raise BrokerUnavailable("no answer")

    broker = Silent.with_topics({"payments": 3}, end=100)
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: len(broker.commits) == 2)
    advance(store, claim, P0, 40)
    wait_until(lambda: copied(broker)[P0] == 40)
    wait_until(lambda: len(broker.commits) == 4)
    assert of(claim).ended is None


@pytest.mark.behaviour("MIRROR-7")
def test_offsets_that_have_expired_are_no_other_application_s(store: InMemoryOffsetStore, broker: StaticBroker) -> None:
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: copied(broker))
    broker.current = replace(broker.current, committed={})
    advance(store, claim, P0, 40)
    wait_until(lambda: copied(broker) == {P0: 40})
    assert of(claim).ended is None


@pytest.mark.behaviour("MIRROR-7", "MIRROR-3")
@pytest.mark.parametrize("group", [digest(GROUP), None], ids=["this version", "the version before"])
def test_a_late_copy_of_an_earlier_claim_is_overwritten_and_one_of_a_later_claim_is_not(
    store: InMemoryOffsetStore, broker: StaticBroker, group: str | None
) -> None:
    """The later claim is made between the mirror's read of the rows and its look at Kafka."""
    store.claim(GROUP, broker, mirror_every=None)
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: broker.commits)
    store_id = store.database.store_id()
    broker.commit(GROUP, {P0: CommittedOffset(0, Stamp(store_id, 1, group).text())})
    advance(store, claim, P0, 40)
    wait_until(lambda: copied(broker)[P0] == 40)
    later = CommittedOffset(45, Stamp(store_id, 3, group).text())
    ask = broker.committed_offsets

    def claimed_meanwhile(kafka_group: str, partitions: Any) -> Any:
        broker.committed_offsets = ask  # type: ignore[method-assign]
        store.claim(GROUP, broker, mirror_every=None)
        broker.commit(GROUP, {P0: later})
        return ask(kafka_group, partitions)

    broker.committed_offsets = claimed_meanwhile  # type: ignore[method-assign]
    wait_until(lambda: of(claim).ended)

    assert of(claim).ended == "the claim has been taken over"
    assert broker.current.committed[P0] == later
    assert contested(store) == []


# -- a copy of the database, which claims the same group


@pytest.mark.behaviour("START-27", "MIRROR-7")
def test_a_running_job_that_meets_a_copy_of_its_database_goes_on_and_the_next_start_names_the_copy(
    store: InMemoryOffsetStore, recorder: Recorder, broker: StaticBroker, caplog: pytest.LogCaptureFixture
) -> None:
    claim = copying(store, broker)
    with InMemoryOffsetStore(store.memory.copy(physical=True)) as copy:
        of_copy = copy.claim(GROUP, broker, mirror_every=SELDOM)
        assert of_copy.token.epoch == claim.token.epoch + 1
        advance(copy, of_copy, P0, 70)
    wait_until(lambda: contested(store))  # which comes last

    assert "a copy of this database" in str(of(claim).ended)
    [failed] = recorder.of(MirrorTried, "failed", "ended")
    assert failed.is_over
    assert "offsetstore store new-id" in (failed.reason or "")
    [(of_partition, reason)] = contested(store)
    assert of_partition is None
    assert reason == (
        "a copy of this database, or this one before it was restored, has claimed the group (epoch 2) and copies its "
        "offsets to group 'billing' in Kafka"
    )
    advance(store, claim, P0, 50)  # undisturbed
    claim.close()
    assert copied(broker)[P0] == 70

    caplog.clear()
    broker.set_log(P3, 5, 100)
    broker.commit(
        GROUP, {P3: replace(broker.current.committed[P0], next_offset=9)}
    )  # the copy has read a partition that is new
    resolved = resolve_starting_offsets(broker, group=GROUP, store=store)
    again = store.claim(GROUP, broker, mirror_every=OFTEN)
    assert again.starting is not None
    assert resolved.offsets == again.starting.offsets == {P0: 50, P1: 0, P2: 0, P3: 5}
    assert again.starting.starts[P0].reason is Reason.COPY_STORED
    assert caplog.text.count("a copy of this database copied its offsets to group 'billing'") == 1
    assert (P0, Reason.COPY_STORED.value) in contested(store)
    wait_until(lambda: copied(broker)[P0] == 50)  # a claim above the copy's
    assert of(again).ended is None


@pytest.mark.behaviour("START-27", "START-21")
def test_what_the_copy_still_copies_after_that_counts_at_no_start(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    claim = copying(store, broker)
    of_copy = CommittedOffset(70, Stamp(store.database.store_id(), 2, digest(GROUP)).text())
    broker.commit(GROUP, {P0: of_copy})
    wait_until(lambda: of(claim).ended)
    claim.close()

    broker.set_log(P3, 5, 100)
    broker.commit(GROUP, {P3: replace(of_copy, next_offset=9)})
    for _ in range(2):
        again = starts(store, broker)
        assert (again[P0].offset, again[P3].offset) == (40, 5)
    store.claim(GROUP, broker, mirror_every=SELDOM).close()
    assert copied(broker)[P0] == 40
    broker.commit(GROUP, {P0: replace(of_copy, next_offset=80)})
    assert starts(store, broker)[P0].offset == 40


@pytest.mark.behaviour("START-27", "START-6")
@pytest.mark.parametrize("on_rewound", ["fail", "kafka"])
@pytest.mark.parametrize("what", ["claim", "reset"])
def test_a_copy_that_was_met_is_named_whatever_the_group_s_token_is_by_then(
    store: InMemoryOffsetStore, broker: StaticBroker, what: str, on_rewound: Literal["fail", "kafka"]
) -> None:
    claim = copying(store, broker)
    stamp = Stamp(store.database.store_id(), claim.token.epoch + 1, digest(GROUP))
    broker.commit(GROUP, {P0: CommittedOffset(300, stamp.text())})
    wait_until(lambda: of(claim).ended)
    claim.close()
    if what == "claim":
        store.claim(GROUP, topics=["payments"]).close()
    else:
        store.reset(GROUP, {P1: 0}, reason="ticket 17")

    again = starts(store, broker, policy=StartPolicy(on_rewound=on_rewound))[P0]
    assert (again.offset, again.reason) == (40, Reason.COPY_STORED)


@pytest.mark.behaviour("START-6", "MIRROR-7")
def test_a_copy_of_the_claim_that_came_after_a_contest_is_our_own(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    """It dies after its mirror's commit, and before the mark is cleared: a restore in between is told."""
    claim = copying(store, broker)
    broker.members.add(GROUP)
    advance(store, claim, P0, 50)
    wait_until(lambda: contested(store))
    claim.close()
    broker.members.clear()
    store.claim(GROUP, broker, mirror_every=None).close()
    after = store.claim(GROUP, broker, mirror_every=None)
    assert store.offsets(GROUP)[P0].contested
    stamp = Stamp(store.database.store_id(), after.token.epoch, digest(GROUP))
    broker.commit(GROUP, {P0: CommittedOffset(60, stamp.text())})
    with pytest.raises(StoreRewound):
        store.claim(GROUP, broker)


@pytest.mark.behaviour("START-27")
def test_a_mirror_that_can_t_read_its_rows_again_does_not_decide(
    store: InMemoryOffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = copying(store, broker)
    failed: list[None] = []
    rows, ask, mirror = of(claim)._rows.read, broker.committed_offsets, of(claim)
    looks = iter([False, True] * 3)

    def sometimes() -> Any:
        if next(looks, True):
            return rows()
        failed.append(None)
        raise errors.StoreUnavailable("no connection")

    def met(kafka_group: str, partitions: Any) -> Any:
        """When it has read its rows, and looks at Kafka."""
        broker.committed_offsets = ask  # type: ignore[method-assign]
        monkeypatch.setattr(mirror._rows, "read", sometimes)
        broker.commit(GROUP, {P0: CommittedOffset(70, Stamp(store.database.store_id(), 2, digest(GROUP)).text())})
        return ask(kafka_group, partitions)

    broker.committed_offsets = met  # type: ignore[method-assign]
    wait_until(lambda: contested(store))
    assert len(failed) == 3
    assert "a copy of this database" in str(mirror.ended)
    assert len(contested(store)) == 1


@pytest.mark.behaviour("MIRROR-7")
def test_members_end_it_for_good_also_when_they_have_left(store: InMemoryOffsetStore, broker: StaticBroker) -> None:
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: broker.commits)
    broker.members.add(GROUP)
    advance(store, claim, P0, 40)
    wait_until(lambda: of(claim).ended)
    broker.members.clear()
    broker.set_committed({P0: 70})
    claim.close()

    assert copied(broker)[P0] == 70
    assert contested(store) == [(None, "another application uses the group 'billing' in Kafka: it has members")]
    with pytest.raises(errors.KafkaGroupContested):
        store.claim(GROUP, broker)


def left_by_fleet(store: OffsetStore, broker: StaticBroker, kafka_group: str = GROUP) -> None:
    """A fleet had the group, and one of its processes is still a member in Kafka."""
    join(store, ClaimRequest(GROUP, broker, ("payments",), StartPolicy(), "refuse", 30.0, kafka_group)).close()
    broker.members.add(GROUP)


@pytest.mark.behaviour("CONS-4", "CONS-14")
@pytest.mark.parametrize("jobs", [0, 1])
def test_a_job_waits_for_the_consumers_before_it_to_leave_kafkas_group_and_then_copies(
    store: InMemoryOffsetStore,
    recorder: Recorder,
    broker: StaticBroker,
    caplog: pytest.LogCaptureFixture,
    jobs: int,
) -> None:
    left_by_fleet(store, broker)
    for _ in range(jobs):  # that end soon after they have fenced the fleet
        store.claim(GROUP, broker, mirror_every=None).close()

    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    advance(store, claim, P0, 40)
    wait_until(lambda: len(recorder.of(MirrorTried, "failed")) > 3)
    assert (of(claim).ended, broker.commits) == (None, [])
    broker.members.clear()
    wait_until(lambda: copied(broker) == {P0: 40, P1: 0, P2: 0})
    claim.close()

    assert of(claim).ended == "the claim was closed"
    assert contested(store) == []
    assert caplog.text.count("consumers that had the group before it was claimed may still be members") == 1
    assert caplog.text.count("are copied to Kafka again") == 1


@pytest.mark.behaviour("MIRROR-7")
def test_members_that_stay_longer_than_a_session_are_another_applications(
    store: InMemoryOffsetStore, recorder: Recorder, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]
    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() + passed[0]})
    monkeypatch.setattr(mirrors, "time", clock)
    left_by_fleet(store, broker)

    store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: len(recorder.of(MirrorTried, "failed")) > 1)
    assert contested(store) == []
    passed[0] = mirrors.LEAVING
    wait_until(lambda: contested(store))

    assert broker.commits == []
    assert contested(store) == [(None, "another application uses the group 'billing' in Kafka: it has members")]


@pytest.mark.behaviour("MIRROR-7")
def test_members_of_a_group_in_kafka_that_the_consumers_did_not_use_are_another_applications(
    store: InMemoryOffsetStore, recorder: Recorder, broker: StaticBroker
) -> None:
    left_by_fleet(store, broker, kafka_group="billing-before")

    claim = store.claim(GROUP, broker, mirror_every=SELDOM)
    wait_until(lambda: contested(store))

    assert of(claim).ended is not None
    assert recorder.of(MirrorTried, "failed") == []


@pytest.mark.behaviour("MIRROR-7")
def test_members_at_the_claim_can_refuse_it_and_nobody_is_fenced(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    first = store.claim(GROUP, broker, mirror_every=None)
    broker.members.add(GROUP)
    policy = StartPolicy(on_members="refuse")

    with pytest.raises(errors.KafkaGroupInUse, match="has members in Kafka"):
        store.claim(GROUP, broker, policy=policy)
    advance(store, first, P0, 10)
    store.claim(GROUP, broker, policy=policy, mirror_every=None)
    store.claim(GROUP, broker, policy=policy, kafka_group="billing-of-its-own")


@pytest.mark.behaviour("MIRROR-7", "START-10")
@pytest.mark.parametrize("on_members", ["warn", "refuse"])
def test_a_broker_that_does_not_tell_of_members_stops_only_who_wants_to_know(
    store: InMemoryOffsetStore, caplog: pytest.LogCaptureFixture, on_members: Any
) -> None:
    class Mute(StaticBroker):
        def has_members(self, group: str) -> bool:
            raise BrokerUnavailable(f"no answer about {group}")

    broker = Mute.with_topics({"payments": 3})
    if on_members == "refuse":
        with pytest.raises(BrokerUnavailable):
            store.claim(GROUP, broker, policy=StartPolicy(on_members=on_members))
        assert store.owner(GROUP) is None
    else:
        store.claim(GROUP, broker, policy=StartPolicy(on_members=on_members))
        assert "has members in Kafka: no answer about billing" in caplog.text


@pytest.mark.behaviour("MIRROR-7")
def test_it_is_recorded_when_the_rows_are_free_again_and_nothing_is_copied_meanwhile(
    store: InMemoryOffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_LOCK_SECONDS", 0.02)
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: copied(broker))
    with store.transaction(claim) as tx:
        plan = tx.lock({P0: OffsetRange(0, 20)})
        broker.set_committed({P1: 70})
        wait_until(lambda: of(claim).ended)
        assert contested(store) == []
        tx.advance({P0: plan[P0].remaining})
    wait_until(lambda: contested(store))
    claim.close()

    assert len(broker.commits) == 1
    assert all(row.contested for row in store.offsets(GROUP).values())


# -- two groups of one store, one group in Kafka


@pytest.mark.behaviour("MIRROR-7", "START-9")
def test_two_groups_of_a_store_do_not_share_a_group_in_kafka(store: InMemoryOffsetStore, broker: StaticBroker) -> None:
    with store.claim(GROUP, broker, kafka_group="shared", mirror_every=SELDOM) as claim:
        advance(store, claim, P0, 40)

    with pytest.raises(errors.KafkaGroupShared, match="another group of this store") as caught:
        store.claim("invoicing", broker, kafka_group="shared", policy=StartPolicy(on_rewound="stored"))
    assert "kafka_group of its own" in caught.value.next_step
    assert "database" not in caught.value.next_step
    assert store.owner("invoicing") is None


@pytest.mark.behaviour("MIRROR-7", "OPS-3")
def test_a_renamed_group_keeps_its_group_in_kafka_and_its_old_copies_there_do_not_count(
    renamable: OffsetStore, broker: StaticBroker
) -> None:
    with renamable.claim(GROUP, broker, kafka_group="kept", mirror_every=SELDOM) as claim:
        advance(renamable, claim, P0, 40)
    renamable.rename_group(GROUP, "invoicing", reason="its new name")

    kept: dict[str, Any] = {"group": "invoicing", "kafka_group": "kept"}
    assert [starts(renamable, broker, **kept)[P0].reason for _ in range(2)] == [Reason.PINNED] * 2
    with renamable.claim("invoicing", broker, kafka_group="kept", mirror_every=SELDOM) as claim:
        advance(renamable, claim, P0, 50)
    assert copied(broker)[P0] == 50
    stamp = Stamp.of(broker.current.committed[P0])
    assert stamp is not None
    assert stamp.group == digest("invoicing")
    assert starts(renamable, broker, **kept)[P0].reason is Reason.STORED


@pytest.mark.behaviour("OPS-3")
@pytest.mark.parametrize("on_rewound", ["fail", "stored", "kafka"])
def test_a_start_by_the_old_name_is_told_the_new_one_although_kafka_has_the_old_copies(
    renamable: OffsetStore, broker: StaticBroker, on_rewound: Any
) -> None:
    with renamable.claim(GROUP, broker, mirror_every=SELDOM) as claim:
        advance(renamable, claim, P0, 40)
    assert copied(broker)[P0] == 40
    renamable.rename_group(GROUP, "invoicing", reason="its new name")

    with pytest.raises(errors.GroupRenamed, match="invoicing"):
        renamable.claim(GROUP, broker, policy=StartPolicy(on_rewound=on_rewound))
    [owner] = [row for row in renamable.groups() if row.group == GROUP]
    assert owner.owner.state == "ended"  # the refused start alerts nobody


@pytest.mark.behaviour("MIRROR-7")
def test_a_new_name_does_not_decide_about_another_application(renamable: OffsetStore, broker: StaticBroker) -> None:
    with renamable.claim(GROUP, broker, kafka_group="kept", mirror_every=SELDOM):
        broker.set_committed({P0: 70})
    renamable.rename_group(GROUP, "invoicing", reason="its new name")

    with pytest.raises(errors.KafkaGroupContested):
        renamable.claim("invoicing", broker, kafka_group="kept")


@pytest.mark.behaviour("START-21")
def test_a_pin_whose_row_is_locked_comes_off_later(
    store: InMemoryOffsetStore, recorder: Recorder, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_LOCK_SECONDS", 0.02)
    store.claim(GROUP, broker, mirror_every=None).close()
    store.reset(GROUP, {P1: 10}, reason="again")
    broker.commit_error = BrokerUnavailable("no answer")
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    with store.transaction(claim) as tx:
        plan = tx.lock({P1: OffsetRange(10, 20)})
        broker.commit_error = None  # not before: the pin would come off
        wait_until(lambda: broker.commits)
        success = len(recorder.of(MirrorTried, "done"))
        wait_until(lambda: len(recorder.of(MirrorTried, "done")) > success)
        assert store.offsets(GROUP)[P1].pinned
        tx.advance({P1: plan[P1].remaining})
    wait_until(lambda: not store.offsets(GROUP)[P1].pinned)
    assert store.offsets(GROUP)[P1].next_offset == 20


@pytest.mark.behaviour("MIRROR-7", "START-21")
def test_a_commit_that_is_younger_than_a_pin_is_not_overwritten_by_the_next_start(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    store.claim(GROUP, broker, mirror_every=None).close()
    store.reset(GROUP, {P0: 10}, reason="again")
    with store.claim(GROUP, broker, mirror_every=SELDOM):
        broker.set_committed({P0: 70})

    with pytest.raises(errors.KafkaGroupContested):
        store.claim(GROUP, broker)
    assert copied(broker) == {P0: 70}


@pytest.mark.behaviour("MIRROR-7")
def test_what_another_application_commits_beside_the_consumers_that_leave_is_not_overwritten(
    store: InMemoryOffsetStore, recorder: Recorder, broker: StaticBroker
) -> None:
    left_by_fleet(store, broker)
    claim = store.claim(GROUP, broker, mirror_every=OFTEN)
    wait_until(lambda: recorder.of(MirrorTried, "failed"))

    broker.set_committed({P1: 70})
    wait_until(lambda: of(claim).ended)
    broker.members.clear()
    claim.close()

    assert copied(broker) == {P1: 70}
    assert [tp for tp, _ in contested(store)] == [P1]


@pytest.mark.behaviour("MIRROR-7")
def test_of_two_jobs_that_share_a_group_in_kafka_neither_overwrites_the_other(
    store: InMemoryOffsetStore, broker: StaticBroker
) -> None:
    one = store.claim(GROUP, broker, kafka_group="shared", mirror_every=SELDOM)
    other = store.claim("invoicing", broker, kafka_group="shared", mirror_every=SELDOM)
    advance(store, one, P0, 40)
    one.close()
    other.close()

    assert [{Stamp.of(copy) for copy in copies.values()} for _, copies in broker.commits] == [
        {Stamp(store.database.store_id(), one.token.epoch, digest(GROUP))}
    ]
    assert "another application uses group 'shared'" in str(of(other).ended)
    with pytest.raises(errors.KafkaGroupShared):
        store.claim("invoicing", broker, kafka_group="shared")
    store.claim(GROUP, broker, kafka_group="shared")
