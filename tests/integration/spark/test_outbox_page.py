"""The blocks of docs/outbox.md and docs/relay.md, and a sink with two outputs, one of which goes back into Kafka.

Those of applications are run by tests/integration/postgres/test_outbox_put.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, MetaData, Table, insert

from offsetstore.kafka.admin import read_committed
from offsetstore.testing.fixtures import NewTopic
from tests.integration.spark.conftest import execute_block, run_sink
from tests.support.world import World

SINK, _CONSUMER, WITHOUT_SPARK = range(3)
COLUMNS: list[Any] = [Column("payment")]
BOOKED = Table("payments", MetaData(), *COLUMNS)


class Page:
    """Runs the page's blocks with the names of a test."""

    def __init__(self, world: World, topics: NewTopic) -> None:
        self.world = world
        self.source, self.events, self.anchor = topics(1), topics(1), topics(1)
        world.database.execute("CREATE TABLE payments (payment text)")

    def run(self, number: int, page: str = "outbox.md", **names: Any) -> dict[str, Any]:
        replaced = {
            '"payment-events"': repr(self.events),
            'TopicPartition("payments"': f"TopicPartition({self.source!r}",
            "localhost:9092": self.world.kafka.bootstrap_servers,
            "Relay(store, ": f"Relay(anchor={self.anchor!r}, store=store, broker=",
        }
        names = {"store": self.world.store, "insert": insert, "booked": BOOKED, **names}
        return execute_block(page, number, replaced, **names)

    def relay(self) -> None:
        """As the page on the relay has it, in a process of one's own."""
        self.run(0, "relay.md")

    def produced(self) -> list[tuple[bytes | None, bytes | None, Any]]:
        found = read_committed(self.world.kafka.bootstrap_servers, self.events)
        return [(one.key(), one.value(), one.headers()) for one in found]  # pyright: ignore[reportReturnType]


@pytest.fixture
def page(world: World, offsetstore_topic: NewTopic) -> Page:
    return Page(world, offsetstore_topic)


@pytest.mark.behaviour("OUT-1", "OUT-2")
def test_what_a_sink_writes_to_two_outputs_is_in_the_table_and_in_kafka_once(page: Page, world: World) -> None:
    for values in (["1", "2"], ["3"]):
        world.produce(page.source, values)
        run_sink(world, page.run(SINK, claim=world.claim(page.source))["sink"])
        page.relay()

    assert world.database.column("SELECT payment FROM payments ORDER BY 1") == ["1", "2", "3"]
    assert [value for _, value, _ in page.produced()] == [b"booked 1", b"booked 2", b"booked 3"]
    assert world.database.one("SELECT count(*) FROM outbox") == 0


@pytest.mark.behaviour("OUT-1")
def test_a_transaction_without_spark_produces_too(page: Page, world: World) -> None:
    page.run(WITHOUT_SPARK, claim=world.store.claim(world.group, topics=[page.source]))
    page.relay()

    assert page.produced() == [(b"ada", b"booked 0.99", [("source", b"payments")]), (b"bob", b"booked 2.50", None)]
    assert world.database.column("SELECT payment FROM payments ORDER BY 1") == ["0.99", "2.50"]
