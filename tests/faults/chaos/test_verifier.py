"""The harness sees each violation that it is there for: it is given what a broken job would leave behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from offsetstore.testing.job_process import Event
from tests.faults.chaos.harness.calls import Call, Worked, wrong
from tests.faults.chaos.harness.errors import Report
from tests.faults.chaos.harness.expected import Stretch, stretches
from tests.faults.chaos.harness.ledger import Bad, Entry, Ledger
from tests.faults.chaos.harness.observer import Decision, Look
from tests.faults.chaos.harness.verifier import Told, Verifier
from tests.faults.chaos.means.relays import differences
from tests.support.postgres import Database

ENTRIES = [Entry(offset, 100 + offset, f"k{offset % 3}", None if offset == 4 else offset) for offset in range(10)]
BAD = (ENTRIES[3], ENTRIES[6])
PLACE: tuple[str, int] = ("payments", 0)
ADOPTED = Decision(1, "billing", "payments", 0, "adopt", None, 0)
MINE = "11111111-1111-1111-1111-111111111111"


class Tables:
    """What the database holds, by part of the query: 8 records, of which those without are in letters."""

    def __init__(self, *without: int) -> None:
        self.landed = [
            ("payments", 0, e.offset, e.seq, e.key, e.amount) for e in ENTRIES[:8] if e.offset not in without
        ]
        self.moves: list[tuple[Any, ...]] = [("INSERT", None, 0, False), ("UPDATE", 0, 8, True)]
        self.letters = [("payments", 0, one.offset, "kept", b"key", one.value) for one in BAD]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        if "FROM landed" in query:
            return list(self.landed)
        if "FROM dead_letters" in query:
            return list(self.letters)
        if "FROM sums" in query:
            mine = {key: [row for row in self.landed if row[4] == key] for key in {row[4] for row in self.landed}}
            return [(key, len(rows), sum(row[5] or 0 for row in rows)) for key, rows in mine.items()]
        if "claim_id" in query:
            return [("payments-0", begin, end, MINE) for _, begin, end, advanced in self.moves if advanced]
        return [("billing", "payments", 0, *move, 1) for move in self.moves]


def look(stored: int, *letters: int, replayed: tuple[int, ...] = (), failures: tuple[int, ...] = (), **of: Any) -> Look:
    """At results that lack the open letters' records."""
    seen = [entry for entry in ENTRIES[: of.pop("records", stored)] if entry.offset not in letters]
    landed = {PLACE: (len(seen), sum(e.seq for e in seen))} if seen else {}
    sums = len(seen), sum(e.amount or 0 for e in seen)
    found = Look(1.0, 1.0, {("billing", *PLACE): stored}, landed, sums, (ADOPTED,))
    found.open = {PLACE: letters} if letters else {}
    found.closed = {PLACE: replayed} if replayed else {}
    found.failures = {PLACE: failures} if failures else {}
    return replace(found, **of)


def check(tables: Tables, *looks: Look, events: tuple[Event, ...] = (), bad: tuple[Entry, ...] = ()) -> list[str]:
    ledger = Ledger("", random.Random(1))  # noqa: S311 - not asked
    ledger.records["payments", 0, 0] = ENTRIES
    ledger.bad["payments", 0, 0] = {entry.offset: Bad(entry, b"key", entry.value) for entry in bad}
    told = [Told("billing", "batch", [Event("claimed", 0.0, {"claim_id": MINE}), *events])]
    return Verifier(ledger, cast("Database", tables), looks, told, {"reset"}).verify()


def begun(until: int) -> Event:
    return Event("begun", 1.0, {"ranges": {"payments-0": [0, until]}})


def done(until: int) -> Event:
    return Event("done", 0.5, {"ranges": {"payments-0": [0, until]}})


def failed(class_name: str, **stored: Any) -> Event:
    return Event("failed", 2.0, {"class_name": class_name, **stored})


RESET = Decision(2, "billing", "payments", 0, "reset", 8, 6)


