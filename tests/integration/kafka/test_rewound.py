"""A database that is older than its copy in Kafka, a reset that is newer, a log that ends early: what counts."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from offsetstore import Broker, Claim, OffsetStore, StartPolicy, TopicPartition, resolve_starting_offsets
from offsetstore.errors import ForeignStore, LogTruncated, StoreMoved, StoreRewound
from offsetstore.kafka.admin import NewRecord, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.offsets import CommittedOffset
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.protocol.starting import Reason
from offsetstore.protocol.store_facts import Stamp
from offsetstore.store import log_watch
from offsetstore.testing.fixtures import NewTopic
from tests.support.kafka_tools import install_kafka_tools
from tests.support.mirrored_job import copied, process
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
TOO_LONG = "x" * 5000  # for Kafka, so that only the stamp is there


@pytest.fixture
def p0(offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic) -> TopicPartition:
    """The partition of a topic, with fifty records."""
    topic = offsetstore_topic(1)
    produce(offsetstore_kafka.bootstrap_servers, topic, [NewRecord(b"x", partition=0)] * 50)
    return TopicPartition(topic, 0)


@pytest.fixture
def url(offsetstore_database: str) -> str:
    execute(offsetstore_database, "CREATE TABLE results (record bigint NOT NULL)")
    return offsetstore_database


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def migrate(url: str, *, schema: str | None = None) -> None:
    engine = make_engine(url)
    with engine.begin() as connection:
        upgrade(connection, schema=schema)
    engine.dispose()


def run_job(url: str, group: str, broker: Broker, tp: TopicPartition, until: int, *, metadata: object = None) -> None:
    """A job from its start to a clean stop, mirror included."""
    with OffsetStore.connect(url) as store:
        process(store, store.claim(group, broker, topics=[tp.topic]), tp, until, metadata=metadata)


def start(store: OffsetStore, group: str, broker: Broker, tp: TopicPartition, **more: Any) -> tuple[int, Reason]:
    """Start a job that dies before its mirror's first turn; where it started, and why."""
    claim: Claim = store.claim(group, broker, topics=[tp.topic], mirror_every=more.pop("mirror_every", None), **more)
    assert claim.starting is not None
    one = claim.starting.starts[tp]
    return one.offset, one.reason


@pytest.mark.behaviour("START-6", "START-27")
def test_a_restored_backup_stops_the_start_until_somebody_decides_and_the_decision_sticks(
    offsetstore_postgres: PostgresServer, url: str, broker: Broker, p0: TopicPartition, offsetstore_group: str
) -> None:
    name = url.rpartition("/")[2]
    backup = f"{name}_backup"
    run_job(url, offsetstore_group, broker, p0, 20)
    offsetstore_postgres.create_database(backup, template=name)
    run_job(url, offsetstore_group, broker, p0, 40, metadata=TOO_LONG)
    offsetstore_postgres.drop_database(name)
    offsetstore_postgres.create_database(name, template=backup)
    offsetstore_postgres.drop_database(backup)

    group = offsetstore_group
    with OffsetStore.connect(url) as store:
        with pytest.raises(StoreMoved):
            start(store, group, broker, p0)
        store.moved(reason="restored in place, ticket 17")
        before = store.owner(group), store.history(group)
        with pytest.raises(StoreRewound, match="older than our own copy in Kafka") as caught:
            start(store, group, broker, p0)
        assert caught.value.topic_partition == p0
        assert caught.value.found == "offset 20 stored"
        assert str(caught.value.expected).startswith("at least 40, copied by store ")
        assert (store.owner(group), store.history(group)) == before
        with pytest.raises(StoreRewound):
            resolve_starting_offsets(broker, group=group, topics=[p0.topic], store=store)

        decided = start(store, group, broker, p0, policy=StartPolicy(on_rewound="stored"))
        assert decided == (20, Reason.REWOUND_STORED)
        [line] = [line for line in store.history(group) if line.event == "rewound"]
        assert (line.topic_partition, line.from_offset, line.to_offset) == (p0, 20, 20)
        for _ in range(3):
            assert start(store, group, broker, p0) == (20, Reason.PINNED)
        assert copied(broker, group, p0.topic)[0] == 40
        assert start(store, group, broker, p0, mirror_every=600) == (20, Reason.PINNED)
    assert copied(broker, group, p0.topic)[0] == 20  # the store was closed, and with it the claim
    with OffsetStore.connect(url) as store:
        assert start(store, group, broker, p0) == (20, Reason.STORED)


@pytest.mark.behaviour("START-6", "OPS-8")
def test_who_a_store_is_does_not_depend_on_the_rights_of_who_asks(
    offsetstore_postgres: PostgresServer, offsetstore_empty_database: str
) -> None:
    name = offsetstore_empty_database.rpartition("/")[2]
    role = f"owner_{name}"
    execute(offsetstore_empty_database, f"CREATE ROLE {role} LOGIN", f"ALTER DATABASE {name} OWNER TO {role}")
    plain = offsetstore_empty_database.replace("//postgres@", f"//{role}@")
    found: list[object] = []
    for url in (plain, plain, offsetstore_empty_database):
        execute(offsetstore_empty_database, "DROP SCHEMA IF EXISTS offsetstore CASCADE", "CREATE SCHEMA offsetstore")
        execute(offsetstore_empty_database, f"ALTER SCHEMA offsetstore OWNER TO {role}")
        migrate(url, schema="offsetstore")
        with OffsetStore.connect(url, schema="offsetstore") as store:
            found.append(store.database.store_id())
    execute(offsetstore_empty_database, f"REASSIGN OWNED BY {role} TO postgres", f"DROP OWNED BY {role}")
    execute(offsetstore_empty_database, f"DROP ROLE {role}")
    assert len(set(found)) == 1


