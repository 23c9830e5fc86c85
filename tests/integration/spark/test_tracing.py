"""docs/tracing.md: its blocks run as they stand there, and the spans of a real job are what the page says."""

from __future__ import annotations

import re

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, get_current_span
from pyspark.sql import DataFrame

from offsetstore import Append, DeadLetters
from offsetstore.monitoring import Tracing
from tests.integration.spark.conftest import execute_block, page_text
from tests.support.transforms import EVENTS, traced
from tests.support.world import World

PAGE = "tracing.md"


def listed_attributes() -> set[str]:
    lines = re.findall(r"^\| (`.*?) \|", page_text(PAGE), re.MULTILINE)
    return {name for line in lines for name in re.findall(r"`([\w.]+)`", line)}


@pytest.mark.behaviour("OPS-15")
def test_a_job_has_the_spans_that_the_page_names(world: World) -> None:
    exporter = InMemorySpanExporter()
    execute_block(PAGE, 0, url=world.database.url)["store"].close()
    names = execute_block(PAGE, 1, url=world.database.url, exporter=exporter, Tracing=Tracing)
    world.store.close()
    world.store = names["store"]
    world.database.execute(EVENTS)
    world.database.execute("ALTER TABLE events ADD CONSTRAINT short CHECK (length(value) = 1)")
    topic = world.topic(["a", "b"], ["c"])
    during: set[int] = set()

    def transform(batch: DataFrame) -> DataFrame:
        during.add(get_current_span().get_span_context().span_id)
        return traced(batch)

    first = world.claim(topic)
    world.run(first, transform, Append("events"))
    world.produce(topic, ["d", "toxic", "e"])
    letters = DeadLetters(max_retries=0)
    world.run(world.claim(topic), traced, Append("events"), atomicity="partition", dead_letters=letters)
    world.database.execute("DROP TABLE events")
    world.produce(topic, ["f"])
    failure = world.run_to_failure(world.claim(topic), traced, Append("events"), atomicity="partition")
    names["provider"].shutdown()

    spans = exporter.get_finished_spans()
    written, with_letter, failed = batches = [span for span in spans if span.name.startswith("process")]
    attributes = [dict(span.attributes or {}) for span in batches]
    assert written.context is not None
    assert during == {written.context.span_id}
    for batch, phases in ((written, ["plan", "compute", "write", "commit"]), (with_letter, ["plan", "tasks"])):
        children = [span for span in spans if span.parent == batch.context]
        assert [span.name for span in children][: len(phases)] == [f"offsetstore.{phase}" for phase in phases]
        assert all(
            (batch.start_time or 0) <= (span.start_time or 0) < (span.end_time or 0) <= (batch.end_time or 0)
            for span in children
        )
    names_of_all = {name for found in attributes for name in found}
    assert names_of_all == listed_attributes()
    shown = ("outcome", "rows", "dead_letters", "partitions", "claim.epoch")
    assert [[found.get(f"offsetstore.{name}") for name in shown] for found in attributes] == [
        ["written", 3, None, 2, first.token.epoch],
        ["written", 2, 1, 1, first.token.epoch + 1],
        ["failed", None, None, 1, first.token.epoch + 2],
    ]
    assert [found["messaging.batch.message_count"] for found in attributes] == [3, 3, 1]
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, type(failure.error).__name__)
