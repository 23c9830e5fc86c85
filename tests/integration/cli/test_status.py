from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from offsetstore import OffsetRange, OffsetStore, StartPolicy, TopicPartition
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.store import heartbeat
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import join
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import Run


def test_it_holds_the_group_and_each_partition_also_as_json(
    run: Run, billing: str, payments: str, offsetstore_database: str, offsetstore_kafka: KafkaBroker
) -> None:
    result = run("status", "-g", billing, url=offsetstore_database, brokers=offsetstore_kafka.bootstrap_servers)
    assert result.exit_code == 0, result.output
    head, *table, lag = result.stdout.splitlines()
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

    arguments = ["status", "-g", billing, "--format", "json"]
    result = run(*arguments, url=offsetstore_database, brokers=offsetstore_kafka.bootstrap_servers)
    found: dict[str, Any] = json.loads(result.stdout)
    of_group = {"group", "owner", "members", "paused", "database", "dead_letters", "lag", "partitions"}
    assert found.keys() == of_group | {"outbox", "relay"}
    assert found["members"] == []
    assert found["database"] == "home"
    assert found["owner"].pop("ending") is None
    of_owner = {"name", "epoch", "claim_id", "claimed_at", "heartbeat_age_seconds", "live", "state"}
    assert found["owner"].keys() == of_owner
    assert (found["owner"]["live"], found["owner"]["state"]) == (True, "live")
    first = found["partitions"][0]
    assert datetime.fromisoformat(first.pop("updated_at")).tzinfo is not None
    assert 0 <= first.pop("age_seconds") < 60
    assert first == {
        "topic": payments,
        "partition": 0,
        "stored": 4,
        "committed": 2,
        "beginning": 0,
        "end": 10,
        "lag": 6,
        "epoch": 1,
        "claim_id": found["owner"]["claim_id"],
        "pinned": False,
        "contested": False,
        "beyond_end": 0,
        "headroom": 4,
        "suspect": None,
        "error": None,
    }


def test_a_heartbeat_of_before_the_clock_stepped_back_is_no_sign_of_life(
    run: Run, offsetstore_database: str, offsetstore_group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)
    with OffsetStore.connect(offsetstore_database) as store, psycopg.connect(offsetstore_database) as connection:
        store.claim(offsetstore_group, topics=["payments"])
        connection.execute("UPDATE heartbeats SET beat_at = clock_timestamp() + interval '1 hour'")
        connection.commit()
        told = run("status", "-g", offsetstore_group, url=offsetstore_database).stdout.splitlines()[0]
        found = json.loads(run("status", "-g", offsetstore_group, "--format", "json", url=offsetstore_database).stdout)
    assert re.search(r", silent, last heartbeat 59m ahead of the database's clock$", told), told
    assert found["owner"]["live"] is False


@pytest.mark.behaviour("OPS-2")
def test_what_was_decided_is_told(run: Run, offsetstore_database: str, offsetstore_group: str) -> None:
    p0 = TopicPartition("payments", 0)
    with OffsetStore.connect(offsetstore_database) as store:
        with store.claim(offsetstore_group, topics=["payments"]) as claim, store.transaction(claim) as tx:
            tx.advance({p0: tx.lock({p0: OffsetRange(0, 50)})[p0].remaining})
        assert ", ended" in run("status", "-g", offsetstore_group, url=offsetstore_database).stdout.splitlines()[0]
        store.reset(offsetstore_group, {p0: 40}, reason="ticket 17", actor="alice")
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        pause = store.pause(offsetstore_group, until=until, reason="ticket 17").after
        assert pause is not None
        head, told, _, row = run("status", "-g", offsetstore_group, url=offsetstore_database).stdout.splitlines()
        assert re.search(r"epoch 2, reset by alice \d+s ago; no job has claimed it since$", head)
        assert re.fullmatch(rf"The group is paused since \S+ until {re.escape(until.isoformat())}: ticket 17\.", told)
        assert "40 (pinned)" in row
        found = json.loads(run("status", "-g", offsetstore_group, "--format", "json", url=offsetstore_database).stdout)
        assert found["paused"] == {"at": pause.at.isoformat(), "until": until.isoformat(), "reason": "ticket 17"}
        assert found["owner"]["live"] is False
        store.rename_group(offsetstore_group, f"{offsetstore_group}-eu", reason="ticket 18", actor="alice")
    renamed = run("status", "-g", f"{offsetstore_group}-eu", url=offsetstore_database)
    assert "epoch 3, renamed by alice" in renamed.stdout


@pytest.mark.behaviour("CONS-11")
def test_the_members_of_a_fleet_are_listed_with_their_partitions(
    run: Run, offsetstore_database: str, offsetstore_group: str
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
            lines = run("status", "-g", offsetstore_group, url=offsetstore_database).stdout.splitlines()
            arguments = ["status", "-g", offsetstore_group, "--format", "json"]
            found = json.loads(run(*arguments, url=offsetstore_database).stdout)
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
    assert datetime.fromisoformat(one["joined_at"]).tzinfo is not None
    assert 0 <= one["heartbeat_age_seconds"] < 60
    assert (one["name"], one["live"]) == (second.owner, True)
    assert one["partitions"] == [{"topic": "payments", "partition": 2}]
    [row] = [row for row in found["partitions"] if (row["topic"], row["partition"]) == ("payments", 2)]
    assert row["claim_id"] == one["member_id"]