def test_what_is_right_violates_nothing() -> None:
    """Also what is replayed, what nobody knows of, what was stored before a refused record, and a decided reset."""
    assert check(Tables(), look(0, last=0.2), look(8), events=(done(8),)) == []
    looks = [look(0), look(5, 3, failures=(6,)), look(8, 3, 6)]
    assert check(Tables(3, 6), *looks, bad=BAD) == []
    assert check(Tables(3), *looks, look(8, 3, replayed=(6,)), bad=BAD) == []
    assert check(Tables(), look(8), events=(begun(8), failed("CommitUnknown"))) == []
    assert check(Tables(), look(8), events=(begun(9), failed("RowsRefused", stored={"payments-0": [0, 8]}))) == []
    again = Tables()
    again.moves += [("UPDATE", 8, 6, False), ("UPDATE", 6, 8, True)]
    again.landed += again.landed[6:8]
    twice = {PLACE: (10, sum(range(100, 108)) + 213)}
    assert check(again, look(8, history=(ADOPTED, RESET), landed=twice, sums=(10, 37))) == []


def planted(attribute: str, change: Callable[[list[Any]], list[Any]], *without: int) -> Tables:
    tables = Tables(*without)
    setattr(tables, attribute, change(getattr(tables, attribute)))
    return tables


DIFFERENT: dict[str, tuple[Callable[[list[Any]], list[Any]], list[str]]] = {
    "missing": (lambda rows: [*rows[:3], *rows[4:]], ["I1", "I5"]),
    "twice": (lambda rows: [*rows, rows[3]], ["I2", "I5"]),
    "beyond the stored offset": (lambda rows: [*rows, ("payments", 0, 8, 108, "k2", 8)], ["I2", "I5"]),
    "another amount": (lambda rows: [*rows[:3], (*rows[3][:5], 4), *rows[4:]], ["I1", "I2", "I5"]),
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_results_that_differ_from_the_ledger(difference: str) -> None:
    change, invariants = DIFFERENT[difference]
    assert [found[:2] for found in check(planted("landed", change), look(8))] == invariants


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (look(4, records=5), "I3: stored"),
        (look(4, records=3), "I3: stored"),
        (look(4, sums=(4, 7)), "I3: stored"),
        (look(8, notes=("a note of 6",)), "metadata: a note of 6"),
    ],
    ids=["results ahead", "behind", "sums", "note"],
)
def test_one_snapshot_that_is_torn_is_enough(found: Look, words: str) -> None:
    [told] = check(Tables(), look(0), found, look(8))
    assert told.startswith(words)


@pytest.mark.parametrize(
    ("moves", "words"),
    [
        ([("UPDATE", 0, 4, True), ("UPDATE", 5, 8, True)], "though it was at 4"),
        ([("UPDATE", 0, 9, True), ("UPDATE", 9, 8, True)], "advances backwards"),
        ([("UPDATE", 0, 8, False)], "without a decision"),
        ([("UPDATE", 0, 7, True)], "7 in the log, 8 in the table"),
    ],
    ids=["a gap", "backwards", "by nobody", "behind the log's back"],
)
def test_moves_that_are_no_chain(moves: list[tuple[Any, ...]], words: str) -> None:
    [found] = check(planted("moves", lambda rows: [rows[0], *moves]), look(8))
    assert found.startswith("I4")
    assert words in found


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([done(9)], ["was reported written up to 9, and 8 is stored"]),
        ([begun(9), failed("TransactionLost")], ["0 -> 8 was reported failed (TransactionLost), and advanced"]),
        (
            [begun(9), failed("RowsRefused", stored={"payments-0": [0, 7]})],
            ["0 -> 8 was reported failed (RowsRefused)", "0 -> 7 was reported stored, and did not advance"],
        ),
    ],
    ids=["written and not there", "failed and there", "stored elsewhere"],
)
def test_what_was_reported_and_is_not_so(events: list[Event], told: list[str]) -> None:
    [found] = check(Tables(), look(0, last=0.2), look(8), events=tuple(events))
    assert found.startswith("I6: payments-0")
    assert all(one in found for one in told)


