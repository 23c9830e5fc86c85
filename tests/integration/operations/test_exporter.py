"""The exporter on a store and a broker that is told what to say: its text, and what it does about outages."""

from __future__ import annotations

import gzip
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from offsetstore import OffsetRange, OffsetStore, StartPolicy, TopicPartition
from offsetstore.errors import BrokerRefused, BrokerUnavailable, ConfigurationError, StoreUnavailable
from offsetstore.monitoring import exporter as exporter_module
from offsetstore.monitoring.exporter import Exporter, Exposition, Gauge
from offsetstore.monitoring.web import Server, serving_text
from offsetstore.outbox import put
from offsetstore.protocol.ports import KafkaSnapshot, LogEnds, TopicSnapshot
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import join
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker

DOCS = Path(__file__).parents[3] / "docs" / "exporter.md"
P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
ODD = 'a "quoted" \\ group\nwith a line'
CANARY = "Hunter2-never-shown"


@pytest.fixture
def broker() -> StaticBroker:
    """Ten records in each of three partitions, one a minute."""
    broker = StaticBroker.with_topics({"payments": 3}, end=10)
    now = int(time.time() * 1000)
    for tp in (P0, P1, P2):
        broker.records[tp] = {offset: now - (10 - offset) * 60_000 for offset in range(10)}
    broker.last_stable[P2] = 8
    return broker


@pytest.fixture
def database(offsetstore_database: str, broker: StaticBroker) -> Iterator[str]:
    """`billing` runs and has stored 4 and 10 of partitions 0 and 1; another group has left, and is paused."""
    with OffsetStore.connect(offsetstore_database) as store:
        give(store, "billing", {P0: 4, P1: 10})
        give(store, ODD, {P0: 1}, stay=False)
        store.pause(ODD, reason=CANARY)
        store.reset(ODD, {P0: 2}, reason=CANARY)
        broker.set_committed({P0: 3})
        broker.members = {ODD}
        yield offsetstore_database


def give(store: OffsetStore, group: str, offsets: dict[TopicPartition, int], *, stay: bool = True) -> None:
    claim = store.claim(group, topics=sorted({tp.topic for tp in offsets}), mirror_every=None)
    ranges = {tp: OffsetRange(0, until) for tp, until in offsets.items()}
    with store.transaction(claim) as tx:
        tx.lock(ranges)
        tx.advance(ranges, metadata={"secret": CANARY})
    if not stay:
        claim.close()


@pytest.fixture
def exporter(database: str, broker: StaticBroker) -> Iterator[Exporter]:
    made = Exporter(lambda: OffsetStore.connect(database), broker)
    yield made
    made.close()


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Each sample by its name and its labels' values."""
    families = text_string_to_metric_families(text.decode())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def shown(exporter: Exporter) -> dict[tuple[str, ...], float]:
    exporter.refresh()
    return samples(exporter.text)


@pytest.mark.behaviour("CONS-11", "OPS-5")
def test_it_counts_the_live_members_of_a_fleet_and_none_of_a_job(
    exporter: Exporter, database: str, broker: StaticBroker
) -> None:
    request = ClaimRequest("shared", broker, ("payments",), StartPolicy(), "refuse", 5.0, "shared")
    with OffsetStore.connect(database) as store:
        members = [join(store, request), join(store, request)]
        assert [len(one) for one in store.lag(None, broker).store.members.values()] == [2]
        while members:
            assert shown(exporter)["offsetstore_group_members", "shared"] == len(members)
            members.pop().close()
        found = shown(exporter)
    assert found["offsetstore_group_members", "shared"] == 0
    assert ("offsetstore_group_members", "billing") not in found


