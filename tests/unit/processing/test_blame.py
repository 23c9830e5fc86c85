"""The search for the record that a table refuses, with a table that is a set of offsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

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
from offsetstore.processing.blame import AcceptedThen, Attempt, blame, speaks_for_itself
from offsetstore.processing.unit import Coordinates, PlanOutdated, Ranges

P0, P1 = (TopicPartition("payments", number) for number in range(2))


def refused(**fields: Any) -> RowsRefused:
    what = "too large"
    given: dict[str, Any] = {"table": "payments", "column": "amount", "found": "int64", "next_step": "Correct it."}
    return RowsRefused(what, **(given | fields))


def records_of(ranges: Ranges, without: Collection[Coordinates] = ()) -> set[Coordinates]:
    return {(tp, offset) for tp, range_ in ranges.items() for offset in range(range_.from_, range_.until)} - {*without}


class Table:
    """Refuses what ``rule`` says of a set of records; counts how often it was asked.

    :param error: raised in the place of the table's own, as a function does.
    :param rows: how many rows the records make.
    """

    def __init__(
        self,
        rule: Callable[[set[Coordinates]], bool],
        sqlstate: str | None = None,
        *,
        error: RowsRefused | None = None,
        rows: Callable[[set[Coordinates]], int] = len,
    ) -> None:
        self.rule = rule
        self.sqlstate = sqlstate
        self.error = error
        self.rows = rows
        self.asked = 0

    def attempt(self, ranges: Ranges, without: Collection[Coordinates] = ()) -> int:
        self.asked += 1
        records = records_of(ranges, without)
        if self.rule(records):
            raise self.error or refused(sqlstate=self.sqlstate)
        return self.rows(records)


def with_any(*poison: Coordinates) -> Table:
    return Table(lambda records: not records.isdisjoint(poison))


def rule_of(poison: Mapping[Coordinates, Coordinates | None]) -> Callable[[set[Coordinates]], bool]:
    """A record is refused, unless the one that makes it good is there too."""
    return lambda records: any(bad in records and good not in records for bad, good in poison.items())


CLAIM: Any = SimpleNamespace(group="the billing", database=SimpleNamespace(schema="our store"), has_made_rows=False)


def blamed(ranges: Ranges, attempt: Attempt, failed: RowsRefused | None = None, **options: Any) -> RowsRefused:
    """Search, and let whatever is accepted be stored."""
    return blame(failed or refused(), ranges, attempt, CLAIM, repr, **options)


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
        [{P0: (40, 100), P1: (40, 100)}, {P0: (40, 100)}, {P0: (40, 41)}, {P0: (0, 10_000), P1: (40, 41)}]
    ),
)
def test_the_first_bad_record_is_named_and_all_before_it_are_accepted(
    poison: set[Coordinates], bounds: dict[TopicPartition, tuple[int, int]]
) -> None:
    ranges = {tp: OffsetRange(*pair) for tp, pair in bounds.items()}
    there = sorted(poison & records_of(ranges))
    if not there:
        return
    table = with_any(*there)

    error = blamed(ranges, table.attempt)

    assert named(error) == there[0]
    assert records_of(error.stored) == {record for record in records_of(ranges) if record < there[0]}
    assert table.asked <= 90


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

    error = blamed(ranges, Table(rule).attempt)

    assert not rule(records_of(error.stored))
    record = named(error)
    if record is not None:
        good = poison[record]
        assert good is None or good == record or good in poison


DOUBTFUL: dict[str, tuple[Callable[[set[Coordinates]], bool], int, int]] = {
    "many bad records": (lambda records: any(20 <= offset < 60 for _, offset in records), 20, 64),
    "two with the same key": (lambda records: {(P0, 3), (P0, 20)} <= records, 20, 64),
    "a withdrawal at 5 that a deposit at 50 covers, and 60": (rule_of({(P0, 5): (P0, 50), (P0, 60): None}), 5, 64),
    "two legs of an entry, and 8": (lambda records: (P0, 8) in records or len({(P0, 6), (P0, 7)} & records) == 1, 6, 9),
}


@pytest.mark.behaviour("TX-18")
@pytest.mark.parametrize("case", DOUBTFUL)
def test_a_record_that_may_be_good_is_told_without_a_command(case: str) -> None:
    rule, first, end = DOUBTFUL[case]
    error = blamed({P0: OffsetRange(0, end)}, Table(rule).attempt)
    assert (named(error), error.offsets, error.stored) == (None, OffsetRange(first, end), {P0: OffsetRange(0, first)})
    told = f"first refused at record payments-0@{first}, but the cause may be any of payments-0 [{first}, {end})"
    assert told in str(error)


@pytest.mark.behaviour("TX-18")
@pytest.mark.parametrize("needs_another", [False, True], ids=["alone", "with its parent"])
@pytest.mark.parametrize("allowed", [2, 7, 63])
def test_of_more_records_than_a_table_allows_none_is_named(allowed: int, *, needs_another: bool) -> None:
    """The last one is good, and perhaps refused alone, for something else."""

    def rule(records: set[Coordinates]) -> bool:
        is_lost = needs_another and (P0, 0) not in records and (P0, allowed) in records
        return len(records) > allowed or is_lost

    error = blamed({P0: OffsetRange(0, allowed + 1)}, Table(rule, "P0001").attempt)
    assert named(error) is None
    assert error.stored == {P0: OffsetRange(0, allowed)}


def test_of_records_that_cant_be_computed_not_each_combination_is_tried() -> None:
    """Each trial is a job of Spark's."""
    asked: dict[bool, int] = {}
    for only_computed in (False, True):
        table = with_any(*[(P0, offset) for offset in (5, 21, 22, 40, 63)])
        error = blamed({P0: OffsetRange(0, 64)}, table.attempt, only_computed=only_computed)
        assert named(error) == (P0, 5)
        asked[only_computed] = table.asked
    assert asked[True] == asked[False] - 2**4