def test_a_decision_that_nobody_asked_for() -> None:
    skipped = Decision(2, "billing", "payments", 0, "skip", 0, 5)
    tables = planted("moves", lambda rows: [rows[0], ("UPDATE", 0, 5, False), ("UPDATE", 5, 8, True)], *range(5))
    seen = look(8, history=(ADOPTED, skipped), landed={PLACE: (3, 318)}, sums=(3, 18))

    assert check(tables, seen) == ["decisions: skip of payments-0 from 0 to 5"]


def test_a_topic_that_is_recreated_or_whose_log_is_cut_has_another_life() -> None:
    restart = Decision(2, "billing", "payments", 0, "restart", 8, 0)
    added = Decision(3, "billing", "payments", 1, "adopt", None, 0)
    suspect, reset = replace(restart, event="suspect", after=8), replace(restart, event="reset", after=5)
    first, second = Stretch("payments", 0, 0, 0, 8), Stretch("payments", 1, 0, 0, 3)

    found = stretches({PLACE: 3, ("payments", 1): 4}, [ADOPTED, restart, added], {"payments": 1})
    assert found == [first, second, Stretch("payments", 1, 1, 0, 4)]
    found = stretches({PLACE: 9}, [ADOPTED, suspect, reset], {"payments": 1})
    assert found == [first, replace(second, begin=5, end=9)]


@pytest.mark.parametrize(
    ("torn", "words"),
    [
        (look(5, records=5), "payments-0 at 5 lacks letters of [3], and has unexpected ones of []"),
        (look(5, 3, replayed=(3,)), "payments-0 at 5 lacks letters of [], and has unexpected ones of [3]"),
        (look(5, 3, replayed=(6,)), "payments-0 at 5 lacks letters of [], and has unexpected ones of [6]"),
        (look(5, 3, failures=(7,)), "payments-0 at 5 has failed attempts at [7], which are good"),
        (look(5, 3, failures=(3,)), "payments-0 at 5 has failed attempts at [3], which it has passed"),
    ],
    ids=["none", "twice", "not passed yet", "an innocent one blamed", "attempts left behind"],
)
def test_letters_that_are_not_those_of_the_bad_records(torn: Look, words: str) -> None:
    assert check(Tables(3, 6), torn, look(8, 3, 6), bad=BAD) == [f"letters: {words}"]


def test_a_record_in_the_results_and_in_a_letter_and_a_letter_with_other_bytes() -> None:
    seen = look(5, 3)
    [found] = check(Tables(3, 6), replace(seen, landed=look(5).landed), look(8, 3, 6), bad=BAD)
    assert found.startswith("I3: stored")
    assert [one[:2] for one in check(Tables(6), look(8, 3, 6), bad=BAD)] == ["I2", "I5"]
    other = planted("letters", lambda rows: [(*rows[0][:5], ENTRIES[4].value), *rows[1:]], 3, 6)
    [found] = check(other, look(8, 3, 6), bad=BAD)
    assert found.startswith("letters: payments-0@3: kept")


def test_an_error_has_to_say_where_what_and_the_way_out() -> None:
    told = Report("LockTimeout", "payments-0: locked", "batch", ours=True, found="pid 7", next_step="Wait.")

    assert told.lacks(["payments"]) == []
    lacking = replace(told, text="locked", found=None, next_step="")
    assert lacking.lacks(["payments"]) == ["a partition", "what was found", "the way out"]


# -- calls of a handler


def call(offset: int, at: float, outcome: str | None = "row", *, epoch: int = 1, pid: int = 10, task: int = 5) -> Call:
    ended = None if outcome is None else at + 0.1
    return Call(epoch, pid, task, f"payments/an-id/0/{offset}", f"k{offset % 2}", at, ended, outcome)


