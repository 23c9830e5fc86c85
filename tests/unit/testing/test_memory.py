"""What the in-memory store has beyond the contract: its tables, its clock, and how a frozen job is dealt with."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest

from offsetstore import LetterError, LetterFilter, OffsetRange, Outcome, TopicPartition
from offsetstore.errors import ConfigurationError, StaleClaim, TransactionLost
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


CORE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"confluent_kafka", "pandas", "pgpq", "pyarrow", "pyspark", "pytest"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from offsetstore import Record, testing
from offsetstore.errors import MissingDependency

with testing.failpoint("in_claim", action="raise"), testing.InMemoryOffsetStore() as store:
    try:
        store.claim("billing", topics=["payments"])
    except testing.FailpointReached:
        print("reached")
for use in (lambda: testing.deliver, lambda: testing.replay_twice(print, [Record("payments", 0, 0)])):
    try:
        use()
    except MissingDependency as missing:
        print("offsetstore[consumer]" in missing.next_step)
"""


def test_it_needs_no_extra_and_says_which_one_a_part_needs() -> None:
    done = subprocess.run([sys.executable, "-c", CORE], capture_output=True, text=True, check=False)

    assert done.stdout == "reached\nTrue\nTrue\n", done.stderr


def left(store: InMemoryOffsetStore, broker: StaticBroker) -> None:
    """Two dead letters of `billing`, with their contents."""
    claim = store.claim("billing", broker)
    error = LetterError("ValueError", "not a number", traceback="line 1")
    with store.transaction(claim) as tx:
        plan = tx.lock({P0: OffsetRange(0, 3)})
        tx.letters.write([NewLetter(P0, at, "raised", error, 1, digest(P0, b"key"), PAYLOAD) for at in (0, 1)])
        tx.advance({P0: plan[P0].remaining})


def test_what_only_people_ask_is_refused_with_the_fixture_that_has_it(broker: StaticBroker) -> None:
    with InMemoryOffsetStore() as store:
        left(store, broker)
        for ask in (
            lambda: store.runs("billing"),
            lambda: store.group_state("billing"),
            lambda: store.letters("billing"),
            lambda: store.request_replay("billing", LetterFilter(), reason="ticket 17"),
            store.groups,
        ):
            with pytest.raises(ConfigurationError, match="offsetstore_database"):
                ask()


def test_dead_letters_are_seen_and_decided_about(broker: StaticBroker) -> None:
    def states() -> list[str]:
        return [letter.state for letter in store.dead_letters("billing")]

    with InMemoryOffsetStore() as store:
        left(store, broker)
        [first, second] = store.dead_letters("billing")
        assert (first.offset, first.payload, first.error.text) == (0, PAYLOAD, "not a number")
        store.decide_letters("billing", "discarded", [first.key])
        assert states() == ["discarded", "dead"]
        store.decide_letters("billing", "requested", forced=True)
        assert (states(), store.dead_letters("billing")[1].forced) == (["discarded", "requested"], True)
        store.decide_letters("billing", "discarded", [first.key, second.key])
        assert states() == ["discarded"] * 2


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
