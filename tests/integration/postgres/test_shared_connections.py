"""What is shared must not be shared too far: processes, pools, search paths, names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import StaticPool

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import ConfigurationError
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.store import heartbeat
from offsetstore.testing import StaticBroker
from tests.support.waiting import wait_until

P0 = TopicPartition("payments", 0)


@pytest.fixture
def narrow(offsetstore_database: str) -> Iterator[Engine]:
    """An engine that has one connection to give."""
    url = offsetstore_database.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=1)
    yield engine
    engine.dispose()


def test_a_busy_pool_does_not_silence_the_heartbeat(narrow: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    with OffsetStore.connect(narrow) as store:
        claim = store.claim("billing", topics=["payments"])
        with store.transaction(claim) as tx:
            tx.lock({})
            beat = text("SELECT beat_at FROM heartbeats")
            first = tx.connection.execute(beat).scalar_one()
            wait_until(lambda: tx.connection.execute(beat).scalar_one() > first)


def test_a_search_path_that_is_left_behind_leads_to_no_other_tables(offsetstore_database: str) -> None:
    engine = make_engine(offsetstore_database)
    with engine.begin() as connection:
        upgrade(connection, schema="tenant")
    engine.dispose()
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim("billing", StaticBroker.with_topics({"payments": 1}, end=100))
        with store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 10)})
            tx.connection.execute(text("SET search_path TO tenant"))
            tx.advance({P0: plan[P0].remaining})
        assert store.offsets("billing")[P0].next_offset == 10
        again = store.claim("billing", StaticBroker.with_topics({"payments": 1}, end=100))
        assert again.starting is not None
        assert again.starting.offsets[P0] == 10


def test_each_transaction_has_a_name_of_its_own(offsetstore_database: str) -> None:
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim("a group with a long name " * 10, topics=["payments"])
        names: set[str] = set()
        for _ in range(2):
            with store.transaction(claim) as tx:
                tx.lock({})
                name = tx.connection.execute(text("SHOW application_name")).scalar_one()
                assert name.startswith(claim.name)
                names.add(name)
        assert len(names) == 2


def test_an_engine_that_shares_one_connection_is_refused(offsetstore_database: str) -> None:
    url = offsetstore_database.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, poolclass=StaticPool)
    with pytest.raises(ConfigurationError, match="one connection to several"):
        OffsetStore.connect(engine)
    engine.dispose()
