"""How a job without dead letters ends at a bad record, with a table that is a set of offsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetstore import OffsetRange, TopicPartition
from offsetstore.errors import (
    ExitCode,
    FunctionFailed,
    LockTimeout,
    RowsRefused,
    StaleClaim,
    StoreUnavailable,
    exit_code,
)
from offsetstore.processing import blame
from offsetstore.processing.blame import speaks_for_itself, write_in_halves
from offsetstore.processing.unit import Coordinates, PlanOutdated, Ranges

P0, P1 = (TopicPartition("payments", number) for number in range(2))


def refused(**fields: Any) -> RowsRefused:
    what = "too large"
    given: dict[str, Any] = {"table": "payments", "column": "amount", "found": "int64", "next_step": "Correct it."}
    return RowsRefused(what, **(given | fields))


def records_of(ranges: Ranges, without: Collection[Coordinates] = ()) -> set[Coordinates]:
    return {(tp, offset) for tp, range_ in ranges.items() for offset in range(range_.from_, range_.until)} - {*without}


CLAIM: Any = SimpleNamespace(
    group="the billing", database=SimpleNamespace(schema="our store"), has_made_rows=False, is_member=False
)


@dataclass
class Table:
    """Refuses records by a rule, of them and those that are in it; counts how often it was asked.

    :param computing: the same of records that are computed together.
    :param error: raised in the place of the table's own, as a function does.
    :param rows: how many rows the records make.
    """

    rule: Callable[[set[Coordinates]], bool] = lambda _: False
    sqlstate: str | None = None
    error: RowsRefused | None = None
    computing: Callable[[set[Coordinates]], bool] = lambda _: False
    rows_of: Callable[[set[Coordinates]], int] = len
    repeating: bool = True
    asked: int = 0
    stored: set[Coordinates] = field(default_factory=set[Coordinates])
    written: list[Ranges] = field(default_factory=list[Ranges])

    def rows(self, part: Ranges, without: Collection[Coordinates] = ()) -> Mapping[str, Any]:
        records = records_of(part, without)
        if self.computing(records):
            raise self.error or FAILED
        return {"": SimpleNamespace(rows=self.rows_of(records))}

    def failed(self, _: Exception) -> None: ...

    def sleep(self, _: float) -> None: ...

    def repeats(self) -> bool:
        return self.repeating

    def write(self, part: Ranges) -> int:
        rows = self.attempt(part, part, ())
        self.stored |= records_of(part)
        self.written.append(part)
        return rows

    def attempt(self, rest: Ranges, part: Ranges, without: Collection[Coordinates]) -> int:
        assert records_of(part) <= records_of(rest)
        assert self.stored.isdisjoint(records_of(rest))
        self.asked += 1
        made = self.rows(part, without)[""].rows
        if self.rule(self.stored | records_of(part, without)):
            raise self.error or refused(sqlstate=self.sqlstate)
        return made


def with_any(*poison: Coordinates) -> Table:
    return Table(lambda records: not records.isdisjoint(poison))


def failing(rule: Callable[[int], bool], *, rows_of: Callable[[set[Coordinates]], int] = len, **options: Any) -> Table:
    """A function that fails for some records, and makes a row of each other one."""
    return Table(computing=lambda records: any(rule(offset) for _, offset in records), rows_of=rows_of, **options)


def rule_of(poison: Mapping[Coordinates, Coordinates | None]) -> Callable[[set[Coordinates]], bool]:
    """A record is refused, unless the one that makes it good is there too."""
    return lambda records: any(bad in records and good not in records for bad, good in poison.items())


def halve(ranges: Ranges, table: Any, *, claim: Any = CLAIM, **options: Any) -> None:
    """Write in halves what was refused, up to the record that can't be written."""
    write_in_halves(refused(), ranges, table, claim, write=table.write, attempt=table.attempt, **options)


def blamed(ranges: Ranges, table: Table, **options: Any) -> RowsRefused:
    """Do that, and return the error."""
    with pytest.raises(RowsRefused) as raised:
        halve(ranges, table, **options)
    return raised.value


