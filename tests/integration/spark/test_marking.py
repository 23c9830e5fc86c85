"""Manual marking and idle work of a sink; what the page of marking says is in `test_marking_page`."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from offsetstore import Append, Execute, Flush, Tick, TransactionalSink, Work
from offsetstore.errors import ConfigurationError, UnsupportedQuery
from offsetstore.spark.kafka_columns import KAFKA_COLUMNS
from offsetstore.spark.plans.query import RunningQuery
from offsetstore.spark.settings import SinkSettings
from offsetstore.testing import InMemoryOffsetStore
from tests.support.transforms import traced
from tests.support.world import SECONDS, World

MANUAL: dict[str, Any] = {"marking": "manual"}


def any_function(_work: Work, _batches: object) -> None: ...


@pytest.mark.behaviour("MARK-1", "MARK-4")
def test_what_does_not_go_together_is_refused_by_name() -> None:
    function = Execute(any_function)
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (Append("events"), MANUAL, "Append"),
        (function, {**MANUAL, "metadata": any_function}, "metadata="),
        (function, {**MANUAL, "flush": Flush()}, "flush="),
        (function, {**MANUAL, "atomicity": "partition"}, "atomicity="),
        (Append("events"), {"flush": Flush(), "atomicity": "partition"}, "atomicity="),
        (Append("events"), {"marking": "sometimes"}, "sometimes"),
    ]
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        for into, arguments, found in refused:
            with pytest.raises(ConfigurationError, match=found):
                TransactionalSink(claim, traced, into=into, **arguments)
        TransactionalSink(claim, traced, into=function, **MANUAL)  # the claim is free still


@pytest.mark.behaviour("MARK-1", "MARK-4")
@pytest.mark.parametrize("arguments", [MANUAL, {"marking": "automatic", "flush": Flush()}], ids=["manual", "flush"])
def test_a_checkpoint_that_outlives_the_claim_is_refused(arguments: Any) -> None:
    given: dict[str, Any] = {"flush": None, "dead_letters": None, **arguments}
    settings = SinkSettings(**given)
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        own = claim.checkpoint("/checkpoints")
        settings.check_query(claim, KAFKA_COLUMNS, own)
        with pytest.raises(UnsupportedQuery, match="outlives its claim"):
            settings.check_query(claim, KAFKA_COLUMNS, "/checkpoints/own")
        kept = claim.checkpoint("/checkpoints", keep=True)
        with pytest.raises(UnsupportedQuery, match="outlives its claim"):
            settings.check_query(claim, KAFKA_COLUMNS, kept)


@pytest.mark.behaviour("OPS-6")
def test_idle_work_may_stop_the_query(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even while a batch is waiting for it."""
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    queries: list[Any] = []
    is_waiting = threading.Event()
    sleep = RunningQuery.sleep

    def look(query: RunningQuery, seconds: float) -> None:
        is_waiting.set()  # a batch that waits looks whether the query is being stopped
        sleep(query, seconds)

    def stop(_: Work) -> None:
        world.produce(topic, ["b"])
        assert is_waiting.wait(SECONDS)
        queries[0].stop()

    monkeypatch.setattr(RunningQuery, "sleep", look)
    sink = TransactionalSink(claim, traced, into=Append("events"), tick=Tick(stop, every=3))
    stream, checkpoint = world.read(claim), claim.checkpoint(world.checkpoints)
    queries.append(world.start(sink, stream, checkpoint=checkpoint, trigger={"processingTime": "0 seconds"}))
    assert queries[0].awaitTermination(SECONDS)
    assert sink.error is None
