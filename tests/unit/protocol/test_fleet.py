from __future__ import annotations

import pytest

from offsetstore.offsets import BrokerView, CommittedOffset, TopicLog, TopicPartition, Watermarks
from offsetstore.protocol.runs import fleet_name, may_share

OURS = fleet_name("cluster", "billing")


def test_a_fleet_is_told_by_its_cluster_and_its_group_in_kafka() -> None:
    names = [fleet_name(cluster, group) for cluster in ("a", "b", "", None) for group in ("a", "b", 'a", "b', "")]

    assert len(set(names)) == len(names)


@pytest.mark.behaviour("CONS-12")
@pytest.mark.parametrize("found", [None, fleet_name("cluster", "other"), fleet_name(None, "billing")])
def test_what_is_no_fleet_of_the_same_group_is_not_shared(found: str | None) -> None:
    assert not may_share(found, OURS, is_live=True)


def test_the_same_fleet_is_shared_while_it_lives_unless_the_policy_decides_where_it_starts() -> None:
    assert may_share(OURS, OURS, is_live=True)
    assert not may_share(OURS, OURS, is_live=False)
    assert not may_share(OURS, OURS, is_live=True, decides=True)


def test_a_view_of_some_partitions_knows_how_many_there_are() -> None:
    ends = {number: Watermarks(0, 9) for number in range(3)}
    committed = {TopicPartition("payments", number): CommittedOffset(4) for number in range(3)}
    view = BrokerView("cluster", {"payments": TopicLog("id", ends), "refunds": TopicLog(None, ends)}, committed)

    cut = view.of([TopicPartition("payments", 1), TopicPartition("payments", 7)])

    log = cut.topics["payments"]
    assert (list(cut.topics), list(log.partitions), log.topic_id) == (["payments"], [1], "id")
    assert [log.has(number) for number in (0, 1, 2, 3)] == [True, True, True, False]
    assert list(cut.committed) == [TopicPartition("payments", 1)]
    assert cut.of([TopicPartition("payments", 1)]) == cut
