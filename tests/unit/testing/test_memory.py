"""What the in-memory store has beyond the contract: its tables, its clock, and how a frozen job is dealt with."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from offsetstore import LetterError, OffsetRange, Outcome, TopicPartition
from offsetstore.errors import BrokerUnavailable, ConfigurationError, GroupBusy, StaleClaim, TransactionLost
from offsetstore.protocol.letters import NewLetter, Payload, digest
from offsetstore.testing import InMemoryOffsetStore, MemoryDatabase, StaticBroker

P0 = TopicPartition("payments", 0)
PAYLOAD = Payload(b"key", b"value", None, None, None)


@pytest.fixture
def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 1}, end=100)


def test_the_example_of_its_docstring_runs() -> None:
    assert InMemoryOffsetStore.__doc__ is not None
    example = textwrap.dedent(InMemoryOffsetStore.__doc__.split("::\n", 1)[1].split(":param", 1)[0])
    namespace: dict[str, Any] = {"InMemoryOffsetStore": InMemoryOffsetStore, "OffsetRange": OffsetRange}
    namespace |= {"Outcome": Outcome, "TopicPartition": TopicPartition}

    exec(example, namespace)  # noqa: S102 - it is our own

    namespace["test_a_replayed_batch_is_written_once"]()


def test_it_needs_no_pytest() -> None:
    program = "import sys; import offsetstore.testing; print('pytest' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_what_only_people_ask_is_refused_with_the_fixture_that_has_it() -> None:
    with InMemoryOffsetStore() as store, pytest.raises(ConfigurationError, match="offsetstore_database"):
        store.runs("billing")


def left(store: InMemoryOffsetStore, broker: StaticBroker) -> None:
    """Two dead letters of `billing`, with their contents."""
    claim = store.claim("billing", broker)
    error = LetterError("ValueError", "not a number", traceback="line 1")
    with store.transaction(claim) as tx:
        plan = tx.lock({P0: OffsetRange(0, 3)})
        tx.write_letters([NewLetter(P0, at, "raised", error, 1, digest(P0, b"key"), PAYLOAD) for at in (0, 1)])
        tx.advance({P0: plan[P0].remaining})


def test_a_list_of_letters_has_a_limit_and_no_contents_that_were_not_asked_for(broker: StaticBroker) -> None:
    with InMemoryOffsetStore() as store:
        left(store, broker)
        [last] = store.letters("billing", limit=1).letters
        assert (last.payload, last.payload_state, last.error.text, last.error.traceback) == (None, "kept", "", None)
        assert last.error.error_class == "ValueError"
        [whole] = store.letters("billing", limit=1, contents=True).letters
        assert (whole.key, whole.payload, whole.error.text) == (last.key, PAYLOAD, "not a number")
        assert store.letter("billing", P0, 1, contents=False).payload is None
        assert store.letter("billing", P0, 1).payload == PAYLOAD


def test_pages_of_letters_are_for_people(broker: StaticBroker) -> None:
    with InMemoryOffsetStore() as store:
        left(store, broker)
        page = store.letters("billing", limit=1)
        assert page.next is not None
        with pytest.raises(ConfigurationError, match="offsetstore_database"):
            store.letters("billing", after=page.next)
        with pytest.raises(ConfigurationError, match="offsetstore_database"):
            store.letters("billing", within=1)
        assert store.letters("billing", limit=2).next is None


def test_a_deleted_row_is_gone_at_commit() -> None:
    database = MemoryDatabase()
    for row in ("first", None):
        session = database.begin(name="test")
        session.put("payments", (1,), row)
        assert session.get("payments", 1) == row
        session.commit()
    assert database._shared.tables["payments"] == {}


def test_a_copy_of_the_database_shares_no_row_with_it() -> None:
    database = MemoryDatabase()
    session = database.begin(name="test")
    session.connection.append("payments", {"id": 1})
    session.commit()
    copied = database.copy()
    [row] = copied.rows("payments")
    assert isinstance(row, dict)
    row["id"] = 2
    assert database.rows("payments") == [{"id": 1}]
    assert copied.rows("payments") == [{"id": 2}]


def test_a_second_store_on_the_same_memory_is_the_job_after_its_restart(broker: StaticBroker) -> None:
    database = MemoryDatabase()
    with InMemoryOffsetStore(database) as store:
        claim = store.claim("billing", broker)
        with store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            tx.connection.append("payments", {"id": 1})
            tx.advance({P0: plan[P0].remaining}, metadata="kept")

    with InMemoryOffsetStore(database) as store:
        assert store.rows("payments") == [{"id": 1}]
        assert store.metadata("billing") == {P0: "kept"}
        assert store.claim("billing", broker).token.epoch == 2


def test_a_transaction_sees_its_own_rows_and_others_only_once_they_are_committed(broker: StaticBroker) -> None:
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", broker)
        with store.transaction(claim) as tx:
            tx.lock({})
            tx.connection.extend("payments", [1, 2])
            assert tx.connection.rows("payments") == [1, 2]
            assert store.rows("payments") == []
        assert store.rows("payments") == [1, 2]


@pytest.mark.parametrize("takeover_timeout", [0.0, 0.2])
def test_the_open_transaction_of_a_frozen_job_is_ended_by_the_next_claim(
    broker: StaticBroker, takeover_timeout: float
) -> None:
    with InMemoryOffsetStore() as store:
        frozen = store.claim("billing", broker)

        def job() -> None:
            with store.transaction(frozen) as tx:
                plan = tx.lock({P0: OffsetRange(0, 3)})
                tx.connection.append("payments", 0)
                store.claim("billing", broker, takeover_timeout=takeover_timeout)
                tx.advance({P0: plan[P0].remaining})

        with pytest.raises(TransactionLost):
            job()
        with pytest.raises(StaleClaim):
            store.run(frozen, lambda tx: tx.lock({P0: OffsetRange(0, 3)}))
        assert store.rows("payments") == []


def test_an_owner_is_live_by_the_database_s_clock(broker: StaticBroker) -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    with InMemoryOffsetStore(MemoryDatabase(clock=lambda: now[0])) as store:
        store.claim("billing", broker)
        now[0] += timedelta(seconds=14)
        with pytest.raises(GroupBusy, match="seen 14 s ago"):
            store.claim("billing", broker, takeover="refuse")

        now[0] += timedelta(seconds=1)
        assert store.claim("billing", broker, takeover="refuse").token.epoch == 2


def test_a_job_that_has_left_is_not_waited_for(broker: StaticBroker) -> None:
    with InMemoryOffsetStore() as store:
        store.claim("billing", broker).close()

        assert store.claim("billing", broker, takeover="refuse").token.epoch == 2


def test_a_broker_that_is_down_fences_nobody(broker: StaticBroker) -> None:
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", broker)
        broker.error = BrokerUnavailable("no answer")
        with pytest.raises(BrokerUnavailable):
            store.claim("billing", broker)

        broker.error = None
        store.run(claim, lambda tx: tx.lock({P0: OffsetRange(0, 0)}))