@pytest.mark.behaviour("OPS-5", "OPS-12")
def test_it_shows_what_the_store_and_kafka_have_also_of_a_group_with_any_name(exporter: Exporter) -> None:
    found = shown(exporter)
    of_billing = {key[0]: value for key, value in found.items() if key[1:] in {("billing",), ("billing", "payments")}}
    assert of_billing.pop("offsetstore_group_last_advance_timestamp_seconds") == pytest.approx(time.time(), abs=60)
    assert 0 <= of_billing.pop("offsetstore_group_heartbeat_age_seconds") < 60
    assert of_billing.pop("offsetstore_group_lag_seconds") == pytest.approx(360, rel=0.05)
    assert {name: value for name, value in of_billing.items() if value} == {
        "kafka_consumergroup_lag_sum": 6,
        "offsetstore_group_lag_known": 1,
        "offsetstore_group_claim_epoch": 1,
        "offsetstore_group_headroom_offsets": 4,
        "offsetstore_group_live": 1,
        "offsetstore_group_mirror_lag_offsets": 11,  # one copy is 1 behind, of 10 offsets there is none
        "offsetstore_group_unread_partitions": 1,
    }
    assert {name.removeprefix("offsetstore_") for name, value in of_billing.items() if not value} == {
        *("group_batch_started_timestamp_seconds", "group_has_kafka_members", "group_paused"),
        *("group_beyond_end_offsets", "group_pinned_partitions", "group_standing_partitions"),
        *("group_suspect_partitions", "outbox_rows", "outbox_oldest_seconds", "outbox_first_row"),
        "outbox_refused_rows",
    }
    for name, expected in {"current_offset": {"0": 4, "1": 10}, "lag": {"0": 6, "1": 0}}.items():
        series = (f"kafka_consumergroup_{name}", "billing")
        assert {key[3]: value for key, value in found.items() if key[:2] == series} == expected, "no row, no series"
    others: dict[tuple[str, ...], float] = {
        ("kafka_topic_partitions", "payments"): 3,
        ("kafka_topic_partition_current_offset", "payments", "2"): 10,
        ("kafka_topic_partition_oldest_offset", "payments", "2"): 0,
        ("offsetstore_topic_open_transaction_offsets", "payments"): 2,
        ("offsetstore_group_dead_letters", "billing", "dead"): 0,
        ("offsetstore_exporter_up", "database"): 1,
        ("offsetstore_exporter_up", "kafka"): 1,
        ("offsetstore_exporter_partition_series_left_out",): 0,
        ("offsetstore_outbox_sent_rows",): 0,
        ("offsetstore_group_live", ODD): 0,
        ("offsetstore_group_paused", ODD): 1,
        ("offsetstore_group_pinned_partitions", ODD): 1,
        ("offsetstore_group_has_kafka_members", ODD): 1,
    }
    assert {key: found[key] for key in others} == others
    assert ("offsetstore_group_heartbeat_age_seconds", ODD) not in found
    assert abs(found["offsetstore_database_clock_skew_seconds",]) < 5


@pytest.mark.behaviour("OUT-6", "OUT-7", "OUT-10", "OUT-13")
def test_what_waits_in_the_outbox_what_was_sent_and_the_relay_have_series(exporter: Exporter, database: str) -> None:
    def after(statement: str) -> tuple[dict[tuple[str, ...], float], set[str]]:
        with psycopg.connect(database) as connection:
            connection.execute(statement.encode())
        found = shown(exporter)
        return found, {key[1] for key in found if key[0] == "offsetstore_relay_state"}

    assert after("")[1] == set()
    _, states = after(
        "INSERT INTO outbox (consumer_group, topic, created_at) "
        "SELECT 'billing', 'a', now() - n * interval '1 hour' FROM generate_series(0, 1) AS n"
    )
    assert states == {"none"}
    assert after("INSERT INTO relay_runs (run_id, owner) VALUES (gen_random_uuid(), 'relay')")[1] == {"live"}
    assert after("UPDATE relay_runs SET seen_at = now() - interval '20 s'")[1] == {"silent"}
    after(
        "INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error) "
        "VALUES (7, 'billing', 'a', now(), 'MSG_SIZE_TOO_LARGE')"
    )
    found, _ = after(
        "INSERT INTO outbox_relays (shard, token, owner, sent) VALUES (0, gen_random_uuid(), 'relay', 4096)"
    )
    of_billing = {
        name: found[f"offsetstore_outbox_{name}", "billing"] for name in ("rows", "first_row", "refused_rows")
    }
    assert of_billing == {"rows": 2, "first_row": 1, "refused_rows": 1}
    assert found["offsetstore_outbox_oldest_seconds", "billing"] == pytest.approx(3600, abs=60)
    assert found["offsetstore_outbox_sent_rows",] == 4096