def named(error: RowsRefused) -> Coordinates | None:
    """The record that is shown to be the cause, if one is: then there is a command that passes over it alone."""
    assert ("offsetstore reset" in error.next_step) is ("but the cause may be any" not in str(error))
    if "offsetstore reset" not in error.next_step:
        return None
    assert error.topic_partition is not None
    assert error.offsets is not None
    assert error.offsets.size == 1
    return error.topic_partition, error.offsets.from_


@given(
    poison=st.sets(st.tuples(st.sampled_from([P0, P1]), st.integers(40, 99)), min_size=1, max_size=5),
    bounds=st.sampled_from(
        [{P0: (40, 100), P1: (40, 100)}, {P0: (40, 100)}, {P0: (40, 41)}, {P0: (0, 2_000), P1: (40, 41)}]
    ),
)
@pytest.mark.behaviour("TX-17")
def test_the_first_bad_record_is_named_and_all_before_it_is_stored_and_nothing_else(
    poison: set[Coordinates], bounds: dict[TopicPartition, tuple[int, int]]
) -> None:
    ranges = {tp: OffsetRange(*pair) for tp, pair in bounds.items()}
    there = sorted(poison & records_of(ranges))
    if not there:
        return
    table = with_any(*there)

    error = blamed(ranges, table)

    assert named(error) == there[0]
    assert records_of(error.stored) == table.stored == {record for record in records_of(ranges) if record < there[0]}
    assert table.asked <= 80


def test_the_search_ends_at_the_first_bad_record_however_many_follow() -> None:
    table = Table(lambda records: any(offset > 700 and offset % 2 for _, offset in records))
    error = blamed({P0: OffsetRange(0, 3_000)}, table)
    assert table.stored == {(P0, offset) for offset in range(701)}
    assert (named(error), error.offsets) == (None, OffsetRange(701, 3_000))
    assert "first refused at record payments-0@701, but the cause may be any of payments-0 [701, 3000)" in str(error)
    assert table.asked <= 80


@given(
    st.dictionaries(
        st.tuples(st.just(P0), st.integers(0, 15)),
        st.one_of(st.none(), st.tuples(st.just(P0), st.integers(0, 15))),
        min_size=1,
        max_size=6,
    )
)
@pytest.mark.behaviour("TX-18")
def test_a_record_is_named_only_if_it_is_a_cause(poison: dict[Coordinates, Coordinates | None]) -> None:
    """The plain rule: with it the batch is refused, and without it, and some others, it is not."""
    ranges = {P0: OffsetRange(0, 16)}
    rule = rule_of(poison)
    if not rule(records_of(ranges)):
        return
    table = Table(rule)

    error = blamed(ranges, table)

    assert not rule(table.stored)
    assert records_of(error.stored) == table.stored == {(P0, offset) for offset in range(len(table.stored))}
    record = named(error)
    if record is not None:
        good = poison[record]
        assert good is None or good == record or good in poison


DOUBTFUL: dict[str, tuple[Callable[[set[Coordinates]], bool], int, int]] = {
    "many bad records": (lambda records: any(20 <= offset < 60 for _, offset in records), 20, 64),
    "a withdrawal at 5 that a deposit at 50 covers, and 60": (rule_of({(P0, 5): (P0, 50), (P0, 60): None}), 5, 64),
    "two legs of an entry, and 8": (lambda records: (P0, 8) in records or len({(P0, 6), (P0, 7)} & records) == 1, 6, 9),
}


@pytest.mark.behaviour("TX-18")
@pytest.mark.parametrize("case", DOUBTFUL)
def test_a_record_that_may_be_good_is_told_without_a_command(case: str) -> None:
    rule, first, end = DOUBTFUL[case]
    error = blamed({P0: OffsetRange(0, end)}, Table(rule))
    assert (named(error), error.offsets, error.stored) == (None, OffsetRange(first, end), {P0: OffsetRange(0, first)})
    told = f"first refused at record payments-0@{first}, but the cause may be any of payments-0 [{first}, {end})"
    assert told in str(error)


def test_of_two_records_with_one_key_the_second_is_named_as_the_first_is_stored() -> None:
    table = Table(lambda records: {(P0, 3), (P0, 20)} <= records)
    assert named(blamed({P0: OffsetRange(0, 64)}, table)) == (P0, 20)


