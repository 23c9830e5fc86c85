"""Dead letters on PostgreSQL: when they can't be written, what is hard to write, and how many there may be."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from offsetstore import Claim, LetterError, LetterFilter, LetterKey, OffsetRange, OffsetStore, errors
from offsetstore.operations import stored_letters as sql
from offsetstore.operations.stored_letters import LetterCursor
from offsetstore.postgres.letters import REQUESTED_LETTERS
from offsetstore.protocol.letters import NewLetter, Payload, digest
from offsetstore.store.sessions import read, transaction
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, P1, write
from tests.support.background import in_background
from tests.support.plans import executed_plan
from tests.support.waiting import wait_until

WAITING = """
SELECT 1 FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'offsetstore:%'
"""
MANY = 20_000
HUGE = 10_000_000
RECORD = Payload(b"key", b"value", (), 0, 0)
SWALLOW = """
CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN IF new.record_offset = 2 THEN {then} END IF; RETURN new; END $$;
CREATE TRIGGER swallow BEFORE INSERT ON dead_letters FOR EACH ROW EXECUTE FUNCTION swallow()
"""


def dead(offset: int, **other: Any) -> NewLetter:
    made = NewLetter(P0, offset, "refused", LetterError("RowsRefused", "refused"), 1, None, RECORD)
    return replace(made, **other)


@pytest.fixture
def claim(store: OffsetStore, results: str) -> Claim:
    return store.claim(GROUP, topics=["payments"])


def give_up(store: OffsetStore, claim: Claim, *letters: NewLetter, until: int = 4) -> None:
    """Write offset 0 as a result, the letters, and advance."""
    with store.transaction(claim) as tx:
        left = tx.lock({P0: OffsetRange(0, until)})[P0].remaining
        write(tx, [0])
        tx.letters.write(letters)
        tx.advance({P0: left})


# -- letters that can't be written


@pytest.mark.behaviour("DLQ-2")
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (SWALLOW.format(then="RETURN NULL;"), "not all dead letters could be written"),
        (SWALLOW.format(then="RAISE EXCEPTION 'no %', new.value;"), "refused to store dead letters"),
        ("ALTER TABLE dead_letters ADD CHECK (record_offset <> 2)", "refused to store dead letters"),
    ],
    ids=["a trigger that swallows it", "a trigger that raises", "a constraint of one's own"],
)
def test_a_letter_that_the_database_does_not_keep_is_no_record_s_fault_and_nothing_is_written(
    store: OffsetStore, claim: Claim, query: Query, spoil: str, told: str
) -> None:
    query(spoil)
    with pytest.raises(errors.SinkError, match=told) as caught:
        give_up(store, claim, dead(1), dead(2, payload=RECORD._replace(value=b"secret")))

    assert not isinstance(caught.value, errors.RowsRefused)
    assert "secret" not in str(caught.value)
    assert b"secret".hex() not in str(caught.value)
    assert caught.value.__cause__ is None
    assert query("SELECT count(*) FROM results") == query("SELECT count(*) FROM dead_letters") == [(0,)]
    assert store.offsets(GROUP) == {}, "its first transaction would have made the row"


# -- the order of their locks


@pytest.mark.behaviour("DLQ-17", "TX-8")
@pytest.mark.parametrize(
    ("held", "free"), [((0, 5), [(0, 150), (1, 5)]), ((0, 150), [(1, 5)]), ((1, 5), list[tuple[int, int]]())], ids=str
)
def test_letters_read_again_and_below_are_locked_in_one_order(
    store: OffsetStore,
    claim: Claim,
    offsetstore_database: str,
    query: Query,
    *,
    held: tuple[int, int],
    free: list[tuple[int, int]],
) -> None:
    """Else a decision about all of them, which locks them in order, and the job would wait for each other."""
    give = {P0: OffsetRange(0, 200), P1: OffsetRange(0, 200)}
    with store.transaction(claim) as tx:
        left = {tp: one.remaining for tp, one in tx.lock(give).items()}
        keys = [(P0, 5), (P0, 150), (P1, 5)]
        tx.letters.write([dead(at, topic_partition=tp, sequence=digest(tp, b"k")) for tp, at in keys])
        tx.advance(left)
    store.reset(GROUP, {P0: 100, P1: 100}, reason="ticket 17")
    again = store.claim(GROUP, topics=["payments"])

    def job() -> None:
        with store.transaction(again, lock_timeout=60) as tx:
            ranges = {P0: OffsetRange(100, 200), P1: OffsetRange(100, 200)}
            tx.advance({tp: one.remaining for tp, one in tx.lock(ranges).items()})

    with psycopg.connect(offsetstore_database) as other:
        other.execute("SELECT FROM dead_letters WHERE (partition, record_offset) = (%s, %s) FOR UPDATE", held)
        running = in_background(job)
        wait_until(lambda: query(WAITING))
        found = query("SELECT partition, record_offset FROM dead_letters ORDER BY 1, 2 FOR UPDATE SKIP LOCKED")
        other.rollback()
        running.result(60)

    assert found == free
    letters = {(one.topic_partition.partition, one.offset): one for one in store.letters(GROUP, contents=True).letters}
    assert letters[0, 150].state == "superseded"
    assert not letters[0, 5].is_in_sequence
    assert not letters[1, 5].is_in_sequence


# -- letters that are hard to write


@pytest.mark.behaviour("DLQ-1")
def test_values_of_ten_megabytes_are_written_in_several_statements_and_read_in_parts(
    store: OffsetStore, claim: Claim
) -> None:
    values = [os.urandom(HUGE) for _ in range(3)]
    letters = [dead(number, payload=RECORD._replace(value=value)) for number, value in enumerate(values)]
    give_up(store, claim, *letters, until=3)

    assert [store.letter(GROUP, P0, number).payload for number in range(3)] == [one.payload for one in letters]
    assert len(store.letters(GROUP).letters) == 3
    store.request_replay(GROUP, LetterFilter(), reason="ticket 17")
    parts = read(
        store.database,
        lambda session: [
            [one.offset for one in session.requested_letters(GROUP, ["payments"], limit=100, max_bytes=size)]
            for size in (1, HUGE, 2 * HUGE + 100, 10 * HUGE)
        ],
    )
    assert parts == [[0], [0], [0, 1], [0, 1, 2]]


def test_values_are_neither_read_for_a_list_nor_to_measure_them(store: OffsetStore, claim: Claim, query: Query) -> None:
    value = os.urandom(1 << 20)
    give_up(store, claim, *(dead(number, payload=RECORD._replace(value=value)) for number in range(10)), until=10)
    store.request_replay(GROUP, LetterFilter(), reason="ticket 17")
    query("ANALYZE dead_letters")

    asked = {sql.LIST_LETTERS: page(), REQUESTED_LETTERS: requested(limit=100, max_bytes=1)}
    for statement, values in asked.items():
        top, *_ = executed_plan(store, statement, values)
        assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 64, "a value is in 130 blocks"


@pytest.mark.behaviour("DLQ-1")
def test_an_error_s_names_may_be_too_long_for_an_index(store: OffsetStore, claim: Claim) -> None:
    """A trigger raises what it likes: ``USING CONSTRAINT = new.note``. An entry has 2,704 bytes at most."""
    chosen = random.Random(1)  # noqa: S311 - no secret; nothing that could be compressed
    names = ["".join(chr(chosen.randrange(0x10000, 0x110000)) for _ in range(8_000)) for _ in range(5)]
    error_class, sqlstate, table, constraint, column = names
    error = LetterError(error_class, "refused", sqlstate, table, constraint, column)
    give_up(store, claim, dead(2, error=error), dead(3, error=replace(error, column=column[::-1])))

    assert store.letter(GROUP, P0, 2).error == error
    which = LetterFilter(error_class=error_class, sqlstate=sqlstate, table=table, constraint=constraint, column=column)
    assert [key.offset for key in store.discard(GROUP, which, reason="ticket 17").letters] == [2]


@pytest.mark.behaviour("DLQ-1")
def test_texts_that_postgresql_cant_store_are_cleaned_and_bytes_are_as_they_were(
    store: OffsetStore, claim: Claim
) -> None:
    headers = (("a\0b", b"\0"), ("", None), ("", b""), ("x", b"\xff"), ("x", b"\xfe"))
    error = LetterError("Bad\0Name", "nul \0, lone \ud800, " + "x" * 10_000, column="a\0", traceback="\0" * 9)
    give_up(store, claim, dead(1, error=error, payload=RECORD._replace(headers=headers, timestamp_ms=-(2**63))))

    letter = store.letter(GROUP, P0, 1)
    assert letter.payload == RECORD._replace(headers=headers, timestamp_ms=-(2**63))
    assert (letter.error.error_class, letter.error.column, letter.error.traceback) == ("BadName", "a", "")
    assert letter.error.text.startswith("nul , lone ?, xxx")
    assert len(letter.error.text) < 9_000


@pytest.mark.behaviour("DLQ-14")
def test_letters_are_superseded_in_the_order_of_decisions_whatever_the_plan(
    store: OffsetStore, claim: Claim, query: Query, offsetstore_database: str
) -> None:
    give_up(store, claim, *(dead(offset) for offset in (1, 2, 3)))
    store.request_replay(GROUP, LetterKey(P0, 1), reason="ticket 17")  # its row is now the last one in the table
    store.reset(GROUP, {P0: 0}, reason="ticket 17")
    database = query("SELECT current_database()")[0][0]
    for plan in ("indexscan", "bitmapscan", "indexonlyscan"):
        query(f"ALTER DATABASE {database} SET enable_{plan} = off")
    with OffsetStore.connect(offsetstore_database) as job, ThreadPoolExecutor(1) as pool:
        again = job.claim(GROUP, topics=["payments"])
        with transaction(store.database, name="test", lock_timeout=5) as deciding:
            deciding.lock_letters(GROUP, [LetterKey(P0, 1, "")])
            batch = pool.submit(give_up, job, again)
            wait_until(lambda: query(WAITING) == [(1,)])
            assert len(deciding.lock_letters(GROUP, [LetterKey(P0, 2, ""), LetterKey(P0, 3, "")])) == 2
        batch.result(60)
    assert store.letter_counts(GROUP) == {"superseded": 3}


# -- many letters


def page(*states: str, limit: int = 50, after: LetterCursor | None = None) -> dict[str, object]:
    """The values of the statement that reads a page."""
    cursor = ("after_at", "after_topic", "after_partition", "after_offset", "after_topic_id", "after_group")
    filters = ("cause", "topic", "partition", "error_class", "sqlstate", "table", "constraint", "column")
    values = {"group": GROUP, "states": list(states or sql.STATES), "limit": limit, "max_bytes": None}
    return {**values, **dict.fromkeys(filters), **dict(zip(cursor, after or (None,) * 6, strict=True))}


def requested(*, limit: int, max_bytes: int) -> dict[str, object]:
    """The values of the statement that reads what a job replays next."""
    topics = {"topics": ["payments"], "of_topics": None, "numbers": None}
    return {"group": GROUP, "limit": limit, "max_bytes": max_bytes, **topics}


def test_a_page_and_the_next_requested_letters_are_read_by_an_index_however_many_there_are(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    """A group with 20,000 letters, most of them dead, beside another group's."""
    give_up(store, claim, until=MANY)
    query(f"""
        INSERT INTO dead_letters (consumer_group, topic, partition, record_offset, state, cause, payload, error_class,
                                  attempts, created_at, sequence)
        SELECT g, 'payments', 0, n, CASE n % 20 WHEN 0 THEN 'replayed' WHEN 1 THEN 'requested' ELSE 'dead' END,
               'refused', 'kept', 'RowsRefused', 1, TIMESTAMPTZ '2025-03-01 00:00Z' + n * INTERVAL '1 second',
               sha256(CAST(n / 20 AS text)::bytea)
        FROM generate_series(0, {MANY - 1}) AS n, (VALUES ('{GROUP}'), ('another')) AS groups (g)
    """)
    query("ANALYZE dead_letters")
    choices: tuple[tuple[Any, ...], ...] = (("dead",), ("dead", "requested"), ())
    for states in choices:
        first = store.letters(GROUP, state=states or None, limit=50)
        later = LetterCursor.of(store.letters(GROUP, state=states or None, limit=8_000).letters[-1])
        assert first.next is not None
        for after in (None, LetterCursor.parse(first.next), later):
            plan = executed_plan(store, sql.LIST_LETTERS, page(*states, after=after))

            scans = [node for node in plan if node.get("Relation Name") == "dead_letters"]
            assert {node.get("Index Name") for node in scans} == {"dead_letters_list_idx"}
            most = 52 * len(states or sql.STATES)  # a page, one more that tells of the next page, and the end of a tie
            assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= most
            assert all(node["Actual Rows"] <= most for node in plan if "Sort" in node["Node Type"])

    plan = executed_plan(store, REQUESTED_LETTERS, requested(limit=1000, max_bytes=1 << 26))
    assert "dead_letters_requested_idx" in {node.get("Index Name") for node in plan}
    assert plan[0]["Actual Rows"] == 1000
    assert plan[0]["Actual Total Time"] < 1_000  # milliseconds
    done = store.request_replay(GROUP, LetterFilter(cause="refused"), reason="ticket 17")
    assert (len(done.letters), done.more) == (10_000, True)
    assert store.history(GROUP)[-1].reason == "10000 dead letters to be replayed (cause=refused): ticket 17"