@pytest.mark.behaviour("OUT-14")
def test_rows_that_an_application_has_put_into_the_outbox_have_series_and_no_others_have_their_source(
    exporter: Exporter, database: str
) -> None:
    before = shown(exporter)
    with psycopg.connect(database) as connection:
        put(connection, [("events", b"k", b"v")] * 2, source="shop")
        connection.execute("UPDATE outbox SET created_at = now() - interval '1 h'")
        connection.execute(
            "INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error) "
            "VALUES (7, 'till', 'a', now(), 'MSG_SIZE_TOO_LARGE')"
        )
    found = shown(exporter)
    new = {key: value for key, value in found.items() if key not in before}
    assert new.pop(("offsetstore_outbox_oldest_seconds", "shop")) == pytest.approx(3600, abs=60)
    assert new == {
        ("offsetstore_outbox_rows", "shop"): 2,
        ("offsetstore_outbox_first_row", "shop"): 1,
        ("offsetstore_outbox_refused_rows", "shop"): 0,
        ("offsetstore_outbox_rows", "till"): 0,
        ("offsetstore_outbox_oldest_seconds", "till"): 0,
        ("offsetstore_outbox_first_row", "till"): 0,
        ("offsetstore_outbox_refused_rows", "till"): 1,
        ("offsetstore_relay_state", "none"): 1,
    }
    assert {key: found[key] for key in before if key[0].startswith("offsetstore_outbox") and "billing" in key} == {
        (f"offsetstore_outbox_{name}", "billing"): 0 for name in ("rows", "oldest_seconds", "first_row", "refused_rows")
    }


@pytest.mark.behaviour("OPS-16")
def test_an_offset_beyond_the_end_and_evidence_of_loss_have_series_of_their_own_and_no_lag(
    exporter: Exporter, database: str, broker: StaticBroker
) -> None:
    with OffsetStore.connect(database) as store, transaction(store.database, name="test") as session:
        token = session.read_partitions("billing")[P1].token
        session.write_suspects("billing", token, {P1: "the log ended at 8, below the stored offset 10"})
    broker.set_log(P1, 0, 8)
    found = shown(exporter)
    assert found["offsetstore_group_beyond_end_offsets", "billing", "payments"] == 2
    assert found["offsetstore_group_suspect_partitions", "billing"] == 1
    assert not {
        key
        for key in found
        if key[0].startswith("kafka_consumergroup_lag") and key[1:3] == ("billing", "payments") and key[3:] != ("0",)
    }


def test_values_and_labels_are_written_as_prometheus_reads_them() -> None:
    page, plain, labelled = Exposition(), Gauge("a", "One."), Gauge("b", "Two.", ("x", "y"))
    page.add(labelled, 2**53, ODD, "größe")
    page.add(plain, 0.1)
    page.add(labelled, -1.5e-7, "", "\\n")
    page.add(labelled, None, "left", "out")
    assert samples(page.text()) == {("a",): 0.1, ("b", ODD, "größe"): 2**53, ("b", "", "\\n"): -1.5e-7}
    assert page.text().count(b"# TYPE b gauge\n") == 1
    assert Exposition().text() == b""