@pytest.mark.behaviour("TX-18")
@pytest.mark.parametrize("needs_another", [False, True], ids=["alone", "with its parent"])
@pytest.mark.parametrize("allowed", [2, 7, 63])
@pytest.mark.parametrize("more", [1, 9])
def test_of_more_records_than_a_table_allows_none_is_named(allowed: int, more: int, *, needs_another: bool) -> None:
    """The last one is good, and perhaps refused alone, for something else."""

    def rule(records: set[Coordinates]) -> bool:
        is_lost = needs_another and (P0, 0) not in records and (P0, allowed) in records
        return len(records) > allowed or is_lost

    error = blamed({P0: OffsetRange(0, allowed + more)}, Table(rule, "54000"))
    assert named(error) is None
    assert error.stored == {P0: OffsetRange(0, allowed)}


@pytest.mark.behaviour("TX-18")
@pytest.mark.parametrize("times", [0, 1, 2, 3, 4, 5])
def test_a_refusal_that_does_not_recur_or_goes_away_during_the_search_names_no_record(times: int) -> None:
    """As the parent of a child is inserted by another job."""
    table = Table(lambda records: (P0, 7) in records and table.asked <= times)
    halve({P0: OffsetRange(0, 8)}, table)
    assert table.stored == records_of({P0: OffsetRange(0, 8)})


@pytest.mark.behaviour("TX-18")
def test_a_record_that_a_later_one_makes_good_is_written_with_it_once_the_batch_is_accepted() -> None:
    """A withdrawal, whose deposit comes later in the batch; what was refused at first is accepted now."""
    covered = rule_of({(P0, 5): (P0, 50)})
    table = Table(lambda records: table.asked <= 2 or covered(records))
    halve({P0: OffsetRange(0, 64)}, table)
    assert table.written[-1] == {P0: OffsetRange(5, 64)}


@pytest.mark.behaviour("TX-18")
@pytest.mark.parametrize("size", [2, 64])
def test_a_record_that_is_good_again_while_others_are_tried_is_not_named(size: int) -> None:
    """As a function fails until a service is back."""
    table = failing(lambda _: table.asked <= size.bit_length() + 1)
    halve({P0: OffsetRange(0, size)}, table)
    assert len(table.stored) == size


@pytest.mark.behaviour("TX-17")
def test_bad_records_of_two_kinds_are_told_one_after_the_other() -> None:
    """The NUL at 5 is refused before anything is sent, the CHECK at 2 by the database."""

    class Two(Table):
        def attempt(self, rest: Ranges, part: Ranges, without: Collection[Coordinates]) -> int:
            if (P0, 5) in records_of(part, without):
                raise refused(column="name")
            return super().attempt(rest, part, without)

    table = Two(lambda records: (P0, 2) in records, error=refused(sqlstate="23514", constraint="positive"))
    error = blamed({P0: OffsetRange(0, 8)}, table)

    assert (named(error), error.constraint, error.stored) == ((P0, 2), "positive", {P0: OffsetRange(0, 2)})


class Down(Table):
    """It has a bad record, and is down when others are tried."""

    def attempt(self, rest: Ranges, part: Ranges, without: Collection[Coordinates]) -> int:
        if without:
            raise LockTimeout("another session is in the way")
        return super().attempt(rest, part, without)


def test_what_no_record_can_cause_ends_the_search(caplog: pytest.LogCaptureFixture) -> None:
    error = blamed({P0: OffsetRange(0, 64)}, Down(lambda records: (P0, 32) in records))

    assert (error.offsets, error.stored) == (OffsetRange(32, 64), {P0: OffsetRange(0, 32)})
    assert "first refused at record payments-0@32, but the cause may be any of payments-0 [32, 64)" in str(error)
    assert "reset" not in error.next_step
    assert "gave up the search: LockTimeout: another session is in the way" in caplog.messages
    ended = "; the search for the cause ended: LockTimeout: another session is in the way; stored before it: "
    assert ended in str(error)