@pytest.mark.behaviour("TX-18")
@pytest.mark.parametrize("times", [0, 3])
def test_a_refusal_that_does_not_recur_or_goes_away_during_the_search_names_no_record(times: int) -> None:
    """As the parent of a child is inserted by another job."""
    table = Table(lambda records: (P0, 7) in records and table.asked <= times)
    with pytest.raises(PlanOutdated, match="accepted a moment later"):
        blamed({P0: OffsetRange(0, 8)}, table.attempt)


@pytest.mark.behaviour("TX-18")
@pytest.mark.parametrize("size", [1, 2, 64])
def test_a_first_record_that_is_accepted_when_it_is_tried_alone_is_not_stored_and_refused_at_once(size: int) -> None:
    """As a function fails for it until a service is back."""
    prefixes: list[int] = []

    def attempt(ranges: Ranges, without: Collection[Coordinates] = ()) -> int:
        records = records_of(ranges, without)
        prefixes.extend([len(records)] * ((P0, 0) in records))
        if (P0, 0) in records and (len(records) > 1 or prefixes.count(1) == 1):
            raise FAILED
        return len(records)

    if size == 1:
        with pytest.raises(AcceptedThen):
            blamed({P0: OffsetRange(0, 1)}, attempt, FAILED)
    else:
        error = blamed({P0: OffsetRange(0, size)}, attempt, FAILED)
        assert (named(error), error.offsets, error.stored) == (None, OffsetRange(0, size), {})


@pytest.mark.behaviour("TX-17")
def test_bad_records_of_two_kinds_are_told_one_after_the_other() -> None:
    """The NUL at 5 is refused before anything is sent, the CHECK at 2 by the database."""

    def attempt(ranges: Ranges, without: Collection[Coordinates]) -> int:
        records = records_of(ranges, without)
        if (P0, 5) in records:
            raise refused(column="name")
        if (P0, 2) in records:
            raise refused(sqlstate="23514", constraint="positive")
        return len(records)

    error = blamed({P0: OffsetRange(0, 8)}, attempt, refused(column="name"))

    assert (named(error), error.constraint, error.stored) == ((P0, 2), "positive", {P0: OffsetRange(0, 2)})


