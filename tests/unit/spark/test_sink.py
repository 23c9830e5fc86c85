"""What the sink refuses before it looks at a batch; without Spark."""

from __future__ import annotations

import threading
import traceback
import weakref
from contextlib import suppress
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from offsetstore import Append, DeadLetters, Flush, Handler, OffsetStore, TopicPartition, TransactionalSink
from offsetstore.errors import ColumnMismatch, ConfigurationError, LogTruncated, MissingDependency, UnsupportedQuery
from offsetstore.protocol.database import Database, Session
from offsetstore.protocol.events import SinkMade
from offsetstore.spark import sink as module
from offsetstore.spark.handlers import is_speculative
from offsetstore.store import heartbeat
from offsetstore.testing import InMemoryOffsetStore, MemoryDatabase
from tests.support.recorder import Recorder


@pytest.mark.behaviour("START-25", "START-26")
def test_no_batch_begins_once_the_mirror_has_seen_that_a_log_lost_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transactions of tasks don't look, so that the sink has to."""

    def of(_batch: object) -> None:
        pytest.fail("the batch has begun")

    monkeypatch.setattr(module, "RunningQuery", SimpleNamespace(of=of))
    batch: Any = object()
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        sink = TransactionalSink(claim, lambda frame: frame, into=Append("events"))
        claim.note_lost({TopicPartition("payments", 0): "the log parts at offset 35, below the stored offset 40"})
        with pytest.raises(LogTruncated, match=r"payments-0.*parts at offset 35"):
            sink(batch, 0)


@pytest.mark.behaviour("CONS-18")
def test_the_error_that_a_sink_keeps_tells_its_place_and_holds_nothing_of_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Held:
        pass

    def of(_batch: object) -> None:
        held = Held()
        gone.append(weakref.ref(held))
        raise ValueError

    gone: list[weakref.ref[Held]] = []
    monkeypatch.setattr(module, "RunningQuery", SimpleNamespace(of=of))
    batch: Any = object()
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        sink = TransactionalSink(claim, lambda frame: frame, into=Append("events"))
        with suppress(ValueError):
            sink(batch, 0)
        assert sink.error is not None
        assert traceback.extract_tb(sink.error.__traceback__)[-1].name == "of"
        assert [one() for one in gone] == [None]


def fail(store: OffsetStore, database: Database, monkeypatch: pytest.MonkeyPatch, begin: Any) -> None:
    """Let a sink fail in its first batch while the database begins a transaction in that way. Its claim is not closed.

    :raises LogTruncated: the batch's error.
    """
    claim = store.claim("billing", topics=["payments"])
    sink = TransactionalSink(claim, lambda frame: frame, into=Append("events"))
    claim.note_lost({TopicPartition("payments", 0): "the log parts at offset 35, below the stored offset 40"})
    batch: Any = object()
    with monkeypatch.context() as patch:
        patch.setattr(database, "begin", begin)
        sink(batch, 7)


@pytest.mark.behaviour("OPS-22")
def test_the_failure_is_in_the_database_before_the_sink_raises(offsetstore_database: str) -> None:
    with OffsetStore.connect(offsetstore_database) as store, pytest.MonkeyPatch.context() as monkeypatch:
        with pytest.raises(LogTruncated):
            fail(store, store.database, monkeypatch, store.database.begin)

        [run] = store.runs("billing")
        assert (run.state, run.ended_at) == ("failed", run.seen_at)
        found = [(error.source, error.error_class, error.batch) for error in store.errors("billing")]
        assert found == [("batch", "LogTruncated", 7)]


@pytest.mark.behaviour("OPS-22")
def test_a_database_that_hangs_holds_a_failure_up_for_five_seconds_and_one_that_refuses_hides_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert heartbeat.INTERVAL == 5.0
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.2)
    database, answers = MemoryDatabase(), Event()
    begin = database.begin

    def hangs(**options: Any) -> Session:
        answers.wait(60)
        return begin(**options)

    def refuses(**_options: Any) -> Session:
        raise RuntimeError

    with InMemoryOffsetStore(database) as store:
        for answer in (hangs, refuses):
            with pytest.raises(LogTruncated):
                fail(store, database, monkeypatch, answer)
        assert not answers.is_set()
        answers.set()


def test_a_sink_that_is_refused_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The corrected one takes its place: in a notebook, say."""

    def refuse(_sink: TransactionalSink) -> None:
        raise ColumnMismatch("there is no table evnts")

    recorder = Recorder()
    with InMemoryOffsetStore(observers=[recorder]) as store:
        claim = store.claim("billing", topics=["payments"])

        def make() -> TransactionalSink:
            return TransactionalSink(claim, lambda frame: frame, into=Append("evnts"), flush=Flush())

        threads = {*threading.enumerate()}
        with monkeypatch.context() as patch:
            patch.setattr(TransactionalSink, "_check_early", refuse)
            with pytest.raises(ColumnMismatch):
                make()
        assert {*threading.enumerate()} <= threads
        assert recorder.of(SinkMade) == []
        make()


def test_a_missing_connector_is_told_when_the_sink_is_made_and_keeps_nobody_from_replaying_letters(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def check(_session: object) -> None:
        raise MissingDependency("Spark has no Kafka connector", next_step="spark-submit --packages ...")

    monkeypatch.setattr(module, "session_of_thread", object)
    monkeypatch.setattr(module, "check_connector", check)
    with InMemoryOffsetStore() as store:
        TransactionalSink(store.claim("billing", topics=["payments"]), lambda frame: frame, into=Append("events"))
    assert [one.getMessage() for one in caplog.records] == ["Spark has no Kafka connector. spark-submit --packages ..."]


def speculative(value: str) -> Any:
    """A session whose context has this for ``spark.speculation``."""
    conf = {"spark.speculation": value}
    return SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))


@pytest.mark.parametrize("value", ["true", "TRUE", " true "])
def test_a_sink_with_a_handler_replays_no_letters_where_tasks_run_twice(value: str) -> None:
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        handler = Handler(lambda record: (record.offset,), "n long")
        sink = TransactionalSink(claim, handler, into=Append("events"), dead_letters=DeadLetters())
        with pytest.raises(UnsupportedQuery, match=r"spark\.speculation=true"):
            sink.drain(speculative(value))


def test_what_spark_takes_for_no_boolean_is_not_guessed() -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.speculation is not a boolean; found 'yes'"):
        is_speculative(speculative("yes"))