STRANGE = ["42501", "45001", "50001", "55000", "0A000", "HV000", "28000", "XX000", "40001", "57014", "53100", "2200H"]


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("sqlstate", STRANGE)
def test_a_record_is_named_whatever_it_is_refused_for_if_later_ones_are_accepted(sqlstate: str) -> None:
    table = Table(lambda records: (P0, 5) in records, sqlstate)
    assert named(blamed({P0: OffsetRange(0, 64)}, table)) == (P0, 5)


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("sqlstate", STRANGE)
@pytest.mark.parametrize("size", [1, 2, 64])
def test_what_any_record_is_refused_for_names_none(sqlstate: str, size: int) -> None:
    error = blamed({P0: OffsetRange(0, size)}, Table(bool, sqlstate))
    assert (named(error), error.offsets) == (None, OffsetRange(0, size))


@pytest.mark.behaviour("DLQ-15")
def test_records_without_rows_do_not_show_that_others_are_accepted() -> None:
    table = Table(lambda records: (P0, 5) in records, "42501", rows_of=lambda _: 0)
    assert named(blamed({P0: OffsetRange(0, 64)}, table)) is None


FAILED = FunctionFailed("failed", error_class="ValueError", text="", traceback="")
OF_CALL = FunctionFailed("a call has failed", error_class="ValueError", is_of_call=True)


def is_of_record(error: RowsRefused) -> bool:
    return isinstance(error, FunctionFailed) and error.is_of_record


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("rowless", [0, 8])
@pytest.mark.parametrize("count", [1, 3, 56])
def test_a_function_that_fails_for_every_row_names_no_record(rowless: int, count: int) -> None:
    """As a bug does after a deploy: the command would skip a good record. The first records may make no rows."""
    table = failing(lambda offset: offset >= rowless, rows_of=lambda _: 0)
    error = blamed({P0: OffsetRange(0, rowless + count)}, table)
    assert (named(error), error.offsets) == (None, OffsetRange(rowless, rowless + count))
    assert not is_of_record(error)


@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize("bad", [[0], [5], [63], range(8), range(20, 64), [0, 63]], ids=str)
@pytest.mark.parametrize("repeats", [True, False])
def test_a_function_that_fails_for_some_records_has_no_bug_also_where_none_is_shown_to_be_the_cause(
    bad: Sequence[int], *, repeats: bool
) -> None:
    error = blamed({P0: OffsetRange(0, 64)}, failing(lambda offset: offset in bad, repeating=repeats))
    assert is_of_record(error)
    assert (named(error) is not None) is (repeats and len(bad) < 6)
    assert not FAILED.is_of_record  # it is shared


@pytest.mark.behaviour("CONS-15", "HAND-2")
@pytest.mark.parametrize("bad", [[0], [5], [63], range(8), range(20, 64), [0, 63], range(64)], ids=str)
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_call_of_a_handler_that_has_failed_names_its_record_and_the_way_past_it_unless_all_fail(
    bad: Sequence[int], *, is_stored: bool
) -> None:
    """What came of each call is kept, so nothing has to be called again to know which record it was."""
    first = min(bad)
    table = failing(lambda offset: offset in bad, error=OF_CALL, repeating=False)
    error = blamed({P0: OffsetRange(0, 64)}, table, is_stored=is_stored)
    assert (error.topic_partition, error.offsets) == (P0, OffsetRange(first, first + 1))
    assert f"first refused at record payments-0@{first}; " in str(error)
    is_bug = len(bad) == 64
    assert is_of_record(error) is not is_bug
    assert exit_code(error) == (ExitCode.BUG if is_bug else ExitCode.OTHER)
    way = f"--from-offset {first} --to-offset {first + 1}" if is_stored else "return None for it, by its partition"
    assert (way in error.next_step) is not is_bug


@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize("has_made_rows", [True, False])
@pytest.mark.parametrize(
    ("size", "bad", "others"), [(1, {0}, True), (8, {5}, True), (8, {0}, True), (8, {2, 3}, False)]
)
def test_where_no_other_record_makes_rows_those_of_earlier_deliveries_count(
    size: int, bad: set[int], *, others: bool, has_made_rows: bool
) -> None:
    """A record that fails alone on a quiet topic is no bug of a function that has worked before."""
    claim = SimpleNamespace(**{**vars(CLAIM), "has_made_rows": has_made_rows})
    table = failing(lambda offset: offset in bad, rows_of=lambda _: 0)
    error = blamed({P0: OffsetRange(0, size)}, table, claim=claim)
    assert named(error) is None
    assert is_of_record(error) is (has_made_rows and others)