CALLS = [call(0, 1.0), call(1, 1.0), call(2, 1.2), call(3, 1.3, "ValueError"), call(3, 1.5)]
AGAIN = [*CALLS, call(3, 1.8, task=6, pid=11)]
LATER = [call(offset, 3.1 + offset, epoch=2, pid=12, task=0) for offset in (2, 3)]


def batch(begin: int, until: int, *, begun: float, done: float | None = None) -> list[Event]:
    ranges = {"ranges": {"payments-0": (begin, until)}}
    return [Event("begun", begun, ranges), *([] if done is None else [Event("done", done, ranges)])]


WHOLE = Worked(1, batch(0, 4, begun=0.9, done=2.0))
KILLED = Worked(1, batch(0, 2, begun=0.9, done=1.15) + batch(2, 4, begun=1.16), was_cut=True)
SECOND = Worked(2, batch(2, 4, begun=3.0, done=4.0))


def checked(calls: list[Call], *jobs: Worked, topic_id: str = "an-id", concurrency: int = 3) -> list[str]:
    produced = [("payments", 0, offset) for offset in range(4)]
    ordered = sorted(calls, key=lambda one: one.begun)
    return wrong(ordered, produced, jobs or [WHOLE], topic_ids={"payments": topic_id}, concurrency=concurrency)


def test_calls_that_are_right_also_after_a_kill() -> None:
    assert checked(CALLS) == []
    assert checked(AGAIN, replace(WHOLE, kills=[1.6])) == []
    assert checked([*CALLS, *LATER], KILLED, SECOND) == []


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (CALLS[1:], "no call for payments-0@0 has ended"),
        ([call(0, 1.0, None), *CALLS[1:2], *CALLS[3:]], "no call for payments-0@0 has ended"),
        ([*CALLS, call(4, 2.0)], "a call for payments-0@4, which nobody has produced"),
        ([*CALLS, call(0, 1.8)], "calls for payments-0@0 in task 5 have ended with ['row', 'row']"),
        ([*CALLS[:4], *(call(3, at, "ValueError") for at in (1.5, 1.7, 1.9))], "calls for payments-0@3 in task 5"),
        (AGAIN, "job 1 has called for payments-0@3 in 2 tasks"),
        ([CALLS[0], call(1, 1.0), call(2, 1.05), *CALLS[3:]], "calls for offsets 0 and 2 ran at once"),
        ([call(2, 1.0), call(1, 1.0), call(0, 1.2), *CALLS[3:]], "offset 0 was called for after 2"),
    ],
)
def test_calls_that_must_not_be(calls: list[Call], said: str) -> None:
    assert [one for one in checked(calls) if said in one]


def test_calls_again_that_no_kill_explains() -> None:
    for at in (0.5, 2.5):
        assert checked(AGAIN, replace(WHOLE, kills=[at])) == ["job 1 has called for payments-0@3 in 2 tasks"]
    earlier = call(1, 3.0, epoch=2, pid=12, task=0)
    told = "payments-0@1 was called for by job 1, and again by job 2"
    assert checked([*CALLS, earlier, *LATER], KILLED, SECOND) == [told]
    assert len(checked([*CALLS, *LATER], replace(KILLED, was_cut=False), SECOND)) == len(LATER)
    assert len(checked(CALLS, topic_id="another")) == len(CALLS)
    assert checked(CALLS, concurrency=1) == ["2 calls ran at once in one task, with concurrency=1"]


# -- rows of the outbox


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([0, 1, 2], []),
        ([0, 2], ["a: lost [1] and 0 more"]),
        ([0, 1, 1, 2], ["a: twice [1] and 0 more"]),
        ([0, 2, 1], ["a: out of order [1] and 0 more"]),
        ([0, 1, 2, 3], ["a: never committed [3] and 0 more"]),
    ],
)
def test_rows_that_a_reader_must_have_once_and_in_order(found: list[int], told: list[str]) -> None:
    assert differences({b"a": found, b"b": []}, {b"a": [0, 1, 2], b"b": []}) == told
