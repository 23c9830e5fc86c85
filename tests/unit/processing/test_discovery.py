"""Whom discovery blames: the sweep with a table that is a set of records, and its tries with a store in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetstore import Claim, OffsetRange, TopicPartition, Transaction
from offsetstore.errors import LockFirst, LockTimeout, ProtocolMisuse, RowsRefused, StaleClaim
from offsetstore.processing import blame
from offsetstore.processing.blame import (
    MOST_KEPT,
    Halve,
    KeptTrials,
    TooManyFailed,
    discover,
    sweep,
    units_of,
)
from offsetstore.processing.unit import PlanOutdated
from offsetstore.protocol.ports import Work
from offsetstore.protocol.replay import decide
from offsetstore.protocol.retries import Retries
from offsetstore.testing.memory import InMemoryOffsetStore

P0 = TopicPartition("payments", 0)
LIMIT = 10_000


def refusal(sqlstate: str | None = "23514") -> RowsRefused:
    return RowsRefused("the database refused rows", sqlstate=sqlstate)


class Table:
    """Holds what was accepted, in the order in which it was written; ``rule`` says whether the rows may stand so."""

    def __init__(self, rule: Callable[[list[int]], bool]) -> None:
        self.rule = rule
        self.rows: list[int] = []
        self.tries: list[Sequence[int]] = []

    def accept(self, records: Sequence[int]) -> RowsRefused | None:
        refused = self.probe(records)
        if refused is None:
            self.rows += records
        return refused

    def probe(self, records: Sequence[int]) -> RowsRefused | None:
        self.tries.append(records)
        return None if self.rule([*self.rows, *records]) else refusal()


def find(
    rule: Callable[[list[int]], bool],
    records: Iterable[int],
    keys: Mapping[int, Hashable] | None = None,
    *,
    limit: int = LIMIT,
) -> set[int]:
    return set(sweep(units_of(list(records), keys or {}), Table(rule), limit=limit))


def without(*bad: int) -> Callable[[list[int]], bool]:
    return lambda rows: not set(bad) & set(rows)


def with_needs(needs: Mapping[int, int], *bad: int) -> Callable[[list[int]], bool]:
    """Each of these records is refused without another one."""
    return lambda rows: not set(bad) & set(rows) and all(needs.get(row, row) in rows for row in rows)


# -- whom it blames


@pytest.mark.behaviour("DLQ-8")
@given(st.sets(st.integers(0, 199), max_size=30))
def test_the_bad_records_are_found_and_no_other(bad: set[int]) -> None:
    assert find(without(*bad), range(200)) == bad


@pytest.mark.behaviour("DLQ-8")
def test_fifty_thousand_children_that_come_before_their_parents_are_a_few_tries() -> None:
    size = 50_000
    table = Table(lambda rows: 7 not in rows and (max(rows) >= size or rows[0] >= size))

    assert set(sweep(units_of(range(2 * size), {}), table, limit=LIMIT)) == {7}
    assert len(table.tries) < 40


BLAMED: dict[str, tuple[Callable[[list[int]], bool], int, dict[int, Hashable], set[int]]] = {
    "of two with one id, the later": (lambda rows: not {3, 90} <= {*rows}, 100, {}, {90}),
    "and a bad one": (lambda rows: 50 not in rows and not {3, 90} <= {*rows}, 100, {}, {50, 90}),
    "not a value that a later one of its key replaces": (
        lambda rows: 2 not in rows and (0 not in rows or 1 in rows),
        3,
        {0: "k", 1: "k", 2: "other"},
        {2},
    ),
    "both legs of an entry that share a key": (
        lambda rows: 11 not in rows and sum(5 - 10 * (row % 2) for row in rows) == 0,
        40,
        {record: record // 2 for record in range(40)},
        {10, 11},
    ),
    "no key that is accepted only after another one, of which a record is accepted when it is tried alone": (
        lambda rows: 4 not in rows and len({0, 2} & {*rows}) != 1 and (0 not in rows or 3 in rows),
        5,
        {0: "a", 1: "b", 2: "a", 3: "b", 4: "c"},
        {4},
    ),
}


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize("blamed", BLAMED)
def test_records_that_need_or_exclude_each_other(blamed: str) -> None:
    rule, size, keys, dead = BLAMED[blamed]
    assert find(rule, range(size), keys) == dead


def test_records_without_a_key_are_alone() -> None:
    assert units_of([1, 2, 3, 5], {1: "k", 2: None, 5: "k"}) == [(1, 5), (2,), (3,)]


def test_each_dead_record_has_the_refusal_of_its_last_try() -> None:
    class Counting(Table):
        def probe(self, records: Sequence[int]) -> RowsRefused | None:
            refused = super().probe(records)
            if refused is not None:
                refused.sqlstate = str(len(self.tries))
            return refused

    table = Counting(without(1, 2))
    dead = sweep(units_of(range(4), {}), table, limit=LIMIT)
    last = {record: str(number) for number, [record, *more] in enumerate(table.tries, 1) if not more}
    assert {record: refused.sqlstate for record, refused in dead.items()} == {1: last[1], 2: last[2]}


# -- against a model of small worlds

SIZE = 7
RECORDS = st.integers(0, SIZE - 1)


@st.composite
def worlds(draw: st.DrawFn) -> Callable[[list[int]], bool]:
    """Bad records, records that need others, records that exclude each other, and sums."""
    bad = draw(st.sets(RECORDS, max_size=3))
    needs = draw(st.dictionaries(RECORDS, RECORDS, max_size=4))
    apart = draw(st.lists(st.tuples(RECORDS, RECORDS).filter(lambda pair: pair[0] != pair[1]), max_size=3))
    amounts = draw(st.lists(st.integers(-3, 3), min_size=SIZE, max_size=SIZE))
    most = draw(st.integers(0, 10))

    def rule(rows: list[int]) -> bool:
        return (
            with_needs(needs, *bad)(rows)
            and not any({*pair} <= {*rows} for pair in apart)
            and sum(amounts[row] for row in rows) <= most
        )

    return rule


@pytest.mark.behaviour("DLQ-8")
@given(st.sets(RECORDS, max_size=3), st.dictionaries(RECORDS, RECORDS), st.permutations(range(SIZE)))
def test_where_no_two_records_need_each_other_no_innocent_dies(
    bad: set[int], pairs: dict[int, int], order: list[int]
) -> None:
    """Brute force: the largest set of records that the table accepts is what discovery accepts."""
    rank = {record: place for place, record in enumerate(order)}
    needs = {child: parent for child, parent in pairs.items() if rank[parent] < rank[child]}
    rule = with_needs(needs, *bad)
    sets = (chosen for size in range(SIZE, -1, -1) for chosen in combinations(range(SIZE), size))
    largest = next(chosen for chosen in sets if rule([*chosen]))

    assert find(rule, range(SIZE)) == {*range(SIZE)} - {*largest}


# -- how much it tries


@pytest.mark.behaviour("DLQ-8")
def test_two_hundred_bad_among_a_hundred_thousand_are_some_thousand_tries() -> None:
    bad = {number * 499 + number % 7 for number in range(200)}

    class LargeTable(Table):
        """Looks only at the new rows."""

        def probe(self, records: Sequence[int]) -> RowsRefused | None:
            self.tries.append(records)
            return None if bad.isdisjoint(records) else refusal()

    table = LargeTable(without(*bad))

    assert sweep(units_of(range(100_000), {}), table, limit=LIMIT).keys() == bad
    assert len(table.tries) < 4500
    assert sum(map(len, table.tries)) < 12 * 100_000


@pytest.mark.behaviour("DLQ-13")
@pytest.mark.parametrize("keys", [0, 10, 100_000], ids=["alone", "in keys", "in one"])
@pytest.mark.parametrize("table", [lambda: Table(lambda _: False), lambda: Hinting({*range(100_000)})])
def test_if_every_record_is_refused_it_takes_few_tries_to_say_so(table: Callable[[], Table], keys: int) -> None:
    made, of_keys = table(), {record: record // keys for record in range(100_000)} if keys else {}
    with pytest.raises(TooManyFailed) as told:
        sweep(units_of(range(100_000), of_keys), made, limit=LIMIT, hint=hinted)
    assert told.value.error.sqlstate == "23514"
    assert len(made.tries) == 127 + 16


@pytest.mark.behaviour("DLQ-13")
def test_ten_records_that_are_all_refused_are_not_to_blame_and_nine_may_be() -> None:
    with pytest.raises(TooManyFailed):
        find(lambda _: False, range(10))
    assert find(lambda _: False, range(9)) == {*range(9)}
    assert find(lambda _: False, range(1)) == {0}


@pytest.mark.behaviour("DLQ-13")
def test_more_dead_than_the_limit_are_too_many_and_as_many_are_not() -> None:
    bad = {1, 5, 9}
    assert find(without(*bad), range(40), limit=3) == bad
    with pytest.raises(TooManyFailed, match="more than 2 records") as told:
        find(without(*bad), range(40), limit=2)
    assert told.value.error.sqlstate == "23514"


@pytest.mark.behaviour("DLQ-13")
def test_a_small_limit_does_not_count_records_that_are_accepted_later() -> None:
    """Of 40 records the first 38 need the last, whose neighbour is bad."""
    assert find(with_needs(dict.fromkeys(range(38), 39), 38), range(40), limit=1) == {38}


@pytest.mark.behaviour("DLQ-13")
def test_where_a_thousand_are_refused_in_a_row_the_rest_is_not_tried() -> None:
    size = 20_000
    table = Table(lambda rows: max(rows) < 1000)
    with pytest.raises(TooManyFailed):
        sweep(units_of(range(size), {}), table, limit=200)
    singles = [records for records in table.tries if len(records) == 1]
    assert len(singles) < 1200


@pytest.mark.behaviour("DLQ-13")
def test_records_that_are_tried_again_after_a_key_was_split_are_counted_once() -> None:
    bad = {*range(1, 2000, 3)}
    assert find(without(*bad), range(2000), {1: "k", 4: "k"}, limit=len(bad)) == bad


# -- its tries, in a transaction


def writing(rule: Callable[[list[int]], bool], sqlstate: str = "23514") -> Callable[[Work, Sequence[int]], None]:
    def write(work: Work, records: Sequence[int]) -> None:
        work.connection.extend("results", records)
        if not rule(work.connection.rows("results")):
            raise refusal(sqlstate)

    return write


def searched(claim: Claim, write: Callable[[Work, Sequence[int]], object], size: int, **options: Any) -> Any:
    given: dict[str, Any] = {"refused": RowsRefused("refused"), "seconds": 60.0, "limit": LIMIT, **options}
    return discover(claim, {P0: decide(0, OffsetRange(0, size))}, range(size), {}, write, **given)


def discovered(claim: Claim, rule: Callable[[list[int]], bool], size: int, **options: Any) -> Collection[int]:
    return searched(claim, writing(rule), size, **options).dead.keys()


@pytest.mark.behaviour("DLQ-8")
def test_discovery_finds_the_refused_records_and_leaves_nothing(store: InMemoryOffsetStore, claim: Claim) -> None:
    assert discovered(claim, without(3, 40), 64) == {3, 40}
    assert store.rows("results") == []
    assert store.offsets("billing") == {}


@pytest.mark.behaviour("DLQ-8")
def test_however_much_is_accepted_few_savepoints_are_kept(claim: Claim) -> None:
    bad = {*range(0, 900, 3)}
    kept: list[int] = []

    def run(tx: Transaction) -> int:
        tx.lock({P0: OffsetRange(0, 900)})
        trials = KeptTrials(tx, writing(without(*bad)))
        dead = sweep(units_of(range(900), {}), trials, limit=LIMIT, check=lambda: kept.append(len(trials._kept)))
        assert dead.keys() == bad
        assert sorted(tx.connection.rows("results")) == sorted({*range(900)} - bad)
        return trials.accepted

    with suppress(InterruptedError), claim.transaction() as tx:
        assert run(tx) > 5 * MOST_KEPT
        raise InterruptedError
    assert max(kept) == MOST_KEPT - 1


@pytest.mark.behaviour("DLQ-8")
def test_what_is_kept_is_written_again_few_times(claim: Claim) -> None:
    size, bad = 20_000, {*range(7, 20_000, 100)}
    written: list[int] = []

    def write(_: Work, records: Sequence[int]) -> None:
        written.append(len(records))
        if not bad.isdisjoint(records):
            raise refusal()

    assert searched(claim, write, size).dead.keys() == bad
    assert sum(written) < 13 * size


@pytest.mark.behaviour("DLQ-8")
def test_what_is_accepted_in_one_order_only_is_kept_in_that_order(claim: Claim) -> None:
    """The even record of each pair is refused unless the odd one was written before it."""

    def rule(rows: list[int]) -> bool:
        return all(row % 2 or row + 1 in rows[:place] for place, row in enumerate(rows))

    pairs = [(number + 1, number) for number in range(0, 200, 2)]
    with suppress(InterruptedError), claim.transaction() as tx:
        tx.lock({P0: OffsetRange(0, 200)})
        trials = KeptTrials(tx, writing(rule))
        assert not any(trials.accept([record]) for pair in pairs for record in pair)
        assert tx.connection.rows("results") == [record for pair in pairs for record in pair]
        raise InterruptedError


def test_rows_that_are_accepted_once_only_end_discovery(claim: Claim) -> None:
    seen: set[int] = set()

    def write(_: Work, records: Sequence[int]) -> None:
        if any(record % 2 for record in records) or (len(records) > 1 and seen.issuperset(records)):
            raise refusal()
        if seen & {*records}:
            raise refusal()
        seen.update(records)

    with pytest.raises(Halve):
        searched(claim, write, 200)


def test_discovery_ends_when_its_time_is_up(claim: Claim) -> None:
    with pytest.raises(Halve):
        discovered(claim, without(3), 64, seconds=0)


def test_the_wait_for_the_lock_takes_no_time_from_the_search(claim: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    lock = Transaction.lock

    def slow(tx: Transaction, ranges: Any, **others: Any) -> Any:
        now[0] += 60
        return lock(tx, ranges, **others)

    monkeypatch.setattr(Transaction, "lock", slow)
    monkeypatch.setattr("offsetstore.processing.blame.time.monotonic", lambda: now[0])
    assert discovered(claim, without(3), 64, seconds=5) == {3}


def test_a_check_is_made_at_once_and_then_every_so_many_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [5.0], list[float]()
    monkeypatch.setattr("offsetstore.processing.blame.time.monotonic", lambda: now[0])
    check = blame.now_and_then(lambda: calls.append(now[0]), every=1)
    for moment in (5.0, 5.5, 6.0, 6.9, 8.0):
        now[0] = moment
        check()
    assert calls == [5.0, 6.0, 8.0]


def test_discovery_ends_with_the_error_of_a_query_that_is_being_stopped(claim: Claim) -> None:
    calls: list[float] = []

    def check() -> None:
        calls.append(time.monotonic())
        if len(calls) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        discovered(claim, without(3), 64, check=check)


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize("error", [LockTimeout("no lock"), MemoryError()], ids=lambda e: type(e).__name__)
def test_an_error_that_no_record_causes_passes(claim: Claim, error: BaseException) -> None:
    tries: list[Sequence[int]] = []

    def write(_: Work, records: Sequence[int]) -> None:
        tries.append(records)
        raise refusal() if len(tries) < 3 else error

    claim.retries = Retries(attempts=1)
    with pytest.raises(type(error)):
        searched(claim, write, 64)
    assert len(tries) == 3


def test_a_stale_claim_and_an_outdated_plan_pass(store: InMemoryOffsetStore, claim: Claim) -> None:
    with store.transaction(claim) as tx:
        tx.advance({P0: tx.lock({P0: OffsetRange(0, 5)})[P0].remaining})
    with pytest.raises(PlanOutdated):
        discovered(claim, without(3), 64)
    store.claim("billing", topics=["payments"])
    with pytest.raises(StaleClaim):
        discovered(claim, without(3), 64)


def test_a_transaction_in_which_rows_were_tried_out_is_not_committed(store: InMemoryOffsetStore, claim: Claim) -> None:
    def run() -> None:
        with claim.transaction() as tx:
            remaining = {P0: tx.lock({P0: OffsetRange(0, 5)})[P0].remaining}
            KeptTrials(tx, writing(without())).accept([1])
            tx.finish(remaining)

    with pytest.raises(ProtocolMisuse, match="tried out"):
        run()
    assert store.rows("results") == []


def test_rows_are_tried_out_only_under_the_lock(claim: Claim) -> None:
    with pytest.raises(LockFirst), claim.transaction() as tx:
        tx.trials()


@pytest.mark.behaviour("DLQ-8")
def test_a_second_search_begins_with_all_but_the_suspects() -> None:
    bad = set(range(0, 10_000, 100))
    table = Table(without(*bad))

    found = sweep(units_of(range(10_000), {}), table, limit=LIMIT, suspects=bad)

    assert set(found) == bad
    assert len(table.tries) <= 1 + 2 * len(bad)


# -- hints


class Hinting(Table):
    """Its refusals name the row, as the context of a COPY does.

    :param bad: the records that are refused for their own values.
    """

    def __init__(self, bad: set[int], rule: Callable[[list[int]], bool] = lambda _: True) -> None:
        super().__init__(rule)
        self.bad = bad

    def probe(self, records: Sequence[int]) -> RowsRefused | None:
        refused = super().probe(records)
        first = next((place for place, record in enumerate(records, 1) if record in self.bad), None)
        if first is not None:
            refused = refusal()
            refused.row = first
        return refused


def hinted(refused: RowsRefused, records: Sequence[int]) -> int | None:
    return None if refused.row is None else records[refused.row - 1]


def find_by_hints(table: Table, size: int, keys: Mapping[int, Hashable] | None = None) -> set[int]:
    return set(sweep(units_of(range(size), keys or {}), table, limit=LIMIT, hint=hinted))


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize(
    "bad",
    [
        {number * 499 + number % 7 for number in range(200)},
        {*range(50_000, 51_000)},
        {*range(0, 100_000, 50)},
        {0},
        {99_999},
    ],
    ids=["scattered", "in a row", "many", "the first", "the last"],
)
def test_with_hints_a_bad_record_costs_four_tries_at_most(bad: set[int]) -> None:
    class LargeTable(Hinting):
        def accept(self, records: Sequence[int]) -> RowsRefused | None:
            return self.probe(records)

    table = LargeTable(bad)
    assert find_by_hints(table, 100_000) == bad
    assert len(table.tries) <= 4 * len(bad)
    assert sum(map(len, table.tries)) < 7 * 100_000


@pytest.mark.behaviour("DLQ-8")
@given(st.sets(st.integers(0, 99), max_size=10), st.dictionaries(st.integers(0, 99), st.sampled_from("abc")))
def test_a_hint_is_never_a_verdict(bad: set[int], keys: dict[int, str]) -> None:
    """Each names another row than the bad one."""

    def misled(_: RowsRefused, records: Sequence[int]) -> int:
        return records[len(records) // 3]

    table = Table(without(*bad))
    assert set(sweep(units_of(range(100), keys), table, limit=LIMIT, hint=misled)) == bad


@pytest.mark.behaviour("DLQ-8")
@given(worlds(), st.dictionaries(RECORDS, st.sampled_from("ab")), st.sets(RECORDS, max_size=3))
def test_the_dead_are_refused_on_top_of_the_rest_and_the_rest_is_accepted(
    rule: Callable[[list[int]], bool], keys: dict[int, str], bad: set[int]
) -> None:
    """With hints or, if none is ``bad``, without; and each time the same."""
    first, again = Hinting(bad, rule), Hinting(bad, rule)
    dead = find_by_hints(first, SIZE, keys)

    assert {*first.rows} == {*range(SIZE)} - dead
    assert not first.rows or rule(first.rows)
    assert not any(record not in bad and rule([*first.rows, record]) for record in dead)
    assert find_by_hints(again, SIZE, keys) == dead
    assert again.tries == first.tries


# -- who is to blame


def doubted(
    claim: Claim, write: Callable[[Work, Sequence[int]], object], size: int, suspects: Collection[int] = ()
) -> tuple[set[int], set[int]]:
    """The dead, and those of them that may be innocent."""
    found = searched(claim, write, size, suspects=suspects)
    return {*found.dead}, {*found.doubtful}


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("bad", [{0}, {7}, {0, 3, 7}, {*range(1, 8)}], ids=str)
def test_records_are_to_blame_whatever_the_error_if_another_is_accepted_after_them(claim: Claim, bad: set[int]) -> None:
    assert doubted(claim, writing(without(*bad), "42501"), 8) == (bad, set())


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("size", [1, 2, 9])
def test_what_every_record_is_refused_for_blames_none_unless_it_speaks_for_itself(claim: Claim, size: int) -> None:
    every = {*range(size)}
    assert doubted(claim, writing(lambda _: False, "42501"), size) == (every, every)
    assert doubted(claim, writing(lambda _: False), size) == (every, set())


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("accepted", [1, 2, 3])
def test_what_begins_in_the_middle_of_the_search_blames_none(claim: Claim, accepted: int) -> None:
    """A sequence comes to its end, or a right is taken away: from then on nothing is accepted."""
    left = [accepted]

    def write(work: Work, records: Sequence[int]) -> None:
        writing(lambda rows: 2 not in rows and left[0] > 0, "42501")(work, records)
        left[0] -= 1

    dead, doubtful = doubted(claim, write, 9)
    assert dead == doubtful


@pytest.mark.behaviour("DLQ-15")
def test_of_more_records_than_a_table_takes_none_is_to_blame(claim: Claim) -> None:
    """Any would be accepted in the place of another."""
    dead, doubtful = doubted(claim, writing(lambda rows: len(rows) <= 6, "42501"), 10)
    assert len(dead) == 4
    assert dead == doubtful


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("suspects", [(), (7,)], ids=["first search", "later search"])
@pytest.mark.parametrize("twin", [0, 3, 6])
def test_a_record_that_conflicts_with_one_other_is_to_blame(claim: Claim, twin: int, suspects: Collection[int]) -> None:
    """It would be accepted in the place of all others, and not in the place of those without its twin."""
    write = writing(lambda rows: not {twin, 7} <= {*rows}, "DUP01")
    assert doubted(claim, write, 8, suspects) == ({7}, set())


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("suspects", [(), (4, 5, 6, 7)], ids=["first search", "later search"])
def test_a_bad_record_does_not_make_others_to_blame(claim: Claim, suspects: Collection[int]) -> None:
    """A trigger takes four rows, and a policy refuses the last record."""

    def write(work: Work, records: Sequence[int]) -> None:
        writing(without(7), "42501")(work, records)
        if len(work.connection.rows("results")) > 4:
            raise refusal("ROOM4")

    assert doubted(claim, write, 8, suspects) == ({4, 5, 6, 7}, {4, 5, 6})


@pytest.mark.behaviour("DLQ-15")
def test_two_hundred_conflicts_are_told_apart_in_a_few_tries_each(claim: Claim) -> None:
    tries: list[int] = []

    def write(work: Work, records: Sequence[int]) -> None:
        tries.append(len(records))
        writing(lambda rows: len({row % 800 for row in rows}) == len(rows), "DUP01")(work, records)

    twins = {*range(800, 1000)}
    assert doubted(claim, write, 1000, twins) == (twins, set())
    assert len(tries) < 4 * len(twins)
    assert sum(tries) < 5 * 1000
