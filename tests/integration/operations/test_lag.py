"""How far groups are behind: with a broker that is told what to say."""

from __future__ import annotations

import time
from collections import UserDict
from collections.abc import Iterator, ValuesView
from dataclasses import replace

import pytest

from offsetstore import OffsetStore, StoredOffset, TopicPartition
from offsetstore.errors import BrokerRefused, BrokerUnavailable, TopicMissing
from offsetstore.operations.group_status import LagLimit, judge_group, judge_lag
from offsetstore.operations.lag import PartitionLag, TopicLag
from offsetstore.protocol.snapshot import KafkaSnapshot
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import advance

P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
R0 = TopicPartition("refunds", 0)
HOUR = 3600


@pytest.fixture
def broker() -> StaticBroker:
    """Ten records in each partition, one an hour, the newest an hour old."""
    broker = StaticBroker.with_topics({"payments": 3, "refunds": 1}, end=10)
    now = int(time.time() * 1000)
    for tp in (P0, P1, P2, R0):
        broker.records[tp] = {offset: now - (10 - offset) * HOUR * 1000 for offset in range(10)}
    return broker


@pytest.fixture
def store(offsetstore_database: str, broker: StaticBroker) -> Iterator[OffsetStore]:
    """Of `billing`, 4 and 10 are stored and a third is not; of `refunds` 7."""
    with OffsetStore.connect(offsetstore_database) as store:
        give(store, "billing", broker, {P0: 4, P1: 10, R0: 7})
        yield store


def give(store: OffsetStore, group: str, broker: StaticBroker, offsets: dict[TopicPartition, int]) -> None:
    """Let a job process the partitions up to these offsets."""
    with store.claim(group, topics=sorted({tp.topic for tp in offsets}), mirror_every=None) as claim:
        advance(store, claim, offsets)


def hours(partition: PartitionLag | TopicLag) -> float | None:
    return None if partition.seconds is None else partition.seconds / HOUR


@pytest.mark.behaviour("OPS-12")
def test_it_is_told_in_records_and_in_time_for_each_partition_topic_and_group(
    store: OffsetStore, broker: StaticBroker
) -> None:
    found = store.lag(None, broker)
    group = found.groups["billing"]
    payments, refunds = group.topics["payments"], group.topics["refunds"]
    assert [one.records for one in payments.partitions.values()] == [6, 0, None]
    assert hours(payments.partitions[0]) == pytest.approx(6, rel=0.02)
    assert (payments.partitions[1].seconds, payments.partitions[2].seconds) == (0, None)
    assert (payments.records, refunds.records, group.records) == (6, 3, 9)
    assert payments.seconds == group.seconds == payments.partitions[0].seconds
    assert hours(refunds.partitions[0]) == pytest.approx(3, rel=0.02)
    assert (payments.without_offset, refunds.without_offset) == (1, 0)
    assert (payments.headroom, payments.is_bound, found.broker_error) == (4, False, None)
    assert group.owner == store.owner("billing")


@pytest.mark.behaviour("OPS-16")
def test_a_stored_offset_beyond_the_end_of_the_log_is_never_lag_0(store: OffsetStore, broker: StaticBroker) -> None:
    broker.set_log(P1, 0, 8)
    group = store.lag(None, broker).groups["billing"]
    short = group.topics["payments"].partitions[1]
    assert (short.records, short.seconds, short.headroom, short.beyond_end) == (None, None, None, 2)
    assert (group.topics["payments"].records, group.is_part, group.beyond_end) == (None, True, 2)
    assert judge_lag(group, LagLimit(records=1000)) == ("lag-unknown",)
    assert judge_group(store.group_state("billing"), group) == ("no-live-job", "log-lost-records")


@pytest.mark.behaviour("OPS-16")
def test_a_group_whose_log_lost_records_and_has_grown_again_is_not_well(
    store: OffsetStore, broker: StaticBroker
) -> None:
    claim = store.claim("billing", topics=["payments"], mirror_every=None)
    assert judge_group(store.group_state("billing")) == ()
    session = store.database.begin(name="test")
    session.write_suspects("billing", claim.token, {P0: "the log ended at 3, below the stored offset 4"})
    session.commit()
    group = store.lag(None, broker).groups["billing"]
    assert (group.topics["payments"].partitions[0].records, group.beyond_end) == (6, 0)
    assert judge_group(store.group_state("billing"), group) == ("log-lost-records",)


