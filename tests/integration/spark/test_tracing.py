"""docs/tracing.md: its blocks run as they stand there, and the spans of a real job are what the page says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, get_current_span
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame

from offsetstore import Append, DeadLetters, OffsetStore
from offsetstore.monitoring import Monitoring
from offsetstore.protocol.events import ClaimTaken
from offsetstore.protocol.observers import Observers
from tests.support.transforms import EVENTS, traced
from tests.support.world import World

PAGE = Path(__file__).parents[3] / "docs" / "tracing.md"


def run_page(**names: Any) -> dict[str, Any]:
    """Run the blocks, each of which connects a store, and close all but the last store."""
    first, second = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    exec(compile(first, PAGE.name, "exec"), names)  # noqa: S102 - the page's own words
    names["store"].close()
    exec(compile(second, PAGE.name, "exec"), names)  # noqa: S102 - the page's own words
    return names


def listed_attributes() -> set[str]:
    lines = re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name for line in lines for name in re.findall(r"`([\w.]+)`", line)}


def batches_of(spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    return [span for span in spans if span.name.startswith("process")]


@pytest.mark.behaviour("OPS-15")
@pytest.mark.parametrize(
    ("way", "phases"), [("batch", ["plan", "compute", "write", "commit"]), ("partition", ["plan", "tasks"])]
)
def test_a_job_has_the_spans_that_the_page_names(world: World, way: str, phases: list[str]) -> None:
    exporter = InMemorySpanExporter()
    names = run_page(OffsetStore=OffsetStore, url=world.database.url, exporter=exporter)
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
    world.run(first, transform, Append("events"), atomicity=way)
    world.produce(topic, ["d", "toxic", "e"])
    world.run(world.claim(topic), traced, Append("events"), atomicity=way, dead_letters=DeadLetters(max_retries=0))
    world.database.execute("DROP TABLE events")
    world.produce(topic, ["f"])
    failure = world.run_to_failure(world.claim(topic), traced, Append("events"), atomicity=way)
    names["provider"].shutdown()

    spans = exporter.get_finished_spans()
    written, with_letter, failed = batches_of(spans)
    attributes = [dict(span.attributes or {}) for span in (written, with_letter, failed)]
    assert written.context is not None
    assert during == {written.context.span_id}
    children = [span for span in spans if span.parent == written.context]
    assert [span.name for span in children] == [f"offsetstore.{phase}" for phase in phases]
    assert all(
        (written.start_time or 0) <= (span.start_time or 0) < (span.end_time or 0) <= (written.end_time or 0)
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


def scrape(monitoring: Monitoring) -> dict[str, float]:
    """Each sample, by its name and its labels but for the group."""
    with urlopen(f"http://127.0.0.1:{monitoring.port}/metrics", timeout=60) as answer:
        families = [*text_string_to_metric_families(answer.read().decode())]
    return {
        " ".join([one.name, *(value for name, value in one.labels.items() if name not in {"consumergroup", "le"})]): (
            one.value
        )
        for family in families
        for one in family.samples
    }


@pytest.mark.behaviour("OPS-5")
@pytest.mark.parametrize("way", ["batch", "partition"])
def test_a_scrape_agrees_with_what_a_job_has_written(world: World, way: str) -> None:
    world.database.execute(EVENTS)
    world.database.execute("ALTER TABLE events ADD CONSTRAINT short CHECK (length(value) = 1)")
    topic = world.topic(["a", "b", "toxic", "c"], ["d"])
    claim = world.claim(topic)
    with Monitoring(port=0) as monitoring:
        claim.observers = Observers([monitoring])
        claim.observers.on(ClaimTaken(group=claim.group, token=claim.token, owner=claim.owner, starting=None))
        settings = DeadLetters(max_retries=0)
        world.run(claim, traced, Append("events"), dead_letters=settings, maxOffsetsPerTrigger="3", atomicity=way)
        found = scrape(monitoring)
        claim.close()
        later = scrape(monitoring)

    assert found["offsetstore_batches_total written"] == 2
    assert found[f"offsetstore_offsets_total written {topic}"] == 5
    assert found["offsetstore_rows_written_total "] == world.database.one("SELECT count(*) FROM events") == 4
    assert found["offsetstore_dead_letters_total refused"] == 1
    assert found["offsetstore_batch_duration_seconds_count"] == 2
    assert found["offsetstore_batch_started_timestamp_seconds"] == 0
    assert found["offsetstore_batch_phase_seconds_sum search"] > 0
    assert (found["offsetstore_claim_epoch"], found["offsetstore_claim_held"]) == (claim.token.epoch, 1)
    assert "offsetstore_claim_held" not in later
    assert later["offsetstore_batches_total written"] == 2
