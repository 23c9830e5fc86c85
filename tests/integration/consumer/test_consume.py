"""``offsetstore consume``: processes of a consumer that share a topic, on PostgreSQL and Kafka."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from offsetstore import OffsetStore
from offsetstore.cli import consume_process
from offsetstore.cli.commands import cli
from offsetstore.cli.consume_process import Told, load, prepare, rejoins
from offsetstore.consumer import Consumer
from offsetstore.consumer.consumer import Membership
from offsetstore.errors import ConfigurationError, MissingDependency, StoreUnavailable
from offsetstore.monitoring.health import Code, Limits, judge
from offsetstore.monitoring.supervision import FactCollector, RunningClock
from offsetstore.store.fleet import join
from tests.integration.conftest import Query
from tests.integration.consumer.conftest import Cluster, numbers, owners
from tests.support.background import in_background
from tests.support.consumer_job import consumer_of
from tests.support.consuming import APP, SECONDS, Consuming, soon

pytestmark = pytest.mark.usefixtures("results")


@pytest.fixture
def consumes(cluster: Cluster, offsetstore_database: str, tmp_path: Path) -> Callable[..., Consuming]:
    given = {"bootstrap": cluster.bootstrap, "topic": cluster.topic}
    return lambda *arguments: Consuming(*arguments, url=offsetstore_database, given=given, log=tmp_path / "log")


def all_are_there(query: Query, cluster: Cluster) -> None:
    soon(lambda: query("SELECT count(*) FROM results")[0][0] >= cluster.count)
    assert numbers(query) == list(range(cluster.count))


@pytest.mark.behaviour("CONS-8", "CONS-11")
def test_processes_share_the_partitions_one_that_is_killed_or_stopped_is_replaced_and_sigterm_drains_all(
    cluster: Cluster, query: Query, consumes: Callable[..., Consuming]
) -> None:
    cluster.produce(500)
    with consumes("--processes", "2", "--port", "0") as consuming:
        soon(consuming.is_ready)
        soon(lambda: owners(query) == 2)
        all_are_there(query, cluster)
        killed, other = consuming.children
        os.kill(killed, signal.SIGKILL)
        soon(lambda: not consuming.is_ready())
        assert consuming.get("/livez")[0] == 200
        cluster.produce(500)
        soon(consuming.is_ready)
        assert killed not in consuming.children
        assert other in consuming.children
        all_are_there(query, cluster)
        metrics = consuming.get("/metrics")[1]
        assert metrics.count("# TYPE offsetstore_offsets_total counter") == 1
        assert {f'process="{number}"' in metrics for number in range(2)} == {True}
        cluster.produce(40)
        assert consuming.end() == 0
        assert "process 0 has ended with SIGKILL; the next one starts in 1 s" in consuming.said
        assert "ending, within 70 s" in consuming.said
        assert query("SELECT count(*) FROM group_members") == [(1,)]  # that of the killed one
    cluster.produce(10)
    with consumes() as again:
        all_are_there(query, cluster)
        assert again.end() == 0


@pytest.mark.behaviour("CONS-11")
def test_a_static_member_is_replaced_in_its_place(
    cluster: Cluster, query: Query, consumes: Callable[..., Consuming]
) -> None:
    cluster.produce(100)
    with consumes("--processes", "2", "--static", "--port", "0") as consuming:
        soon(consuming.is_ready)
        soon(lambda: owners(query) == 2)
        all_are_there(query, cluster)
        for killed in consuming.children:
            os.kill(killed, signal.SIGKILL)
            soon(lambda: not consuming.is_ready())
            cluster.produce(100)
            soon(consuming.is_ready)
            all_are_there(query, cluster)
        assert consuming.end() == 0
        assert "Error" not in consuming.said


@pytest.mark.behaviour("CONS-8")
def test_processes_whose_supervisor_is_killed_end_by_themselves(
    cluster: Cluster, query: Query, consumes: Callable[..., Consuming]
) -> None:
    cluster.produce(100)
    with consumes() as consuming:
        all_are_there(query, cluster)
        [child] = consuming.children
        consuming.process.kill()
        soon(lambda: has_ended(child))
    soon(lambda: query("SELECT count(*) FROM group_members") == [(0,)])


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.behaviour("CONS-4", "CONS-11")
def test_a_claim_ends_all_and_while_it_lives_none_start(
    store: OffsetStore, cluster: Cluster, query: Query, consumes: Callable[..., Consuming]
) -> None:
    cluster.produce(100)
    with consumes("--processes", "2") as consuming:
        soon(lambda: owners(query) == 2)
        all_are_there(query, cluster)
        with store.claim("billing", topics=[cluster.topic]):
            assert consuming.process.wait(SECONDS) == 6
            assert "has ended with exit code 6, and a restart does not help: ending" in consuming.said
            with consumes("--processes", "2") as refused:
                assert refused.process.wait(SECONDS) == 1
                assert refused.said.count("Error: ") == 1


@pytest.mark.behaviour("CONS-11")
def test_a_process_is_replaced_that_another_one_of_its_fleet_has_fenced(
    cluster: Cluster, query: Query, consumes: Callable[..., Consuming]
) -> None:
    cluster.produce(100)
    with consumes() as consuming:
        all_are_there(query, cluster)
        # As one does that founds the fleet anew, since where a partition starts has to be decided.
        query(
            "WITH fresh AS MATERIALIZED (SELECT gen_random_uuid() AS id) "
            "UPDATE consumer_groups SET epoch = epoch + 1, claim_id = fresh.id, fleet_id = fresh.id FROM fresh"
        )
        soon(lambda: "process 0 has ended with exit code 6; the next one starts in 1 s" in consuming.said)
        cluster.produce(100)
        all_are_there(query, cluster)
        assert consuming.end() == 0


@pytest.mark.behaviour("CONS-12")
def test_a_process_rejoins_its_own_fleet_and_no_other(store: OffsetStore, cluster: Cluster) -> None:
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


@pytest.mark.behaviour("CONS-11")
def test_while_the_database_is_away_a_process_that_was_fenced_leaves_it_to_the_next_to_find_out(
    store: OffsetStore, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: str) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(consume_process, "_PATIENCE", 0.1)
    monkeypatch.setattr(consume_process, "_EVERY", 0.05)
    monkeypatch.setattr(store, "owner", away)
    consumer = consumer_of(store, cluster.bootstrap, cluster.topic)
    assert rejoins(consumer)
    consumer.request = replace(consumer.request, takeover="fence")
    assert not rejoins(consumer)


@pytest.mark.behaviour("CONS-7", "OPS-4")
def test_a_consumer_is_ready_when_it_polls_and_not_live_when_it_no_longer_does(
    offsetstore_database: str, cluster: Cluster, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, limits = RunningClock(), Limits(jvm=0.3, polling=3.0, starting=60.0)
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


@pytest.mark.behaviour("CONS-16")
@pytest.mark.parametrize(("wrong", "code"), [("tables", 3), ("column", 5), ("module", 2)])
def test_a_start_that_can_not_succeed_ends_with_its_code(
    cluster: Cluster, offsetstore_database: str, tmp_path: Path, wrong: str, code: int
) -> None:
    cluster.produce(40)
    url = offsetstore_database
    given = {"bootstrap": cluster.bootstrap, "topic": cluster.topic}
    if wrong == "tables":
        url = f"{url.rpartition('/')[0]}/postgres"
    elif wrong == "column":
        given["column"] = "recrod"
    app = "tests.no_such_app:consumer" if wrong == "module" else APP
    with Consuming("--processes", "2", url=url, given=given, log=tmp_path / "log", app=app) as consuming:
        assert consuming.process.wait(SECONDS) == code
    assert f"exit code {code}, 5 times in a row, and a restart does not help: ending" in consuming.said


@pytest.mark.behaviour("CONS-17")
@pytest.mark.parametrize("how", ["transform", "handler"])
def test_a_record_that_kills_its_process_is_named_with_the_command_that_skips_it(
    cluster: Cluster,
    query: Query,
    offsetstore_database: str,
    tmp_path: Path,
    how: str,
) -> None:
    deadly, (tp, *_), env = 20, cluster.tps, {"OFFSETSTORE_URL": offsetstore_database}
    given = {"bootstrap": cluster.bootstrap, "topic": cluster.topic, "deadly": deadly, "how": how}
    cluster.produce(40)
    with Consuming("--processes", "2", url=offsetstore_database, given=given, log=tmp_path / "log") as consuming:
        soon(lambda: "To skip only this record" in consuming.said)
        # The others are handled nevertheless, whichever process has their partitions.
        soon(lambda: numbers(query) == [number for number in range(40) if number % 4 or number < deadly])
        consuming.end()
        named = next(line for line in consuming.said.splitlines() if "To skip only this record" in line)
    assert f"has ended with SIGSEGV while it handled {tp} [5, 6), as did 2 before it; the next one starts in" in named
    words = shlex.split(named.partition(": offsetstore ")[2])
    soon(lambda: CliRunner(env=env).invoke(cli, words).exit_code == 0)  # once the dead ones don't count as live
    met = json.loads(CliRunner(env=env).invoke(cli, ["errors", "-g", "billing", "--format", "json"]).output)["errors"]
    died = [one for one in met if one["error_class"] == "ProcessDied"]
    assert len(died) >= 2
    assert all(f"{tp} [" in one["ranges"] and "SIGSEGV" in one["text"] for one in died)
    with Consuming(url=offsetstore_database, given=given, log=tmp_path / "log") as again:
        cluster.produce(40)
        soon(lambda: numbers(query) == [number for number in range(80) if number != deadly])
        assert again.end() == 0
    assert "SIGSEGV" not in again.said


@pytest.mark.behaviour("CONS-11")
def test_static_members_have_an_instance_of_their_own(store: OffsetStore) -> None:
    def made(**more: str) -> Consumer:
        return consumer_of(store, "localhost:1", "payments", kafka=more)

    def told(*, count: int, is_static: bool) -> Told:
        return Told("app:consumer", 1, count, is_static=is_static, has_metrics=False)

    static = made()
    prepare(static, told(count=2, is_static=True))
    assert static.kafka["group.instance.id"] == f"{socket.gethostname()}-1"
    dynamic = made()
    prepare(dynamic, told(count=2, is_static=False))
    assert "group.instance.id" not in dynamic.kafka
    own = made(**{"group.instance.id": "mine"})
    prepare(own, told(count=1, is_static=False))
    assert own.kafka["group.instance.id"] == "mine"
    for another in (told(count=2, is_static=False), told(count=1, is_static=True)):
        with pytest.raises(ConfigurationError, match=r"kafka= may not set group\.instance\.id here"):
            prepare(own, another)


@pytest.mark.behaviour("CONS-11", "DX-1")
@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("billing_app", "this is not the name of a function"),
        ("billing app:consumer", "this is not the name of a function"),
        ("billing_app:", "this is not the name of a function"),
        ("no_such_app:consumer", "there is no module no_such_app"),
        ("tests.no_such_app:consumer", "there is no module tests.no_such_app"),
        ("tests.support.consumer_app:consume", "has no function consume"),
        ("tests.support.consumer_app:annotations", "has no function annotations"),
        ("tests.support.consumer_app:nothing", "returned no consumer"),
        ("broken_app:consumer", "module broken_app can't be imported"),
        ("unmet_app:consumer", "module unmet_app can't be imported"),
    ],
)
def test_what_is_no_function_that_returns_a_consumer_is_told(
    function: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_app.py").write_text("def consumer(:\n")
    (tmp_path / "unmet_app.py").write_text("import no_such_package\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ConfigurationError, match=told) as raised:
        load(function)
    assert raised.value.found


def test_without_the_extra_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "offsetstore.consumer")
    monkeypatch.delitem(sys.modules, "offsetstore.consumer.consumer")
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingDependency, match=r"pip install 'offsetstore\[consumer\]'"):
        load(APP)