@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize("rows", [1, 0])
def test_a_search_that_ends_early_keeps_what_it_has_shown(rows: int) -> None:
    """A slow function would have a bug, whatever the records before the bad one have shown."""
    table = Down(computing=lambda records: (P0, 5) in records, rows_of=lambda records: rows * len(records))
    error = blamed({P0: OffsetRange(0, 64)}, table)
    assert "the search for the cause ended" in str(error)
    assert is_of_record(error) is bool(rows)


@pytest.mark.parametrize(("most", "size"), [(6_500, 50_000), (6_500, 500_000), (1_000, 500_000)])
@pytest.mark.behaviour("TX-17")
def test_where_only_large_parts_are_refused_little_is_computed_again(most: int, size: int) -> None:
    asked, done, noted = list[int](), list[OffsetRange](), list[float]()

    def write(part: Ranges) -> int:
        asked.append(part[P0].size)
        if part[P0].size > most:
            raise refused()
        done.append(part[P0])
        return part[P0].size

    halve({P0: OffsetRange(0, size)}, SimpleNamespace(write=write, attempt=None, sleep=noted.append))

    assert [one.from_ for one in done[1:]] == [one.until for one in done[:-1]]
    assert (done[0].from_, done[-1].until) == (0, size)
    assert sum(asked) < 5 * size


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("at_once", [1, 37, 63])
def test_a_function_that_takes_only_so_many_records_is_given_fewer(at_once: int) -> None:
    table = Table(computing=lambda records: len(records) > at_once)
    halve({P0: OffsetRange(0, 64)}, table)
    assert len(table.stored) == 64


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("quota", [0, 10, 64, 70, 96, 120, 126])
def test_a_quota_that_is_used_up_during_the_search_names_no_record(quota: int) -> None:
    """From then on every record fails, also alone; with 126 the last one is the first of these."""
    left = quota

    def is_used_up(records: set[Coordinates]) -> bool:
        nonlocal left
        left -= len(records)
        return left < 0 < len(records)

    table = Table(lambda _: table.asked <= 1, computing=is_used_up)
    assert named(blamed({P0: OffsetRange(0, 64)}, table)) is None


@pytest.mark.behaviour("DLQ-15")
def test_that_others_are_computed_says_nothing_of_a_writers_function() -> None:
    table = Table(lambda records: (P0, 63) in records, error=FAILED)
    assert named(blamed({P0: OffsetRange(0, 64)}, table)) is None


@pytest.mark.behaviour("DLQ-15")
def test_a_value_that_a_function_cant_read_speaks_for_itself() -> None:
    failed = FunctionFailed("failed", error_class="ValueError", text="", traceback="", sqlstate="22018")
    assert named(blamed({P0: OffsetRange(0, 3)}, failing(lambda _: True, error=failed))) == (P0, 0)


@given(
    entries=st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=3, unique=True), max_size=5),
    bad=st.sets(st.integers(0, 11), min_size=1, max_size=2),
)
@pytest.mark.behaviour("TX-18")
def test_no_leg_of_a_whole_entry_is_ever_named(entries: list[list[int]], bad: set[int]) -> None:
    """An entry is refused where some of its legs are there and some are not; a bad record always is."""
    groups = [{(P0, leg) for leg in legs} for legs in entries]
    broken = {(P0, offset) for offset in bad}

    def rule(records: set[Coordinates]) -> bool:
        return not records.isdisjoint(broken) or any(0 < len(legs & records) < len(legs) for legs in groups)

    record = named(blamed({P0: OffsetRange(0, 12)}, Table(rule)))
    # Of an entry with a bad leg, any leg makes the rest of it bad, and with it those that share one of them.
    guilty, before = broken, set[Coordinates]()
    while guilty != before:
        before, guilty = guilty, guilty.union(*[legs for legs in groups if legs & guilty])
    assert record is None or record in guilty


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("sqlstate", [None, "22003", "23505", "P0001"])
def test_values_and_constraints_speak_for_themselves(sqlstate: str | None) -> None:
    assert speaks_for_itself(refused(sqlstate=sqlstate))


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("sqlstate", [*STRANGE, "21000", "38000", "44000", "54000", "P0002"])
def test_other_refusals_do_not_speak_for_themselves(sqlstate: str) -> None:
    assert not speaks_for_itself(refused(sqlstate=sqlstate))
    assert not speaks_for_itself(FunctionFailed("failed", error_class="ValueError", text="", traceback=""))


