from __future__ import annotations

import asyncio
from itertools import combinations
from pathlib import Path

import pytest

from benchmarks.calls import PARTITIONS, Call, calls_in, check, key_of, waits, waits_async
from offsetstore import Record

MS = 1_000_000
SAME = next(pair for pair in combinations(range(500), 2) if key_of(pair[0]) == key_of(pair[1]))


def calls(*begun: int) -> list[Call]:
    return [Call(number, at * MS, (at + 1) * MS) for number, at in enumerate(begun)]


def test_both_functions_log_each_call(tmp_path: Path) -> None:
    records = [Record("calls", 0, number, value=str(number).encode()) for number in range(4)]
    assert waits(str(tmp_path), records[0]) == {"partition": 0, "offset": 0, "value": "0"}
    for record in records[1:]:
        asyncio.run(waits_async(str(tmp_path), record))
    found = [*calls_in(tmp_path)]
    assert [call.number for call in found] == [0, 1, 2, 3]
    assert check(found, 4) == sum(call.ended - call.begun for call in found) / 1e9


@pytest.mark.parametrize("at", [1, 1.5, 0])
def test_calls_of_one_key_may_not_overlap_nor_change_places(at: float) -> None:
    begun = [*range(10, 10 + SAME[1] + 1)]
    assert check(calls(*begun), len(begun))
    early = begun[SAME[0]] - 1 + at
    with pytest.raises(AssertionError, match=r"overlaps|came before"):
        check([*calls(*begun)[:-1], Call(SAME[1], int(early * MS), int(early * MS) + MS)], len(begun))


def test_each_record_has_one_call_that_waits_long_enough_and_those_of_different_keys_may_overlap() -> None:
    assert check(calls(*[1] * PARTITIONS), PARTITIONS) == pytest.approx(PARTITIONS / 1000)
    for found, count, told in (
        (calls(1), 2, "one call for each of 2"),
        ([*calls(1), *calls(5)], 1, "one call for each of 1"),
        ([Call(0, 1, MS)], 1, "took"),
    ):
        with pytest.raises(AssertionError, match=told):
            check(found, count)
