"""The blocks of docs/outbox.md, and a sink with two outputs, one of which goes back into Kafka."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, Table, insert

import offsetstore
from offsetstore import Claim
from offsetstore.kafka.admin import read_committed
from offsetstore.testing.fixtures import NewTopic
from tests.support.world import SECONDS, World

PAGE = Path(__file__).parents[3] / "docs" / "outbox.md"
SINK, CONSUMER, WITHOUT_SPARK, RELAY = range(4)
COLUMNS: list[Any] = [Column("payment")]
BOOKED = Table("payments", MetaData(), *COLUMNS)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


class Page:
    """Runs the page's blocks with the names of a test."""

    def __init__(self, world: World, topics: NewTopic) -> None:
        self.world = world
        self.source, self.events, self.anchor = topics(1), topics(1), topics(1)
        world.database.execute("CREATE TABLE payments (payment text)")

    def run(self, number: int, **names: Any) -> dict[str, Any]:
        assert len(blocks("python")) == 4
        block = blocks("python")[number]
        for old, new in {
            '"payment-events"': repr(self.events),
            'TopicPartition("payments"': f"TopicPartition({self.source!r}",
            "localhost:9092": self.world.kafka.bootstrap_servers,
            "Relay(store, ": f"Relay(anchor={self.anchor!r}, store=store, broker=",
        }.items():
            block = block.replace(old, new)
        public = {name: getattr(offsetstore, name) for name in offsetstore.__all__}
        names = {**public, "store": self.world.store, "insert": insert, "booked": BOOKED, **names}
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the page's own words
        return names

    def write(self, claim: Claim) -> None:
        """Let the page's sink write what the source has."""
        sink, world = self.run(SINK, claim=claim)["sink"], self.world
        query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))
        assert query.awaitTermination(SECONDS)

    def produced(self) -> list[tuple[bytes | None, bytes | None, Any]]:
        found = read_committed(self.world.kafka.bootstrap_servers, self.events)
        return [(one.key(), one.value(), one.headers()) for one in found]  # pyright: ignore[reportReturnType]


@pytest.fixture
def page(world: World, offsetstore_topic: NewTopic) -> Page:
    return Page(world, offsetstore_topic)


@pytest.mark.behaviour("OUT-1", "OUT-2")
def test_what_a_sink_writes_to_two_outputs_is_in_the_table_and_in_kafka_once(page: Page, world: World) -> None:
    world.produce(page.source, ["1", "2"])
    claim = world.claim(page.source)
    page.write(claim)
    page.run(RELAY)
    world.produce(page.source, ["3"])
    page.write(world.claim(page.source))
    page.run(RELAY)

    assert world.database.column("SELECT payment FROM payments ORDER BY 1") == ["1", "2", "3"]
    assert [value for _, value, _ in page.produced()] == [b"booked 1", b"booked 2", b"booked 3"]
    assert world.database.one("SELECT count(*) FROM outbox") == 0


@pytest.mark.behaviour("OUT-1")
def test_a_transaction_without_spark_produces_too(page: Page, world: World) -> None:
    page.run(WITHOUT_SPARK, claim=world.store.claim(world.group, topics=[page.source]))
    page.run(RELAY)

    assert page.produced() == [(b"ada", b"booked 0.99", [("source", b"payments")]), (b"bob", b"booked 2.50", None)]
    assert world.database.column("SELECT payment FROM payments ORDER BY 1") == ["0.99", "2.50"]