def test_what_no_record_can_cause_ends_the_search(caplog: pytest.LogCaptureFixture) -> None:
    def attempt(ranges: Ranges, _: Collection[Coordinates]) -> int:
        """The upper half lets the lower one pass."""
        if ranges[P0].until > 32:
            raise refused() if ranges[P0].until > 48 else LockTimeout("another session is in the way")
        return ranges[P0].size

    error = blamed({P0: OffsetRange(0, 64)}, attempt)

    assert (error.offsets, error.stored) == (OffsetRange(32, 64), {P0: OffsetRange(0, 32)})
    assert "first refused at one of the records payments-0 [32, 64)" in str(error)
    assert "reset" not in error.next_step
    assert "gave up the search: LockTimeout: another session is in the way" in caplog.messages
    assert "; the search for the cause ended: LockTimeout: another session is in the way; stored before it: " in str(
        error
    )


STRANGE = ["42501", "45001", "50001", "55000", "0A000", "HV000", "28000", "XX000", "40001", "57014", "53100", "2200H"]


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("sqlstate", STRANGE)
def test_a_record_is_named_whatever_it_is_refused_for_if_the_others_are_accepted(sqlstate: str) -> None:
    table = Table(lambda records: (P0, 5) in records, sqlstate)
    assert named(blamed({P0: OffsetRange(0, 64)}, table.attempt, refused(sqlstate=sqlstate))) == (P0, 5)


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("sqlstate", STRANGE)
@pytest.mark.parametrize("size", [1, 2, 64])
def test_what_any_record_is_refused_for_names_none(sqlstate: str, size: int) -> None:
    table = Table(bool, sqlstate)
    error = blamed({P0: OffsetRange(0, size)}, table.attempt, refused(sqlstate=sqlstate))
    assert (named(error), error.offsets) == (None, OffsetRange(0, size))


@pytest.mark.behaviour("DLQ-15")
def test_records_without_rows_do_not_show_that_others_are_accepted() -> None:
    table = Table(lambda records: (P0, 5) in records, "42501", rows=lambda _: 0)
    assert named(blamed({P0: OffsetRange(0, 64)}, table.attempt, refused(sqlstate="42501"))) is None


FAILED = FunctionFailed("failed", error_class="ValueError", text="", traceback="")
OF_CALL = FunctionFailed("a call has failed", error_class="ValueError", is_of_call=True)


def is_of_record(error: RowsRefused) -> bool:
    return isinstance(error, FunctionFailed) and error.is_of_record


def failing(rule: Callable[[int], bool], failed: FunctionFailed = FAILED) -> Callable[..., int]:
    """A function that fails for some records, and makes a row of each other one."""
    return Table(lambda records: any(rule(offset) for _, offset in records), error=failed).attempt


def of_function(
    rule: Callable[[Coordinates], bool], *, sqlstate: str | None = None, rowless: int = 0, size: int = 64
) -> RowsRefused:
    """Search where a function fails for some records; each row is made from one. The first ones may make none."""
    failed = FunctionFailed("failed", error_class="ValueError", text="", traceback="", sqlstate=sqlstate)
    table = Table(
        lambda records: any(map(rule, records)),
        error=failed,
        rows=lambda records: sum(offset >= rowless for _, offset in records),
    )
    return blamed({P0: OffsetRange(0, size)}, table.attempt, failed)


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("rowless", [0, 8])
@pytest.mark.parametrize("failing", [1, 3, 56])
def test_a_function_that_fails_for_every_row_names_no_record(rowless: int, failing: int) -> None:
    """As a bug does after a deploy: the command would skip a good record."""
    error = of_function(lambda record: record[1] >= rowless, rowless=rowless, size=rowless + failing)
    assert (named(error), error.offsets) == (None, OffsetRange(rowless, rowless + failing))
    assert not is_of_record(error)


@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize("bad", [[0], [5], [63], range(8), range(20, 64), [0, 63]], ids=str)
@pytest.mark.parametrize("repeats", [True, False])
def test_a_function_that_fails_for_some_records_has_no_bug_also_where_none_is_shown_to_be_the_cause(
    bad: Sequence[int], *, repeats: bool
) -> None:
    error = blamed({P0: OffsetRange(0, 64)}, failing(lambda offset: offset in bad), FAILED, repeats=lambda: repeats)
    assert is_of_record(error)
    assert not FAILED.is_of_record  # it is shared