@pytest.mark.behaviour("OPS-12")
def test_groups_and_partitions_share_the_rounds_and_an_idle_group_asks_for_no_times(
    store: OffsetStore, broker: StaticBroker
) -> None:
    give(store, "idle", broker, {P0: 10})
    [(name, idle)] = store.lag(["idle", "nobody"], broker).groups.items()
    assert (name, idle.records, idle.seconds, idle.topics["payments"].headroom) == ("idle", 0, 0, None)
    assert broker.lookups == 0
    store.lag(None, broker)
    alone, broker.lookups = broker.lookups, 0
    for number in range(5):
        give(store, f"copy-{number}", broker, {P0: 4 + number, P1: 2})
    found = store.lag(None, broker).groups
    behind = [hours(found[f"copy-{number}"].topics["payments"].partitions[0]) for number in range(5)]
    assert [round(one or 0) for one in behind] == [6, 5, 4, 3, 2]
    assert broker.lookups <= alone + 3


@pytest.mark.behaviour("OPS-12")
def test_where_kafkas_answers_do_not_tell_a_few_records_are_read(store: OffsetStore, broker: StaticBroker) -> None:
    del broker.records[P0][4], broker.records[P0][5]  # compacted: the next record is the one at 6
    partition = store.lag(None, broker).groups["billing"].topics["payments"].partitions[0]
    assert (hours(partition), partition.is_bound) == (pytest.approx(4, rel=0.02), False)

    broker.may_read = False
    topic = store.lag(None, broker).groups["billing"].topics["payments"]
    assert (hours(topic.partitions[0]), topic.is_bound) == (pytest.approx(7, rel=0.02), True), "as old as the one read"

    broker.may_read = True
    broker.records[P0] = {offset: at for offset, at in broker.records[P0].items() if offset < 4}
    nothing = store.lag(None, broker).groups["billing"].topics["payments"].partitions[0]
    assert (nothing.records, nothing.seconds) == (6, 0), "no record is unread: compaction has removed them"