@pytest.mark.behaviour("START-9", "START-27")
def test_a_database_that_was_lost_and_made_anew_is_told_so_and_goes_on_as_the_page_says(  # noqa: PLR0917 - fixtures
    offsetstore_kafka: KafkaBroker, offsetstore_postgres: PostgresServer, url: str, broker: Broker,
    p0: TopicPartition, offsetstore_group: str, tmp_path: Path,
) -> None:  # fmt: skip
    group, name = offsetstore_group, url.rpartition("/")[2]
    install_kafka_tools(tmp_path)
    page = (ROOT / "docs" / "starting.md").read_text(encoding="utf-8").replace(" \\\n", " ")
    to_delete, to_keep = [shlex.split(line) for line in re.findall(r"^\$ (kafka-.*)$", page, re.MULTILINE)]
    theirs = {"localhost:9092": offsetstore_kafka.bootstrap_servers, "billing": group, "payments": p0.topic}

    def run(program: str, *arguments: str) -> None:
        command = [tmp_path / program, *(theirs.get(word, word) for word in arguments)]
        subprocess.run(command, check=True, timeout=180)

    run_job(url, group, broker, p0, 40)
    offsetstore_postgres.drop_database(name)
    offsetstore_postgres.create_database(name)
    migrate(url)

    with OffsetStore.connect(url) as store:
        with pytest.raises(ForeignStore, match="or this one was lost and made anew") as caught:
            start(store, group, broker, p0)
        assert all(way in caught.value.next_step for way in ("--delete-offsets", "--to-current", "kafka_group="))
        run(*to_keep)
        found = resolve_starting_offsets(broker, group=group, topics=[p0.topic], store=store)
        assert (found.offsets[p0], found.starts[p0].reason) == (40, Reason.ONLY_COMMITTED)
        broker.commit(group, {p0: CommittedOffset(40, Stamp(UUID(int=7), 1).text())})
        with pytest.raises(ForeignStore):
            start(store, group, broker, p0)
        run(*to_delete)
        assert start(store, group, broker, p0) == (0, Reason.EARLIEST)


@pytest.mark.behaviour("START-26", "START-31")
def test_logs_that_older_copies_replaced_are_told_by_their_leader_epochs_when_they_have_regrown(
    offsetstore_kafka: KafkaBroker,
    offsetstore_topic: NewTopic,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One job has stopped meanwhile, and one runs, without a mirror; a third one's log only gets another leader."""
    monkeypatch.setattr(log_watch, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(log_watch, "_SOON", 0.1)
    stopped, running, whole = partitions = [TopicPartition(offsetstore_topic(1), 0) for _ in range(3)]
    kafka, logs = offsetstore_kafka, offsetstore_kafka.directory / "data"
    broker = Broker({"bootstrap.servers": kafka.bootstrap_servers}, timeout=30)
    with OffsetStore.connect(url) as store, closing(broker):
        for tp in partitions:
            produce(kafka.bootstrap_servers, tp.topic, [NewRecord(b"x", partition=0)] * 50)
        kafka.stop()
        for tp in (stopped, running):
            shutil.copytree(logs / str(tp), tmp_path / str(tp))
        kafka.start()
        for tp in partitions:
            produce(kafka.bootstrap_servers, tp.topic, [NewRecord(b"y", partition=0)] * 50)
        for tp in (stopped, whole):
            with store.claim(tp.topic, broker, topics=[tp.topic]) as claim:
                process(store, claim, tp, 100)
        with store.claim(running.topic, broker, topics=[running.topic], mirror_every=None) as live:
            process(store, live, running, 100)
            wait_until(lambda: pair_of(store, running) == 100)

            kafka.stop()
            for tp in (stopped, running):
                shutil.rmtree(logs / str(tp))
                shutil.copytree(tmp_path / str(tp), logs / str(tp))
            kafka.start()
            for tp in partitions:
                produce(kafka.bootstrap_servers, tp.topic, [NewRecord(b"z", partition=0)] * 100)

            wait_until(lambda: store.offsets(running.topic)[running].suspect is not None, timeout=120)
            # It may be looked at before the log has grown past the stored offset.
            with pytest.raises(
                LogTruncated, match=r"the log (parts at offset|ended at) 50, below the stored offset 100"
            ):
                process(store, live, running, 150)
        for tp, found in ((stopped, "parts at offset"), (running, "(parts at offset|ended at)")):
            with pytest.raises(LogTruncated, match=f"the log {found} 50, below the stored offset 100"):
                store.claim(tp.topic, broker, topics=[tp.topic], policy=StartPolicy(on_data_loss="earliest"))
        store.reset(stopped.topic, {stopped: 50}, broker=broker, reason="read what took the lost records' place")
        assert start(store, stopped.topic, broker, stopped) == (50, Reason.PINNED)
        assert start(store, whole.topic, broker, whole) == (100, Reason.STORED)


def pair_of(store: OffsetStore, tp: TopicPartition) -> int | None:
    pair = store.offsets(tp.topic)[tp].pair
    return None if pair is None else pair.offset
