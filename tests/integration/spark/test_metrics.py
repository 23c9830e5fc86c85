"""The driver's metrics of a real job, as a scrape gets them."""

from __future__ import annotations

from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from offsetstore import Append, DeadLetters
from offsetstore.monitoring import Monitoring
from offsetstore.protocol.events import ClaimTaken
from offsetstore.protocol.observers import Observers
from tests.support.transforms import EVENTS, traced
from tests.support.world import World


def scrape(monitoring: Monitoring) -> dict[str, float]:
    """Each sample, by its name and its labels but for the group."""
    with urlopen(f"http://127.0.0.1:{monitoring.port}/metrics", timeout=10) as answer:
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
