"""A broker for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offsetstore import Broker, Retries
from offsetstore.local.kafka import KafkaBroker
from offsetstore.store import mirror as mirrors
from tests.integration.conftest import Query


@pytest.fixture
def broker(offsetstore_kafka: KafkaBroker) -> Iterator[Broker]:
    broker = Broker({"bootstrap.servers": offsetstore_kafka.bootstrap_servers})
    yield broker
    broker.close()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine Kafka may be silent for longer than a claim waits for its last copy, or for a look at members.

    What is copied, and whether there are members, has to be told all the same.
    """
    monkeypatch.setattr(mirrors, "LAST_COMMIT", 60.0)
    monkeypatch.setattr("offsetstore.kafka.broker._LOOK_SECONDS", 15.0)


def hurry(monkeypatch: pytest.MonkeyPatch, *, trial: float) -> None:
    """Let relays wait for moments only.

    :param trial: seconds from one try of a refused row to the next.
    """
    monkeypatch.setattr("offsetstore.relay._PATIENCE", max(0.5, 10 * trial))
    monkeypatch.setattr("offsetstore.relay._TRIAL", trial)
    monkeypatch.setattr("offsetstore.protocol.refusals.TRIAL", trial)
    monkeypatch.setattr("offsetstore.protocol.refusals._BLOCKED", 5 * trial)
    monkeypatch.setattr("offsetstore.relay._RETRIES", Retries(shortest=trial / 2, longest=5 * trial))


def delete_late(query: Query) -> None:
    """Let each deletion from the outbox take so long that the next batch is produced before it is committed."""
    query("CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END'")
    query("CREATE TRIGGER late AFTER DELETE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION late()")