@pytest.mark.behaviour("CONS-15", "HAND-2")
@pytest.mark.parametrize("bad", [[0], [5], [63], range(8), range(20, 64), [0, 63], range(64)], ids=str)
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_call_of_a_handler_that_has_failed_names_its_record_and_the_way_past_it_unless_all_fail(
    bad: Sequence[int], *, is_stored: bool
) -> None:
    """What came of each call is kept, so nothing has to be called again to know which record it was."""
    ranges, first = {P0: OffsetRange(0, 64)}, min(bad)
    attempt = failing(lambda offset: offset in bad, OF_CALL)
    error = blame(OF_CALL, ranges, attempt, CLAIM, repr if is_stored else None, repeats=lambda: False)
    assert (error.topic_partition, error.offsets) == (P0, OffsetRange(first, first + 1))
    assert f"first refused at record payments-0@{first}; " in str(error)
    is_bug = len(bad) == 64
    assert is_of_record(error) is not is_bug
    assert exit_code(error) == (ExitCode.BUG if is_bug else ExitCode.OTHER)
    way = f"--from-offset {first} --to-offset {first + 1}" if is_stored else "return None for it, by its partition"
    assert (way in error.next_step) is not is_bug


@pytest.mark.behaviour("HAND-2")
def test_a_handler_s_record_is_not_named_if_what_comes_before_it_can_t_be_stored() -> None:
    ranges, store = {P0: OffsetRange(0, 64)}, Mock(side_effect=refused())
    error = blame(OF_CALL, ranges, failing(lambda offset: offset == 5, OF_CALL), CLAIM, store)
    assert "reset" not in error.next_step


@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize("has_made_rows", [True, False])
@pytest.mark.parametrize(
    ("size", "bad", "others"), [(1, {0}, True), (8, {5}, True), (8, {0}, True), (8, {2, 3}, False)]
)
def test_where_no_other_record_makes_rows_those_of_earlier_deliveries_count(
    monkeypatch: pytest.MonkeyPatch, size: int, bad: set[int], *, others: bool, has_made_rows: bool
) -> None:
    """A record that fails alone on a quiet topic is no bug of a function that has worked before."""
    monkeypatch.setattr(CLAIM, "has_made_rows", has_made_rows)
    table = Table(lambda records: any(offset in bad for _, offset in records), error=FAILED, rows=lambda _: 0)
    error = blamed({P0: OffsetRange(0, size)}, table.attempt, FAILED)
    assert named(error) is None
    assert is_of_record(error) is (has_made_rows and others)


@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize("rows", [1, 0])
def test_a_search_that_ends_early_keeps_what_it_has_shown(rows: int) -> None:
    """A slow function would have a bug, whatever the records before the bad one have shown."""

    def attempt(ranges: Ranges, without: Collection[Coordinates] = ()) -> int:
        records = records_of(ranges, without)
        if without:
            raise StoreUnavailable("down")
        if (P0, 5) in records:
            raise FAILED
        return rows * len(records)

    error = blamed({P0: OffsetRange(0, 64)}, attempt, FAILED)
    assert "the search for the cause ended" in str(error)
    assert is_of_record(error) is bool(rows)


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("at_once", [1, 37, 63])
def test_a_function_that_takes_only_so_many_records_names_none(at_once: int) -> None:
    table = Table(lambda records: len(records) > at_once, error=FAILED)
    error = blamed({P0: OffsetRange(0, 64)}, table.attempt, FAILED)
    assert (named(error), error.stored) == (None, {P0: OffsetRange(0, at_once)})
    assert not is_of_record(error)


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("quota", range(60, 200, 7))
def test_a_quota_that_is_used_up_during_the_search_names_no_record(quota: int) -> None:
    """From then on every record fails, also alone."""
    left = quota

    def attempt(ranges: Ranges, without: Collection[Coordinates] = ()) -> int:
        nonlocal left
        records = records_of(ranges, without)
        left -= len(records)
        if left < 0:
            raise FAILED
        return len(records)

    with suppress(AcceptedThen):
        assert named(blamed({P0: OffsetRange(0, 64)}, attempt, FAILED)) is None


@pytest.mark.behaviour("DLQ-15")
def test_a_value_that_a_function_cant_read_speaks_for_itself() -> None:
    assert named(of_function(lambda _: True, sqlstate="22018", size=3)) == (P0, 0)


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

    record = named(blamed({P0: OffsetRange(0, 12)}, Table(rule).attempt))
    # Of an entry with a bad leg, any leg makes the rest of it bad, and with it those that share one of them.
    guilty, before = broken, set[Coordinates]()
    while guilty != before:
        before, guilty = guilty, guilty.union(*[legs for legs in groups if legs & guilty])
    assert record is None or record in guilty


