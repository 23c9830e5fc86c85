from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from offsetstore import OffsetStore, StartPolicy, TopicPartition
from offsetstore.store import heartbeat
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import join
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import Here, advance

P0 = TopicPartition("payments", 0)


def test_it_holds_the_group_and_each_partition_also_as_json(
    here: Here, billing: str, payments: str, servers: str
) -> None:
    head, *table, lag = here("status", "-g", billing, brokers=servers).splitlines()
    assert re.fullmatch(
        rf"Group {billing}: epoch 1 of \S+@\S+:\d+, claimed \d+s ago, live, last heartbeat \d+s ago", head
    )
    assert [line.split()[:-1] for line in table] == [
        ["partition", "stored", "committed", "end", "lag", "epoch"],
        [f"{payments}-0", "4", "2", "10", "6", "1"],
        [f"{payments}-1", "5", "8", "10", "5", "1"],
        [f"{payments}-2", "0", "-", "10", "10", "1"],
    ]
    assert all(re.fullmatch(r"\d+s", line.split()[-1]) for line in table[1:])
    assert lag == "Lag 21 in 3 partitions."

    found = here.json("status", "-g", billing, brokers=servers)
    owner, first = found.pop("owner"), found.pop("partitions")[0]
    letters = {"dead": 0, "requested": 0, "job_replays": None}
    assert found.pop("members") == []
    nothing = {"paused": None, "outbox": None, "relay": None}
    assert found == {
        "group": billing,
        "database": "home",
        "dead_letters": letters,
        "lag": 21,
        "state": "live",
        **nothing,
    }
    assert (owner["live"], owner["state"]) == (True, "live")
    others = {"name", "epoch", "claim_id", "claimed_at", "heartbeat_age_seconds"}
    assert owner.keys() == others | {"live", "state"}
    assert datetime.fromisoformat(first.pop("updated_at")).tzinfo is not None
    assert 0 <= first.pop("age_seconds") < 60
    offsets = {"stored": 4, "committed": 2, "beginning": 0, "end": 10, "lag": 6, "beyond_end": 0, "headroom": 4}
    marks = {"pinned": False, "contested": False, "suspect": None, "error": None}
    claim = {"epoch": 1, "claim_id": owner["claim_id"]}
    assert first == {"topic": payments, "partition": 0, **offsets, **marks, **claim}


@pytest.mark.behaviour("OPS-2")
def test_what_was_decided_is_told_and_a_heartbeat_of_before_the_clock_stepped_back_is_no_sign_of_life(
    here: Here, offsetstore_database: str, offsetstore_group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = ("status", "-g", offsetstore_group)
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)
    with OffsetStore.connect(offsetstore_database) as store:
        with store.claim(offsetstore_group, topics=["payments"]) as claim:
            advance(store, claim, {P0: 50})
            with psycopg.connect(offsetstore_database) as connection:
                connection.execute("UPDATE heartbeats SET beat_at = clock_timestamp() + interval '1 hour'")
            told = here(*status).splitlines()[0]
            assert re.search(r", silent, last heartbeat 59m ahead of the database's clock$", told), told
            assert here.json(*status)["owner"]["live"] is False
        assert ", ended" in here(*status).splitlines()[0]
        store.reset(offsetstore_group, {P0: 40}, reason="ticket 17", actor="alice")
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        pause = store.pause(offsetstore_group, until=until, reason="ticket 17").after
        assert pause is not None
        head, told, _, row = here(*status).splitlines()
        assert re.search(r"epoch 2, reset by alice \d+s ago; no job has claimed it since$", head)
        assert re.fullmatch(rf"The group is paused since \S+ until {re.escape(until.isoformat())}: ticket 17\.", told)
        assert "40 (pinned)" in row
        found = here.json(*status)
        assert found["paused"] == {"at": pause.at.isoformat(), "until": until.isoformat(), "reason": "ticket 17"}
        assert (found["state"], found["owner"]["live"]) == ("paused", False)
        store.rename_group(offsetstore_group, f"{offsetstore_group}-eu", reason="ticket 18", actor="alice")
    assert "epoch 3, renamed by alice" in here("status", "-g", f"{offsetstore_group}-eu")


@pytest.mark.behaviour("CONS-11")
def test_the_members_of_a_fleet_are_listed_with_their_partitions(
    here: Here, offsetstore_database: str, offsetstore_group: str
) -> None:
    def partitions(topic: str, *numbers: int) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in numbers]

    topics = ("orders", "payments")
    broker = StaticBroker.with_topics(dict.fromkeys(topics, 4), end=10)
    request = ClaimRequest(offsetstore_group, broker, topics, StartPolicy(), "refuse", 5.0, offsetstore_group)
    with OffsetStore.connect(offsetstore_database) as store:
        first, second, third = (join(store, request) for _ in range(3))
        with first, second, third:
            first.assign([*partitions("payments", 0, 1, 3), *partitions("orders", 2)])
            second.assign(partitions("payments", 2))
            lines = here("status", "-g", offsetstore_group).splitlines()
            found = here.json("status", "-g", offsetstore_group)
    assert re.fullmatch(
        rf"Group {offsetstore_group}: epoch 1 of a fleet, 3 members, claimed \d+s ago, live, last heartbeat \d+s ago",
        lines[0],
    )
    table = [line.split() for line in lines[1:5]]
    assert table[0] == ["member", "state", "heartbeat", "count", "partitions"]
    assert [[line[1], *line[3:]] for line in table[1:]] == [
        ["live", "4", "orders", "2,", "payments", "0-1", "3"],
        ["live", "1", "payments", "2"],
        ["live", "0", "-"],
    ]
    assert [one["member_id"] for one in found["members"]] == [str(one.token.claim_id) for one in (first, second, third)]
    one = found["members"][1]
    assert datetime.fromisoformat(one.pop("joined_at")).tzinfo is not None
    assert 0 <= one.pop("heartbeat_age_seconds") < 60
    [row] = [row for row in found["partitions"] if (row["topic"], row["partition"]) == ("payments", 2)]
    taken = [{"topic": "payments", "partition": 2}]
    assert one == {
        "name": second.owner,
        "member_id": row["claim_id"],
        "live": True,
        "state": "live",
        "partitions": taken,
    }
