"""``offsetstore consume``: processes of a consumer that share a topic, on PostgreSQL and Kafka."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from offsetstore import OffsetStore
from offsetstore.cli import consume_process
from offsetstore.cli.commands import cli
from offsetstore.cli.consume_process import rejoins
from offsetstore.consumer.consumer import Membership
from offsetstore.errors import StoreUnavailable
from offsetstore.monitoring.health import Code, Limits, judge
from offsetstore.monitoring.supervision import FactCollector, RunningClock
from offsetstore.store.fleet import join
from tests.integration.conftest import Query
from tests.integration.consumer.conftest import Cluster, numbers, owners
from tests.support.background import in_background
from tests.support.consumer_job import consumer_of
from tests.support.consuming import SECONDS, Consuming, soon

pytestmark = pytest.mark.usefixtures("results")


@pytest.fixture
def consumes(cluster: Cluster, offsetstore_database: str, tmp_path: Path) -> Callable[..., Consuming]:
    """Start the command, with more for CONSUMER_APP, and with what Python does before."""

    def start(*arguments: str, given: Mapping[str, Any] | None = None, before: str = "") -> Consuming:
        kafka = {"session.timeout.ms": 2500}  # those that are killed are missed soon
        app = {"bootstrap": cluster.bootstrap, "topic": cluster.topic, "kafka": kafka, **(given or {})}
        return Consuming(*arguments, url=offsetstore_database, given=app, log=tmp_path / "log", before=before)

    return start


def all_are_there(query: Query, cluster: Cluster) -> None:
    soon(lambda: query("SELECT count(*) FROM results")[0][0] >= cluster.count)
    assert numbers(query) == list(range(cluster.count))


@pytest.mark.behaviour("CONS-4", "CONS-8", "CONS-11", "OPS-25")
def test_processes_share_the_partitions_one_that_ends_is_replaced_and_a_claim_ends_all(
    store: OffsetStore, cluster: Cluster, query: Query, consumes: Callable[..., Consuming]
) -> None:
    cluster.produce(200)
    with consumes("--processes", "2", "--static", "--port", "0") as consuming:
        soon(consuming.is_ready)
        soon(lambda: owners(query) == 2)
        all_are_there(query, cluster)
        killed, other = consuming.children
        os.kill(killed, signal.SIGKILL)
        soon(lambda: not consuming.is_ready())
        assert consuming.get("/livez")[0] == 200
        cluster.produce(200)
        soon(consuming.is_ready)
        all_are_there(query, cluster)
        members = consuming.children
        assert killed not in members
        assert other in members
        metrics = consuming.get("/metrics")[1]
        assert metrics.count("# TYPE offsetstore_offsets_total counter") == 1
        assert {f'process="{number}"' in metrics for number in range(2)} == {True}
        assert "process 0 has ended with SIGKILL (someone killed it, or the kernel did for want of" in consuming.said
        assert "Error" not in consuming.said
        with store.claim("billing", topics=[cluster.topic]) as claim:
            assert claim.fenced is not None
            assert all(f":{pid}" in claim.fenced for pid in members)
            assert consuming.process.wait(SECONDS) == 6
            assert f"claimed by {claim.owner}, {claim.token}, since " in consuming.said
            assert "has ended with exit code 6, and a restart does not help: ending" in consuming.said


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.behaviour("CONS-11", "CONS-12")
def test_a_process_rejoins_its_own_fleet_and_no_other(
    store: OffsetStore, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = consumer_of(store, cluster.bootstrap, cluster.topic)
    assert not rejoins(consumer)
    with join(store, consumer.request) as member:
        consumer.fleet_name = member.fleet_name
        assert rejoins(consumer)
    with join(store, replace(consumer.request, kafka_group="other")):
        assert not rejoins(consumer)
    with join(store, consumer.request):
        assert rejoins(consumer)
    with store.claim("billing", topics=[cluster.topic]):
        assert not rejoins(consumer)

    def away(_: str) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(consume_process, "_PATIENCE", 0.1)
    monkeypatch.setattr(consume_process, "_EVERY", 0.05)
    monkeypatch.setattr(store, "owner", away)
    assert rejoins(consumer)  # the next one finds out
    consumer.request = replace(consumer.request, takeover="fence")
    assert not rejoins(consumer)


@pytest.mark.behaviour("CONS-7", "OPS-4")
def test_a_consumer_is_ready_when_it_polls_and_not_live_when_it_no_longer_does(
    offsetstore_database: str, cluster: Cluster, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, limits = RunningClock(), Limits(jvm=0.3, polling=1.5, starting=60.0)
    facts = FactCollector(clock, limits)

    def codes() -> tuple[Code, ...]:
        return judge(facts.facts(), limits, clock()).codes

    assert codes() == (Code.STARTING,)
    with OffsetStore.connect(offsetstore_database, observers=[facts]) as store:
        consumer = consumer_of(store, cluster.bootstrap, cluster.topic)
        ended = in_background(consumer.run)
        soon(lambda: ended.done() or codes() == ())  # there are no records yet
        with monkeypatch.context() as patch:
            blocked = Blocked()
            patch.setattr(Membership, "_turn", blocked.wait)
            soon(lambda: codes() == (Code.POLLING_STALLED,))
            blocked.is_over = True
        soon(lambda: codes() == ())
        consumer.stop()
        ended.result(timeout=SECONDS)


class Blocked:
    is_over = False

    def wait(self) -> None:
        soon(lambda: self.is_over)


@pytest.mark.behaviour("CONS-16", "CONS-21")
def test_a_start_that_can_not_succeed_ends_with_its_code(
    store: OffsetStore, cluster: Cluster, consumes: Callable[..., Consuming]
) -> None:
    cluster.produce(40)
    soon_given_up = "from offsetstore.monitoring import processes; processes._TRIES = 2; "
    with consumes(given={"column": "recrod"}, before=soon_given_up) as consuming:
        assert consuming.process.wait(SECONDS) == 5
    ends = r"exit code 5, again: .+, 2 times in a row, and a restart does not help: ending"
    assert re.search(ends, consuming.said)
    owner = store.owner("billing")
    assert {run.state for run in store.runs("billing")} == {"failed"}
    assert (owner and owner.state) == "failed"


@pytest.mark.behaviour("CONS-8", "CONS-11", "CONS-17")
def test_a_process_that_dies_of_a_record_names_it_with_the_command_that_skips_it_and_none_outlives_its_supervisor(
    cluster: Cluster, query: Query, offsetstore_database: str, consumes: Callable[..., Consuming]
) -> None:
    deadly, (tp, *_), env = 20, cluster.tps, {"OFFSETSTORE_URL": offsetstore_database}
    given = {"deadly": deadly, "how": "handler"}
    cluster.produce(40)
    with consumes(given=given) as consuming:
        soon(lambda: "To skip only this record" in consuming.said)
        # The others are handled nevertheless.
        soon(lambda: numbers(query) == [number for number in range(40) if number % 4 or number < deadly])
        consuming.end()
        named = next(line for line in consuming.said.splitlines() if "To skip only this record" in line)
    assert "has ended with SIGSEGV (your function or a library crashed in C) while it" in named
    assert f" while it handled {tp} [5, 6), as did 2 before it; the next one starts in" in named
    words = shlex.split(named.partition(": offsetstore ")[2])
    query("UPDATE group_members SET beat_at = beat_at - interval '1 hour'")  # the dead ones no longer count as live
    soon(lambda: CliRunner(env=env).invoke(cli, words).exit_code == 0)  # once Kafka, too, has missed them
    met = json.loads(CliRunner(env=env).invoke(cli, ["errors", "-g", "billing", "--format", "json"]).output)["errors"]
    died = [one for one in met if one["error_class"] == "ProcessDied"]
    assert len(died) >= 2
    assert all(f"{tp} [" in one["ranges"] and "SIGSEGV" in one["text"] for one in died)

    with consumes(given=given) as again:
        cluster.produce(40)
        soon(lambda: numbers(query) == [number for number in range(80) if number != deadly])
        assert "SIGSEGV" not in again.said
        # As one does that founds the fleet anew, since where a partition starts has to be decided.
        query(
            "WITH fresh AS MATERIALIZED (SELECT gen_random_uuid() AS id) "
            "UPDATE consumer_groups SET epoch = epoch + 1, claim_id = fresh.id, fleet_id = fresh.id FROM fresh"
        )
        soon(lambda: "process 0 has ended with exit code 6; the next one starts in 1 s" in again.said)
        cluster.produce(40)
        soon(lambda: numbers(query) == [number for number in range(120) if number != deadly])
        [child] = again.children
        again.process.kill()
        soon(lambda: has_ended(child))
