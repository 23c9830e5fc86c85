"""Put the flights into Kafka: for the demo, and for docker-compose.yml (``python -m offsetstore.demo.produce``)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from offsetstore.demo.failed import DemoFailed
from offsetstore.demo.flights import ALL, Flight, as_json, read_flights
from offsetstore.demo.settings import BOOTSTRAP, GROUP, PARTITIONS, TOPIC
from offsetstore.errors import ConfigurationError, TopicMissing
from offsetstore.kafka.admin import Record, create_topic, produce
from offsetstore.kafka.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def produce_flights(bootstrap_servers: str, flights: Iterable[Flight]) -> None:
    """Create the topic, and produce each flight under its flight number.

    :raises BrokerRefused: the topic exists already.
    :raises BrokerUnavailable: no answer.
    """
    create_topic(bootstrap_servers, TOPIC, partitions=PARTITIONS)
    produce(bootstrap_servers, TOPIC, _records(flights), settings={"linger.ms": 50, "compression.type": "lz4"})


def count_produced(bootstrap_servers: str) -> int:
    """Ask Kafka how many records there are: ends minus beginnings.

    :raises TopicMissing: there is no such topic.
    """
    view = Broker({"bootstrap.servers": bootstrap_servers}).view(GROUP, [TOPIC])
    return sum(log.end - log.beginning for log in view.topics[TOPIC].partitions.values())


def _records(flights: Iterable[Flight]) -> Iterator[Record]:
    for flight in flights:
        yield Record(as_json(flight), key=f"{flight['carrier']}{flight['flight']}".encode())


def main() -> None:
    """Produce all flights, unless the topic has them.

    :raises DemoFailed: it has only some of them, from an interrupted run.
    """
    servers = os.environ.get(BOOTSTRAP)
    if not servers:
        raise ConfigurationError(f"{BOOTSTRAP} is not set", expected="Kafka's address, host:port")
    try:
        there = count_produced(servers)
    except TopicMissing:
        produce_flights(servers, read_flights())
        there = count_produced(servers)
    if there != ALL:
        raise DemoFailed(
            f"the topic {TOPIC} does not have each flight once",
            found=f"{there:,} records",
            expected=f"{ALL:,}",
            next_step="Delete the topic.",
        )
    print(f"{there:,} flights are in the topic {TOPIC}.")  # noqa: T201 - this is the output


if __name__ == "__main__":
    main()
