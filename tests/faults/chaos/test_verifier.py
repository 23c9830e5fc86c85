"""The harness sees each violation that it is there for: it is given what a broken job would leave behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from offsetstore.testing.job_process import OutputLine
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


def check(tables: Tables, *looks: Look, events: tuple[OutputLine, ...] = (), bad: tuple[Entry, ...] = ()) -> list[str]:
    ledger = Ledger("", random.Random(1))  # noqa: S311 - not asked
    ledger.records["payments", 0, 0] = ENTRIES
    ledger.bad["payments", 0, 0] = {entry.offset: Bad(entry, b"key", entry.value) for entry in bad}
    told = [Told("billing", "batch", [OutputLine("claimed", 0.0, {"claim_id": MINE}), *events])]
    return Verifier(ledger, cast("Database", tables), looks, told, {"reset"}).verify()


def begun(until: int) -> OutputLine:
    return OutputLine("begun", 1.0, {"ranges": {"payments-0": [0, until]}})


def done(until: int) -> OutputLine:
    return OutputLine("done", 0.5, {"ranges": {"payments-0": [0, until]}})


def failed(class_name: str, **stored: Any) -> OutputLine:
    return OutputLine("failed", 2.0, {"class_name": class_name, **stored})


RESET = Decision(2, "billing", "payments", 0, "reset", 8, 6)


def test_what_is_right_violates_nothing() -> None:
    """Also what is replayed, what nobody knows of, what was stored before a refused record, and a decided reset."""
    assert check(Tables(), look(0, last=0.2), look(8), events=(done(8),)) == []
    looks = [look(0), look(5, 3, failures=(6,)), look(8, 3, 6)]
    assert check(Tables(3, 6), *looks, bad=BAD) == []
    assert check(Tables(3), *looks, look(8, 3, replayed=(6,)), bad=BAD) == []
    assert check(Tables(), look(8), events=(begun(8), failed("CommitUnknown"))) == []
    refused = (begun(9), failed("RowsRefused", stored={"payments-0": [0, 8]}))
    for tables in (Tables(), moved(("UPDATE", 0, 4, True), ("UPDATE", 4, 8, True))):
        assert check(tables, look(8), events=refused) == []
    again = Tables()
    again.moves += [("UPDATE", 8, 6, False), ("UPDATE", 6, 8, True)]
    again.landed += again.landed[6:8]
    twice = {PLACE: (10, sum(range(100, 108)) + 213)}
    assert check(again, look(8, history=(ADOPTED, RESET), landed=twice, sums=(10, 37))) == []


def planted(attribute: str, change: Callable[[list[Any]], list[Any]], *without: int) -> Tables:
    tables = Tables(*without)
    setattr(tables, attribute, change(getattr(tables, attribute)))
    return tables


SKIPPED = Decision(2, "billing", "payments", 0, "skip", 0, 5)
LETTERS = [look(8, 3, 6)]
OTHER = planted("letters", lambda rows: [(*rows[0][:5], ENTRIES[4].value), *rows[1:]], 3, 6)


def moved(*moves: tuple[Any, ...], without: range = range(0)) -> Tables:
    return planted("moves", lambda rows: [rows[0], *moves], *without)


VIOLATED: dict[str, tuple[Tables, list[Look], dict[str, Any], list[str]]] = {
    # Results.
    "missing": (planted("landed", lambda rows: [*rows[:3], *rows[4:]]), [look(8)], {}, ["I1...", "I5..."]),
    "twice": (planted("landed", lambda rows: [*rows, rows[3]]), [look(8)], {}, ["I2...", "I5..."]),
    "beyond the stored offset": (
        planted("landed", lambda rows: [*rows, ("payments", 0, 8, 108, "k2", 8)]),
        *([look(8)], {}, ["I2...", "I5..."]),
    ),
    "another amount": (
        planted("landed", lambda rows: [*rows[:3], (*rows[3][:5], 4), *rows[4:]]),
        *([look(8)], {}, ["I1...", "I2...", "I5..."]),
    ),
    # One snapshot that is torn is enough.
    "results ahead": (Tables(), [look(0), look(4, records=5), look(8)], {}, ["I3: stored..."]),
    "results behind": (Tables(), [look(0), look(4, records=3), look(8)], {}, ["I3: stored..."]),
    "sums": (Tables(), [look(0), look(4, sums=(4, 7)), look(8)], {}, ["I3: stored..."]),
    "a note": (Tables(), [look(0), look(8, notes=("a note of 6",)), look(8)], {}, ["metadata: a note of 6"]),
    # Moves that are no chain.
    "a gap": (moved(("UPDATE", 0, 4, True), ("UPDATE", 5, 8, True)), [look(8)], {}, ["I4...though it was at 4"]),
    "backwards": (moved(("UPDATE", 0, 9, True), ("UPDATE", 9, 8, True)), [look(8)], {}, ["I4...advances backwards"]),
    "by nobody": (moved(("UPDATE", 0, 8, False)), [look(8)], {}, ["I4...without a decision"]),
    "unseen": (moved(("UPDATE", 0, 7, True)), [look(8)], {}, ["I4...7 in the log, 8 in the table"]),
    "a decision that nobody asked for": (
        moved(("UPDATE", 0, 5, False), ("UPDATE", 5, 8, True), without=range(5)),
        [look(8, history=(ADOPTED, SKIPPED), landed={PLACE: (3, 318)}, sums=(3, 18))],
        *({}, ["decisions: skip of payments-0 from 0 to 5"]),
    ),
    # Reports.
    "written and not there": (
        *(Tables(), [look(0, last=0.2), look(8)], {"events": (done(9),)}),
        ["I6: payments-0...was reported written up to 9, and 8 is stored"],
    ),
    "failed and there": (
        *(Tables(), [look(8)], {"events": (begun(9), failed("TransactionLost"))}),
        ["I6: payments-0...0 -> 8 was reported failed (TransactionLost), and advanced"],
    ),
    "stored elsewhere": (
        *(Tables(), [look(8)], {"events": (begun(9), failed("RowsRefused", stored={"payments-0": [0, 7]}))}),
        ["I6: payments-0...0 -> 8 was reported failed (RowsRefused)...0 -> 7 was reported stored, and did not advance"],
    ),
    "stored in halves, and one of them not told": (
        moved(("UPDATE", 0, 4, True), ("UPDATE", 4, 8, True)),
        [look(8)],
        {"events": (begun(9), failed("RowsRefused", stored={"payments-0": [0, 4]}))},
        ["I6: payments-0...0 -> 8 was reported failed (RowsRefused)...0 -> 4 was reported stored, and did not advance"],
    ),
    # Letters, which are not those of the bad records.
    "a record in the results and in a letter": (Tables(6), LETTERS, {"bad": BAD}, ["I2...", "I5..."]),
    "the same in one look": (
        *(Tables(3, 6), [replace(look(5, 3), landed=look(5).landed), *LETTERS], {"bad": BAD}),
        ["I3: stored..."],
    ),
    "other bytes": (OTHER, LETTERS, {"bad": BAD}, ["letters: payments-0@3: kept..."]),
    **{
        f"{told} at 5": (Tables(3, 6), [torn, *LETTERS], {"bad": BAD}, [f"letters: payments-0 at 5 {told}"])
        for torn, told in (
            (look(5, records=5), "lacks letters of [3], and has unexpected ones of []"),
            (look(5, 3, replayed=(3,)), "lacks letters of [], and has unexpected ones of [3]"),
            (look(5, 3, replayed=(6,)), "lacks letters of [], and has unexpected ones of [6]"),
            (look(5, 3, failures=(7,)), "has failed attempts at [7], which are good"),
            (look(5, 3, failures=(3,)), "has failed attempts at [3], which it has passed"),
        )
    },
}


@pytest.mark.parametrize("case", VIOLATED)
def test_what_is_violated_is_told(case: str) -> None:
    """Word for word, but for what ``...`` stands for."""
    tables, looks, given, expected = VIOLATED[case]
    found = check(tables, *looks, **given)
    assert len(found) == len(expected)
    for one, words in zip(found, expected, strict=True):
        first, *others = words.split("...")
        assert one.startswith(first)
        assert all(other in one for other in others) if others else one == words


def test_a_topic_that_is_recreated_or_whose_log_is_cut_has_another_life() -> None:
    restart = Decision(2, "billing", "payments", 0, "restart", 8, 0)
    added = Decision(3, "billing", "payments", 1, "adopt", None, 0)
    suspect, reset = replace(restart, event="suspect", after=8), replace(restart, event="reset", after=5)
    first, second = Stretch("payments", 0, 0, 0, 8), Stretch("payments", 1, 0, 0, 3)

    found = stretches({PLACE: 3, ("payments", 1): 4}, [ADOPTED, restart, added], {"payments": 1})
    assert found == [first, second, Stretch("payments", 1, 1, 0, 4)]
    found = stretches({PLACE: 9}, [ADOPTED, suspect, reset], {"payments": 1})
    assert found == [first, replace(second, begin=5, end=9)]


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


def batch(begin: int, until: int, *, begun: float, done: float | None = None) -> list[OutputLine]:
    ranges = {"ranges": {"payments-0": (begin, until)}}
    return [OutputLine("begun", begun, ranges), *([] if done is None else [OutputLine("done", done, ranges)])]


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