@pytest.mark.behaviour("OPS-5", "OPS-7")
def test_without_kafka_the_stores_part_stays_and_no_text_of_a_person_a_record_or_an_error_gets_out(
    exporter: Exporter, broker: StaticBroker, caplog: pytest.LogCaptureFixture
) -> None:
    before = shown(exporter)
    broker.error = BrokerUnavailable("no answer from Kafka", found=CANARY)
    down, again = shown(exporter), shown(exporter)
    assert CANARY not in exporter.text.decode() + caplog.text
    assert (down["offsetstore_exporter_up", "database"], down["offsetstore_exporter_up", "kafka"]) == (1, 0)
    assert {key[0] for key in before} - {key[0] for key in down} == {
        "kafka_topic_partitions", "kafka_topic_partition_current_offset", "kafka_topic_partition_oldest_offset",
        "kafka_consumergroup_lag", "kafka_consumergroup_lag_sum", "offsetstore_group_lag_seconds",
        "offsetstore_group_headroom_offsets", "offsetstore_group_mirror_lag_offsets",
        "offsetstore_group_has_kafka_members", "offsetstore_group_unread_partitions", "offsetstore_topic_up",
        "offsetstore_group_standing_partitions",
        "offsetstore_group_beyond_end_offsets", "offsetstore_group_lag_known",
        "offsetstore_topic_open_transaction_offsets",
    }  # fmt: skip
    assert again.keys() == down.keys()
    broker.error = None
    assert shown(exporter).keys() == before.keys()
    told = [line for line in caplog.records if line.name == exporter_module.__name__]
    warnings = [line.getMessage() for line in told if line.levelno >= logging.WARNING]
    assert warnings == ["Kafka: no answer from Kafka", "Kafka: in order again"]


@pytest.mark.behaviour("OPS-5")
def test_without_the_database_it_waits_for_it_and_still_looks_at_kafka(database: str, broker: StaticBroker) -> None:
    outage: list[Exception] = [StoreUnavailable("no connection")] * 2

    def connect() -> OffsetStore:
        if outage:
            raise outage.pop()
        return OffsetStore.connect(database)

    exporter = Exporter(connect, broker)
    down = shown(exporter)
    assert {key: value for key, value in down.items() if "seconds" not in key[0]} == {
        ("offsetstore_exporter_up", "database"): 0, ("offsetstore_exporter_up", "kafka"): 1
    }  # fmt: skip
    broker.error = BrokerUnavailable("down")
    assert shown(exporter)["offsetstore_exporter_up", "kafka"] == 0
    broker.error = None
    assert shown(exporter)["offsetstore_exporter_up", "database"] == 1
    exporter.close()


def test_a_topic_that_is_gone_is_told_and_the_others_stay(exporter: Exporter, database: str) -> None:
    gone = TopicPartition("gone", 0)
    with OffsetStore.connect(database) as store:
        give(store, "audit", {gone: 1})
    found = shown(exporter)
    assert (found["offsetstore_topic_up", "gone"], found["offsetstore_topic_up", "payments"]) == (0, 1)
    assert ("kafka_consumergroup_lag_sum", "audit", "gone") not in found
    assert found["offsetstore_group_lag_known", "audit", "gone"] == 0
    assert found["kafka_consumergroup_current_offset", "audit", "gone", "0"] == 1
    assert found["kafka_consumergroup_lag_sum", "billing", "payments"] == 6