def test_a_refusal_that_tells_less_is_the_same() -> None:
    original = refused(sqlstate="22003", column=None, table=None)

    def attempt(ranges: Ranges, without: Collection[Coordinates]) -> int:
        if (P0, 5) in records_of(ranges, without):
            raise refused(sqlstate="22003", column="amount", table=None)
        return 1

    error = blamed({P0: OffsetRange(0, 64)}, attempt, original)
    assert (error.column, named(error)) == ("amount", (P0, 5))


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("sqlstate", [None, "22003", "23505", "P0001"])
def test_values_and_constraints_speak_for_themselves(sqlstate: str | None) -> None:
    assert speaks_for_itself(refused(sqlstate=sqlstate))


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("sqlstate", [*STRANGE, "21000", "38000", "44000", "54000", "P0002"])
def test_other_refusals_do_not_speak_for_themselves(sqlstate: str) -> None:
    assert not speaks_for_itself(refused(sqlstate=sqlstate))
    assert not speaks_for_itself(FunctionFailed("failed", error_class="ValueError", text="", traceback=""))


@pytest.mark.parametrize("error", [StaleClaim, PlanOutdated])
def test_a_batch_that_is_ours_no_more_ends_the_search_with_that_error(error: type[Exception]) -> None:
    with pytest.raises(error):
        blamed({P0: OffsetRange(0, 64)}, Mock(side_effect=error("another job has it")))


# -- what is stored, and what the error says


BATCH = {P0: OffsetRange(40, 60), P1: OffsetRange(0, 64)}


def told(
    *poison: Coordinates, store: Callable[[Ranges], object] = repr, claim: Any = CLAIM, **options: Any
) -> RowsRefused:
    return blame(refused(), BATCH, with_any(*poison).attempt, claim, store, **options)


@pytest.mark.behaviour("TX-17")
def test_what_comes_before_the_named_record_is_stored_and_a_reset_passes_over_that_record_alone() -> None:
    stored: list[Ranges] = []
    error = told((P1, 20), store=stored.append)

    assert stored == [error.stored] == [{P0: OffsetRange(40, 60), P1: OffsetRange(0, 20)}]
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


def test_the_readme_gives_the_same_command() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    claim = SimpleNamespace(group="billing", database=SimpleNamespace(schema="public"), has_made_rows=False)
    error = told((P0, 41), claim=claim)
    _, _, command = error.next_step.partition("only this record: ")
    text, reason = command.replace(" 41 ", " 1041 ").replace(" 42 ", " 1042 ").split("…")
    assert re.search(f'^\\$ {re.escape(text)}[^"]+{re.escape(reason)}$', readme, re.MULTILINE)


def test_a_search_that_has_no_time_tells_of_all_partitions_with_their_ranges(caplog: pytest.LogCaptureFixture) -> None:
    error = told((P0, 50), seconds=0, store=lambda _: pytest.fail("stored"))
    assert (error.topic_partition, error.offsets, error.stored) == (None, None, {})
    assert "records payments-0 [40, 60), payments-1 [0, 64); the search for the cause ended: the time is up" in str(
        error
    )
    assert "nothing before it was stored" in str(error)
    assert "payments-0 [40, 60), payments-1 [0, 64): too large" in caplog.text


@pytest.mark.behaviour("TX-18")
def test_where_what_was_accepted_is_refused_when_it_is_stored_no_record_is_named() -> None:
    error = told((P1, 20), store=Mock(side_effect=refused(column="id")))
    assert error.stored == {}
    assert (error.topic_partition, error.offsets) == (None, None)
    assert "one of the records payments-0 [40, 60), payments-1 [0, 64)" in str(error)
    assert "reset" not in str(error)


@pytest.mark.parametrize("trouble", [StaleClaim, PlanOutdated, StoreUnavailable])
def test_what_keeps_the_records_before_it_from_being_stored_is_raised(trouble: type[Exception]) -> None:
    with pytest.raises(trouble):
        told((P1, 20), store=Mock(side_effect=trouble("in the way")))