@dataclass
class Fails(Table):
    """Writes nothing any more, after so many times, or only tries nothing."""

    trouble: type[Exception] = StaleClaim
    writes: int = 0

    def write(self, part: Ranges) -> int:
        self.writes -= 1
        if self.writes < 0:
            raise self.trouble("in the way")
        return super().write(part)

    def attempt(self, rest: Ranges, part: Ranges, without: Collection[Coordinates]) -> int:
        if without:
            raise self.trouble("in the way")
        return super().attempt(rest, part, without)


@pytest.mark.parametrize("trouble", [StaleClaim, PlanOutdated, StoreUnavailable])
@pytest.mark.parametrize("writes", [0, 3])
def test_what_keeps_a_part_from_being_written_is_raised(trouble: type[Exception], writes: int) -> None:
    table = Fails(lambda records: (P0, 5) in records, trouble=trouble, writes=writes)
    with pytest.raises(trouble):
        halve({P0: OffsetRange(0, 64)}, table)
    assert records_of({P0: OffsetRange(0, 5)}) >= table.stored


@pytest.mark.parametrize("trouble", [StaleClaim, PlanOutdated])
def test_a_batch_that_is_ours_no_more_ends_the_search_with_that_error(trouble: type[Exception]) -> None:
    table = Fails(lambda records: (P0, 5) in records, trouble=trouble, writes=64)
    with pytest.raises(trouble):
        halve({P0: OffsetRange(0, 64)}, table)


# -- what is stored, and what the error says


BATCH = {P0: OffsetRange(40, 60), P1: OffsetRange(0, 64)}


@pytest.mark.behaviour("TX-17")
def test_what_comes_before_the_named_record_is_stored_and_a_reset_passes_over_that_record_alone() -> None:
    table = with_any((P1, 20))
    error = blamed(BATCH, table)

    assert error.stored == {P0: OffsetRange(40, 60), P1: OffsetRange(0, 20)}
    assert table.stored == records_of(error.stored)
    assert (error.topic_partition, error.offsets) == (P1, OffsetRange(20, 21))
    assert error.found == (
        "int64; first refused at record payments-1@20; stored before it: payments-0 [40, 60), payments-1 [0, 20)"
    )
    assert error.next_step == (
        "Correct it. To skip only this record: "
        "offsetstore reset -g 'the billing' -t payments:1 --from-offset 20 --to-offset 21 --schema 'our store' "
        '--reason "…" --execute'
    )
    assert (error.table, error.column) == ("payments", "amount")


@pytest.mark.parametrize(("at_once", "most"), [(0, 1), (64, 1), (84, 2)])
def test_as_many_partitions_are_written_together_as_may_be(at_once: int, most: int) -> None:
    table = with_any((P1, 63))
    blamed(BATCH, table, at_once=at_once)
    assert max(map(len, table.written)) == most
    assert table.stored == records_of(BATCH) - {(P1, 63)}


def test_the_page_gives_the_same_command() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    claim = SimpleNamespace(
        group="billing", database=SimpleNamespace(schema="public"), has_made_rows=False, is_member=False
    )
    error = blamed(BATCH, with_any((P0, 41)), claim=claim)
    _, _, command = error.next_step.partition("only this record: ")
    text, reason = command.replace(" 41 ", " 1041 ").replace(" 42 ", " 1042 ").split("…")
    assert re.search(f'^\\$ {re.escape(text)}[^"]+{re.escape(reason)}$', page, re.MULTILINE)


def test_where_there_is_no_time_to_show_the_cause_the_record_is_found_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blame, "SECONDS", 0)
    error = blamed(BATCH, with_any((P0, 50)))
    assert (error.topic_partition, error.offsets, error.stored) == (None, None, {P0: OffsetRange(40, 50)})
    assert "first refused at record payments-0@50, but the cause may be any of payments-0 [50, 60), pay" in str(error)
    assert "; the search for the cause ended: the time is up; stored before it: payments-0 [40, 50)" in str(error)
    assert "reset" not in error.next_step
    assert "payments-0 [40, 60), payments-1 [0, 64): too large" in caplog.text