@pytest.mark.behaviour("OPS-13")
def test_where_kafka_does_not_tell_the_lag_a_series_says_so(
    exporter: Exporter, database: str, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ("offsetstore_group_lag_known", "billing", "payments")
    assert shown(exporter)[known] == 1
    with OffsetStore.connect(database) as store:
        store.claim("billing", broker, topics=["payments"], mirror_every=None)  # learns the topic's id
    answers, end = [broker.snapshot({"billing": ["payments"], ODD: ["payments"]})], LogEnds(0, 500, 500)

    def answer(_groups: object) -> KafkaSnapshot:
        return answers[-1]

    monkeypatch.setattr(broker, "snapshot", answer)
    for topic in (
        TopicSnapshot("created anew", 3, dict.fromkeys(range(3), end)),
        TopicSnapshot(error=BrokerRefused("not authorized")),
        TopicSnapshot(None, 3, {0: end, 2: end}, BrokerUnavailable("a partition without a leader")),
    ):
        answers.append(replace(answers[0], topics={"payments": topic}))
        found = shown(exporter)
        assert (found[known], ("kafka_consumergroup_lag_sum", "billing", "payments") in found) == (0, False)
        assert found["offsetstore_exporter_up", "kafka"] == 1


def test_too_many_series_of_partitions_are_all_left_out_and_a_group_may_have_another_name_in_kafka(
    database: str, broker: StaticBroker
) -> None:
    broker.members = {"spark-billing"}
    names, series = {"billing": "spark-billing"}, 2 * (3 + 3)
    for limit, left_out, shown_of_some in ((series, 0, 6), (series - 1, series, 0)):
        made = Exporter(lambda: OffsetStore.connect(database), broker, max_partition_series=limit, kafka_groups=names)
        with closing(made):
            found = shown(made)
        assert found["offsetstore_exporter_partition_series_left_out",] == left_out
        some = {"kafka_consumergroup_lag", "kafka_topic_partition_current_offset"}
        assert len([key for key in found if key[0] in some]) == shown_of_some
        assert found["kafka_consumergroup_lag_sum", "billing", "payments"] == 6
        assert found["offsetstore_group_has_kafka_members", "billing"] == 1


@pytest.mark.behaviour("OPS-5")
def test_no_error_ends_it_and_an_unknown_one_is_named_without_its_text(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exporter.refresh()
    trouble: list[Exception] = [ConfigurationError("no such setting"), ZeroDivisionError(CANARY)]

    def read() -> None:
        if trouble:
            raise trouble.pop()
        stop.set()

    monkeypatch.setattr(exporter, "_read_lag", read)
    stop = threading.Event()
    running = threading.Thread(target=exporter.run, args=(0.01, stop))
    running.start()
    running.join(60)
    assert not running.is_alive()
    assert not trouble
    assert samples(exporter.text)["offsetstore_exporter_up", "database"] == 0
    assert "ZeroDivisionError" in caplog.text
    assert CANARY not in caplog.text


def test_what_can_never_work_ends_it() -> None:
    def connect() -> OffsetStore:
        raise ConfigurationError("a wrong URL")

    with pytest.raises(ConfigurationError):
        Exporter(connect, StaticBroker.with_topics({})).refresh()


@pytest.mark.behaviour("OPS-5")
def test_a_scrape_gets_the_latest_text_packed_or_not_and_waits_for_the_first() -> None:
    texts = [b"first 1\n"]
    server = Server(serving_text(lambda: texts[-1]), host="127.0.0.1", port=0)
    got: list[bytes] = []
    early = threading.Thread(target=lambda: got.append(fetch(server)))
    early.start()
    server.start()
    early.join(60)
    texts.append(b"second 2\n" * 1000)
    assert got == [b"first 1\n"]
    assert fetch(server) == texts[-1]
    assert gzip.decompress(fetch(server, packed=True)) == texts[-1]
    texts.append(b"third 3\n")
    assert gzip.decompress(fetch(server, packed=True)) == texts[-1]
    assert b"/metrics" in fetch(server, path="/", status=404)
    with pytest.raises(ConfigurationError, match="metrics can't be served there"):
        Server(serving_text(lambda: b""), host="127.0.0.1", port=server.port)
    server.close()


def fetch(server: Server, *, path: str = "/metrics", packed: bool = False, status: int = 200) -> bytes:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"} if packed else {})
    answer = connection.getresponse()
    assert answer.status == status
    body = answer.read()
    connection.close()
    return body


def test_the_page_lists_each_metric_with_its_labels(exporter: Exporter, database: str, broker: StaticBroker) -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \|(.*?)\|", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    request = ClaimRequest("shared", broker, ("payments",), StartPolicy(), "refuse", 5.0, "shared")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("INSERT INTO relay_runs (run_id, owner) VALUES (gen_random_uuid(), 'relay')")
    with OffsetStore.connect(database) as store, join(store, request):
        exporter.refresh()
    made: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exporter.text.decode()):
        assert (family.type, bool(family.documentation)) == ("gauge", True)
        made[family.name] = {label for sample in family.samples for label in sample.labels}
    assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in listed.items()} == made
    gauges = {one.name for one in vars(exporter_module).values() if isinstance(one, Gauge)}
    assert gauges == made.keys()
