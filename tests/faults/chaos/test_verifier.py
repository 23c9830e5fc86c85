"""The verifier sees each violation that it is there for: it is given what a broken job would leave behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from offsetstore.testing.job_process import Event
from tests.faults.chaos.harness.errors import Report
from tests.faults.chaos.harness.expected import Stretch, stretches
from tests.faults.chaos.harness.ledger import Bad, Entry, Ledger
from tests.faults.chaos.harness.observer import Decision, Look
from tests.faults.chaos.harness.verifier import Told, Verifier
from tests.support.postgres import Database

ENTRIES = [Entry(offset, 100 + offset, f"k{offset % 3}", None if offset == 4 else offset) for offset in range(10)]
ADOPTED = Decision(1, "billing", "payments", 0, "adopt", None, 0)
MINE = "11111111-1111-1111-1111-111111111111"


class Tables:
    """What the database holds, by part of the query."""

    def __init__(self, stored: int) -> None:
        self.landed = [("payments", 0, e.offset, e.seq, e.key, e.amount) for e in ENTRIES[:stored]]
        self.moves: list[tuple[Any, ...]] = [("INSERT", None, 0, False), ("UPDATE", 0, stored, True)]
        self.claim = MINE
        self.letters: list[tuple[Any, ...]] = []

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        if "FROM landed" in query:
            return list(self.landed)
        if "FROM dead_letters" in query:
            return self.letters
        if "FROM sums" in query:
            return self.sums()
        if "claim_id" in query:
            return [("payments-0", begin, end, self.claim) for _, begin, end, advanced in self.moves if advanced]
        return [("billing", "payments", 0, *move, 1) for move in self.moves]

    def sums(self) -> list[tuple[Any, ...]]:
        keys = sorted({row[4] for row in self.landed})
        mine = {key: [row for row in self.landed if row[4] == key] for key in keys}
        return [(key, len(rows), sum(row[5] or 0 for row in rows)) for key, rows in mine.items()]


def look(
    stored: int, *, at: float = 1.0, history: tuple[Decision, ...] = (ADOPTED,), records: int | None = None
) -> Look:
    seen = ENTRIES[: stored if records is None else records]
    landed = {("payments", 0): (len(seen), sum(e.seq for e in seen))} if seen else {}
    amounts = sum(e.amount or 0 for e in seen)
    return Look(at, at, {("billing", "payments", 0): stored}, landed, (len(seen), amounts), history)


def check(
    tables: Tables,
    looks: list[Look],
    *,
    events: tuple[Event, ...] = (),
    allowed: tuple[str, ...] = (),
    way: str = "batch",
    bad: tuple[Entry, ...] = (),
) -> list[str]:
    ledger = Ledger("", random.Random(1))  # noqa: S311 - not asked
    ledger.records["payments", 0, 0] = ENTRIES
    for entry in bad:
        ledger.bad["payments", 0, 0][entry.offset] = Bad(entry, b"key", entry.value)
    told = [Told("billing", way, [Event("claimed", 0.0, {"claim_id": MINE}), *events])]
    database = cast("Database", tables)
    return Verifier(ledger, database, looks, told, set(allowed)).verify()


def test_what_is_right_violates_nothing() -> None:
    done = Event("done", 1.5, {"ranges": {"payments-0": [0, 8]}})

    assert check(Tables(8), [look(0), look(8, at=2.0)], events=(done,)) == []


def test_a_note_of_another_offset_is_a_violation() -> None:
    note = "payments-0 of billing is at 8, and its note is of 6"

    assert check(Tables(8), [look(0), replace(look(8, at=2.0), notes=(note,))]) == [f"metadata: {note}"]


def lose(tables: Tables) -> None:
    del tables.landed[3]


def repeat(tables: Tables) -> None:
    tables.landed.append(tables.landed[3])


def run_ahead(tables: Tables) -> None:
    tables.landed.append(("payments", 0, 8, 108, "k2", 8))


def change(tables: Tables) -> None:
    tables.landed[3] = ("payments", 0, 3, 103, "k0", 4)


def miscount(tables: Tables) -> None:
    tables.sums = lambda: [("k0", 3, 9), ("k1", 3, 8), ("k2", 2, 8)]


@pytest.mark.parametrize(
    ("planted", "invariants"),
    [
        (lose, ["I1", "I5"]),
        (repeat, ["I2", "I5"]),
        (run_ahead, ["I2", "I5"]),
        (change, ["I1", "I2", "I5"]),
        (miscount, ["I5"]),
    ],
    ids=["missing", "twice", "beyond the stored offset", "another amount", "a sum"],
)
def test_results_that_differ_from_the_ledger(planted: Callable[[Tables], None], invariants: list[str]) -> None:
    tables = Tables(8)
    planted(tables)

    assert [found[:2] for found in check(tables, [look(8)])] == invariants


@pytest.mark.parametrize(
    "torn", [look(4, records=5), look(4, records=3), replace(look(4), sums=(4, 7))], ids=["ahead", "behind", "sums"]
)
def test_one_snapshot_that_is_torn_is_enough(torn: Look) -> None:
    [found] = check(Tables(8), [look(0), torn, look(8)])

    assert found.startswith("I3: stored")


@pytest.mark.parametrize(
    ("moves", "words"),
    [
        ([("INSERT", None, 0, False), ("UPDATE", 0, 4, True), ("UPDATE", 5, 8, True)], "though it was at 4"),
        ([("INSERT", None, 0, False), ("UPDATE", 0, 9, True), ("UPDATE", 9, 8, True)], "advances backwards"),
        ([("INSERT", None, 0, False), ("UPDATE", 0, 8, False)], "without a decision"),
        ([("INSERT", None, 0, False), ("UPDATE", 0, 7, True)], "7 in the log, 8 in the table"),
    ],
    ids=["a gap", "backwards", "by nobody", "behind the log's back"],
)
def test_moves_that_are_no_chain(moves: list[tuple[Any, ...]], words: str) -> None:
    tables = Tables(8)
    tables.moves = moves

    [found] = check(tables, [look(8)])

    assert found.startswith("I4")
    assert words in found


def test_a_batch_that_was_reported_written_and_is_not_there() -> None:
    done = Event("done", 1.5, {"ranges": {"payments-0": [0, 9]}})

    [found] = check(Tables(8), [look(0), look(8, at=2.0)], events=(done,))

    assert found == "I6: payments-0 was reported written up to 9, and 8 is stored"


FAILED = (
    Event("begun", 1.0, {"ranges": {"payments-0": [0, 8]}}),
    Event("failed", 2.0, {"class_name": "TransactionLost"}),
)


def test_a_batch_that_was_reported_failed_and_is_there() -> None:
    [found] = check(Tables(8), [look(8)], events=FAILED)

    assert found == "I6: payments-0 0 -> 8 was reported failed (TransactionLost), and advanced"


def test_a_part_of_a_failed_batch_that_is_there_without_a_word() -> None:
    begun = (Event("begun", 1.0, {"ranges": {"payments-0": [0, 9]}}), FAILED[1])

    [found] = check(Tables(8), [look(8)], events=begun)

    assert found == "I6: payments-0 0 -> 8 was reported failed (TransactionLost), and advanced"


def test_what_a_refused_batch_has_stored_before_the_record() -> None:
    told = {"class_name": "RowsRefused", "stored": {"payments-0": [0, 8]}}
    begun = Event("begun", 1.0, {"ranges": {"payments-0": [0, 9]}})

    assert check(Tables(8), [look(8)], events=(begun, Event("failed", 2.0, told))) == []

    told["stored"] = {"payments-0": [0, 7]}
    [found] = check(Tables(8), [look(8)], events=(begun, Event("failed", 2.0, told)))
    assert found == (
        "I6: payments-0 0 -> 8 was reported failed (RowsRefused), and advanced; "
        "payments-0 0 -> 7 was reported stored, and did not advance"
    )


def test_a_commit_of_which_nobody_knows_may_be_there() -> None:
    unknown = (FAILED[0], Event("failed", 2.0, {"class_name": "CommitUnknown"}))

    assert check(Tables(8), [look(8)], events=unknown) == []


def test_a_decision_that_nobody_asked_for() -> None:
    skipped = Decision(2, "billing", "payments", 0, "skip", 0, 5)
    tables = Tables(8)
    tables.moves = [("INSERT", None, 0, False), ("UPDATE", 0, 5, False), ("UPDATE", 5, 8, True)]
    tables.landed = tables.landed[5:]
    seen = replace(look(8, history=(ADOPTED, skipped)), landed={("payments", 0): (3, 318)}, sums=(3, 18))

    assert check(tables, [seen], allowed=("skip",)) == []
    assert check(tables, [seen]) == ["decisions: skip of payments-0 from 0 to 5"]


def test_a_reset_makes_records_be_written_twice_and_no_more() -> None:
    reset = Decision(2, "billing", "payments", 0, "reset", 8, 6)
    tables = Tables(8)
    tables.moves += [("UPDATE", 8, 6, False), ("UPDATE", 6, 8, True)]
    tables.landed += tables.landed[6:8]
    seen = replace(
        look(8, history=(ADOPTED, reset)), landed={("payments", 0): (10, sum(range(100, 108)) + 213)}, sums=(10, 37)
    )

    assert check(tables, [seen], allowed=("reset",)) == []


@pytest.mark.parametrize("event", ["adopt", "restart"], ids=["added later", "there from its beginning"])
def test_a_partition_that_is_new_in_a_recreated_topic_is_of_its_new_life(event: str) -> None:
    history = [
        ADOPTED,
        Decision(2, "billing", "payments", 0, "restart", 8, 0),
        Decision(3, "billing", "payments", 1, event, None, 0),
    ]

    found = stretches({("payments", 0): 3, ("payments", 1): 4}, history, {"payments": 1})

    assert found == [
        Stretch("payments", 0, 0, 0, 8),
        Stretch("payments", 1, 0, 0, 3),
        Stretch("payments", 1, 1, 0, 4),
    ]


def test_the_second_new_life_of_a_topic_is_another_one() -> None:
    restarted = [Decision(2 + n, "billing", "payments", 0, "restart", 8, 0) for n in range(2)]
    added = Decision(4, "billing", "payments", 1, "restart", None, 0)

    found = stretches({("payments", 0): 3, ("payments", 1): 4}, [ADOPTED, *restarted, added], {"payments": 2})

    assert {(one.generation, one.partition) for one in found} == {(0, 0), (1, 0), (2, 0), (2, 1)}


def test_after_the_reset_of_a_partition_that_lost_records_its_log_is_another_one() -> None:
    history = [
        ADOPTED,
        Decision(2, "billing", "payments", 1, "adopt", None, 0),
        Decision(3, "billing", "payments", 0, "suspect", 8, 8),
        Decision(4, "billing", "payments", 0, "reset", 8, 5),
        Decision(5, "billing", "payments", 0, "reset", 7, 6),
        Decision(6, "billing", "payments", 1, "reset", 4, 2),
    ]

    found = stretches({("payments", 0): 9, ("payments", 1): 3}, history, {"payments": 1})

    assert found == [
        Stretch("payments", 0, 0, 0, 8),
        Stretch("payments", 1, 0, 5, 7),
        Stretch("payments", 1, 0, 6, 9),
        Stretch("payments", 0, 1, 0, 4),
        Stretch("payments", 0, 1, 2, 3),
    ]


class Acknowledging:
    """A producer for two logs; ``ends`` are their next offsets."""

    def __init__(self) -> None:
        self.ends = {0: 0, 1: 0}

    def produce(self, *_: object, partition: int, on_delivery: Callable[[object, Any], None], **__: object) -> None:
        offset = self.ends[partition]
        self.ends[partition] += 1
        on_delivery(None, SimpleNamespace(offset=lambda: offset))

    def poll(self, _: float) -> None:
        """Nothing is left to tell."""


def test_a_cut_log_keeps_the_records_below_and_those_beyond_its_former_end_are_in_both_generations() -> None:
    ledger, client = Ledger("", random.Random(1)), Acknowledging()  # noqa: S311 - not asked
    for partition in (0, 1):
        for _ in range(4):
            ledger.send(client, "payments", partition)

    ledger.cut("payments", {0: 2})
    client.ends[0] = 2
    for partition in (0, 1):
        for _ in range(4):
            ledger.send(client, "payments", partition)

    def seqs(generation: int, partition: int) -> list[int]:
        return [entry.seq for entry in ledger.between("payments", generation, partition, 0, 100)]

    assert (seqs(0, 0), seqs(1, 0)) == ([1, 2, 3, 4, 11, 12], [1, 2, 9, 10, 11, 12])
    assert seqs(0, 1) == seqs(1, 1) == [5, 6, 7, 8, 13, 14, 15, 16]
    assert ledger.count == 16


BAD = (ENTRIES[3], ENTRIES[6])
PLACE = ("payments", 0)


def with_letters(stored: int, *letters: int, replayed: tuple[int, ...] = (), failures: tuple[int, ...] = ()) -> Look:
    """A look at results that lack the open letters' records."""
    seen = [entry for entry in ENTRIES[:stored] if entry.offset not in letters]
    return replace(
        look(stored),
        landed={PLACE: (len(seen), sum(e.seq for e in seen))},
        sums=(len(seen), sum(e.amount or 0 for e in seen)),
        open={PLACE: letters} if letters else {},
        closed={PLACE: replayed} if replayed else {},
        failures={PLACE: failures} if failures else {},
    )