def test_the_store_is_read_before_kafka_so_that_a_job_in_between_does_not_make_it_too_small(
    store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = broker.snapshot

    def meanwhile(groups: dict[str, list[str]]) -> KafkaSnapshot:
        store.reset("billing", {R0: 9}, reason="meanwhile")
        return snapshot(groups)

    monkeypatch.setattr(broker, "snapshot", meanwhile)
    assert store.lag(None, broker).groups["billing"].topics["refunds"].records == 3


def test_no_more_than_twenty_records_are_read(
    offsetstore_database: str, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = int(time.time() * 1000)
    many = [TopicPartition("events", number) for number in range(30)]
    for tp in many:
        broker.set_log(tp, 0, 10)
        broker.records[tp] = {3: now - (100 - tp.partition) * HOUR * 1000, 9: now - HOUR * 1000}
    asked: list[dict[TopicPartition, int]] = []

    def read(wanted: dict[TopicPartition, int]) -> dict[TopicPartition, None]:
        asked.append(wanted)
        return {}

    monkeypatch.setattr(broker, "read_records", read)
    with OffsetStore.connect(offsetstore_database) as store:
        give(store, "billing", broker, dict.fromkeys(many, 6))
        store.lag(None, broker)
    assert asked == [dict.fromkeys(many[:20], 6)], "those that may be the oldest"


def test_a_topic_or_group_without_an_answer_leaves_the_others_alone(store: OffsetStore, broker: StaticBroker) -> None:
    give(store, "audit", broker, {R0: 2, TopicPartition("gone", 0): 1})
    broker.unanswered["audit"] = BrokerRefused("no DESCRIBE")
    found = store.lag(None, broker)
    audit = found.groups["audit"]
    assert isinstance(audit.topics["gone"].error, TopicMissing)
    assert (audit.topics["gone"].records, audit.topics["gone"].seconds) == (None, None)
    assert isinstance(audit.topics["gone"].partitions[0].stored, StoredOffset)
    assert (audit.records, audit.mirror_lag, type(audit.kafka.error)) == (8, None, BrokerRefused)
    assert found.groups["billing"].records == 9
    assert found.broker_error is None


def test_without_kafka_what_is_stored_is_there_and_one_that_goes_away_meanwhile_costs_the_times_alone(
    store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = broker.error = BrokerUnavailable("down")
    found = store.lag(None, broker)
    assert (found.kafka, found.broker_error) == (None, down)
    group = found.groups["billing"]
    assert (group.records, group.seconds, group.mirror_lag, group.topics["payments"].headroom) == (None,) * 4
    assert [*group.topics["payments"].partitions] == [0, 1]

    def fail(_asked: object) -> None:
        raise down

    broker.error = None
    monkeypatch.setattr(broker, "first_records", fail)
    found = store.lag(None, broker)
    assert (found.groups["billing"].records, found.groups["billing"].seconds) == (9, None)
    assert found.groups["billing"].topics["refunds"].seconds is None
    assert found.broker_error is down


def test_copies_are_compared_under_the_groups_name_in_kafka_and_a_missing_one_is_behind(
    store: OffsetStore, broker: StaticBroker
) -> None:
    def mirror_lag(group: str = "billing") -> int | None:
        return store.lag(None, broker).groups[group].mirror_lag

    assert mirror_lag() is None
    give(store, "part", broker, {P0: 1, P1: 8})
    broker.set_committed({P0: 1})
    assert mirror_lag("part") == 8
    broker.unanswered["payments"] = BrokerUnavailable("payments has no leader")
    assert mirror_lag("part") == 0, "nothing is known of its log"

    broker.unanswered.clear()
    broker.set_committed({P0: 1, P1: 12, P2: 3, R0: 7})
    assert mirror_lag() == 3, "ahead of the store does not make up for it"
    broker.members = {"spark-billing"}
    other = store.lag(None, broker, kafka_groups={"billing": "spark-billing"}).groups["billing"]
    assert (other.mirror_lag, other.kafka.has_members) == (3, True)
    assert store.lag(None, broker).groups["billing"].kafka.has_members is False


@pytest.mark.behaviour("DASH-1")
def test_a_sample_is_of_what_is_stored_and_has_no_more_than_is_known(store: OffsetStore, broker: StaticBroker) -> None:
    store.reset("billing", {P0: 4}, reason="ticket 17")  # no run has this epoch
    lag = store.lag(None, broker)
    sample = lag.samples()["billing"]
    assert (sample.at, sample.stored, sample.log_end, sample.lag, sample.headroom) == (lag.store.at, 21, 30, 9, 4)
    assert sample.lag_seconds == lag.groups["billing"].seconds
    assert (sample.batches, sample.batch_seconds, sample.rows, sample.memory) == (None,) * 4
    assert sample.epoch == lag.groups["billing"].owner.token.epoch

    broker.unanswered["refunds"] = BrokerUnavailable("refunds has no leader")
    partial = store.lag(None, broker).samples()["billing"]
    assert (partial.stored, partial.log_end, partial.lag, partial.headroom) == (21, None, None, None)

    store.delete_group("billing", reason="ticket 18")
    assert store.lag(None, broker).samples() == {}


class Walked(UserDict[int, PartitionLag]):
    """Partitions, and how often they were gone through."""

    times = 0

    def values(self) -> ValuesView[PartitionLag]:
        self.times += 1
        return super().values()


@pytest.mark.behaviour("DASH-1")
def test_a_bound_among_thousands_of_partitions_is_found_by_going_through_them_once_or_twice(
    store: OffsetStore, broker: StaticBroker
) -> None:
    one = store.lag(["billing"], broker).groups["billing"].topics["payments"].partitions[0]
    parts = Walked({number: replace(one, seconds=float(number), is_bound=True) for number in range(50)})
    assert TopicLag(parts).is_bound
    assert parts.times <= 2