def kept(*without: int) -> Tables:
    """The last of these looks, in the tables."""
    tables = Tables(8)
    tables.landed = [row for row in tables.landed if row[2] not in without]
    tables.letters = [("payments", 0, one.offset, "kept", b"key", one.value) for one in BAD]
    return tables


def test_bad_records_in_letters_and_good_ones_in_the_results_violate_nothing() -> None:
    looks = [look(0), with_letters(5, 3, failures=(6,)), with_letters(8, 3, 6)]

    assert check(kept(3, 6), looks, bad=BAD) == []
    assert check(kept(3), [*looks, with_letters(8, 3, replayed=(6,))], bad=BAD) == []


@pytest.mark.parametrize(
    ("torn", "words"),
    [
        (with_letters(5), "payments-0 at 5 lacks letters of [3], and has unexpected ones of []"),
        (with_letters(5, 3, replayed=(3,)), "payments-0 at 5 lacks letters of [], and has unexpected ones of [3]"),
        (with_letters(5, 3, replayed=(6,)), "payments-0 at 5 lacks letters of [], and has unexpected ones of [6]"),
        (with_letters(5, 3, replayed=(4,)), "payments-0 at 5 lacks letters of [], and has unexpected ones of [4]"),
        (with_letters(5, 3, failures=(7,)), "payments-0 at 5 has failed attempts at [7], which are good"),
        (with_letters(5, 3, failures=(3,)), "payments-0 at 5 has failed attempts at [3], which it has passed"),
    ],
    ids=["none", "twice", "not passed yet", "of a good record", "an innocent one blamed", "attempts left behind"],
)
def test_letters_that_are_not_those_of_the_bad_records(torn: Look, words: str) -> None:
    assert check(kept(3, 6), [torn, with_letters(8, 3, 6)], bad=BAD) == [f"letters: {words}"]


@pytest.mark.parametrize("offset", [3, 4], ids=["a bad one in both", "a good one in neither"])
def test_a_record_in_the_results_and_in_a_letter_or_in_neither(offset: int) -> None:
    entry = ENTRIES[offset]
    seen = with_letters(5, 3)
    (count, seqs), sign = seen.landed[PLACE], 1 if entry in BAD else -1
    torn = replace(seen, landed={PLACE: (count + sign, seqs + sign * entry.seq)})

    [found] = check(kept(3, 6), [torn, with_letters(8, 3, 6)], bad=BAD)

    assert found.startswith("I3: stored")


def test_at_the_end_a_record_in_both_is_there_too_often() -> None:
    found = check(kept(6), [with_letters(8, 3, 6)], bad=BAD)

    assert [one[:2] for one in found] == ["I2", "I5"]


def test_a_letter_with_other_bytes_than_were_sent() -> None:
    tables = kept(3, 6)
    tables.letters[0] = (*tables.letters[0][:5], ENTRIES[4].value)

    [found] = check(tables, [with_letters(8, 3, 6)], bad=BAD)

    assert found.startswith("letters: payments-0@3: kept")


def test_an_error_has_to_say_where_what_and_the_way_out() -> None:
    told = Report("LockTimeout", "payments-0: locked", True, "locked", "pid 7", None, "Wait.", None, "batch")  # noqa: FBT003 - by position

    assert told.lacks(["payments"]) == []
    assert replace(told, text="locked", found=None, next_step="").lacks(["payments"]) == [
        "a partition",
        "what was found",
        "the way out",
    ]
