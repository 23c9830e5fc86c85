"""Numbers that make no sense are refused where they are given, whichever argument it is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from offsetstore import (
    Broker,
    DeadLetters,
    Flush,
    OffsetRange,
    Retries,
    Retry,
    ShiftBy,
    Tick,
    Timeouts,
    TopicPartition,
)
from offsetstore.errors import ConfigurationError
from offsetstore.monitoring import Limits
from offsetstore.monitoring.web import listening
from offsetstore.protocol.marking import check_mark
from offsetstore.testing import InMemoryOffsetStore

TP: Final = TopicPartition("payments", 0)
KAFKA: Final = {"bootstrap.servers": "localhost:1"}

NEVER: Final = (True, math.nan, math.inf, -math.inf, -1, "5", None, np.bool_(1), [5])
"""No number of seconds, and none of anything else."""

SECONDS: Final[dict[str, Callable[[Any], object]]] = {
    "DeadLetters.seconds": lambda n: DeadLetters(seconds=n),
    "Flush.seconds": lambda n: Flush(seconds=n),
    "Tick.every": lambda n: Tick(print, every=n),
    "Timeouts.lock": lambda n: Timeouts(lock=n),
    "Timeouts.idle": lambda n: Timeouts(idle=n),
    "Timeouts.commit": lambda n: Timeouts(commit=n),
    "Retries.shortest": lambda n: Retries(shortest=n),
    "Retries.longest": lambda n: Retries(longest=n),
    "Limits.batch": lambda n: Limits(batch=n),
    "Broker.timeout": lambda n: Broker(KAFKA, timeout=n),
}

WHOLE: Final[dict[str, Callable[[Any], object]]] = {
    "DeadLetters.max_retries": lambda n: DeadLetters(max_retries=n),
    "DeadLetters.limit": lambda n: DeadLetters(limit=n),
    "Flush.rows": lambda n: Flush(rows=n),
    "Flush.bytes": lambda n: Flush(bytes=n),
    "Retries.attempts": lambda n: Retries(attempts=n),
    "port": lambda n: listening("metrics", "127.0.0.1", n).__enter__(),
}

OF_A_CLAIM: Final = ("takeover_timeout", "mirror_every")


@pytest.mark.parametrize("wrong", NEVER, ids=repr)
@pytest.mark.parametrize("make", SECONDS.values(), ids=SECONDS)
def test_what_is_no_time_is_refused(make: Callable[[Any], object], wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        make(wrong)
    make(np.float64(1.5))  # a float


@pytest.mark.parametrize("wrong", [*NEVER, 1.5, 5.0, np.int64(5)], ids=repr)
@pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE)
def test_what_is_no_whole_number_is_refused(make: Callable[[Any], object], wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        make(wrong)


@pytest.mark.parametrize("wrong", [wrong for wrong in NEVER if wrong is not None], ids=repr)
def test_a_number_that_may_be_left_out_is_one_if_it_is_given(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="after must be 0 or more seconds"):
        Retry(after=wrong)
    with pytest.raises(ConfigurationError, match="timestamp_ms must be 0 or more milliseconds"):
        Broker(KAFKA).view("billing", ["payments"], timestamp_ms=wrong)
    with pytest.raises(ConfigurationError, match="max_rss must be 1 or more bytes"):
        Limits(max_rss=wrong)
    assert Retry(after=0) == Retry(after=0.0)


@pytest.mark.parametrize("wrong", [1.5, True, math.nan, "1", np.bool_(1), np.float64(5)], ids=repr)
def test_a_shift_a_partition_and_a_range_are_of_whole_numbers(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"ShiftBy\.offsets must be a number"):
        ShiftBy(wrong)
    with pytest.raises(ValueError, match="not a partition"):
        TopicPartition("payments", wrong)
    with pytest.raises(ValueError, match="not a range"):
        OffsetRange(0, wrong)
    with pytest.raises(ConfigurationError, match="next_offset must be 0 or more, as an int"):
        check_mark(TP, wrong, above=0, delivered=10)
    assert ShiftBy(-5).offsets == -5


@pytest.mark.behaviour("TX-13")
@pytest.mark.parametrize("make", [np.int64, np.int32, np.uint8])
def test_offsets_and_partitions_of_numpy_become_ints(make: Callable[[int], Any]) -> None:
    five: Any = make(5)
    every: Any = "all"
    tp, range_ = TopicPartition("payments", five), OffsetRange(make(0), five)
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        with claim.transaction(marking="manual") as tx:
            tx.lock({tp: range_})
            tx.mark(tp, make(4) + 1)
        marked = store.offsets("billing")[tp].next_offset
        done = [
            store.reset("billing", target, partitions=partitions, reason="a trial", from_offset=from_offset)
            for target, partitions, from_offset in (
                ({tp: make(3)}, None, five),
                (make(4), {"payments": [five]}, None),
                (ShiftBy(make(1)), every, None),
            )
        ]
    numbers = [tp.partition, range_.from_, range_.until, marked, *(one.moves[0].to_offset for one in done)]
    assert numbers == [5, 0, 5, 5, 3, 4, 5]
    assert {type(number) for number in numbers} == {int}
    assert json.dumps([tp, range_.size]) == '[["payments", 5], 5]'


@pytest.mark.parametrize("wrong", [wrong for wrong in NEVER if wrong is not None], ids=repr)
def test_the_numbers_of_a_store_are_refused_before_anything_is_asked(wrong: Any) -> None:
    with InMemoryOffsetStore() as store:
        for name in OF_A_CLAIM:
            arguments: dict[str, Any] = {name: wrong}
            with pytest.raises(ConfigurationError, match=f"{name} must be"):
                store.claim("billing", topics=["payments"], **arguments)
        claim = store.claim("billing", topics=["payments"])
        with pytest.raises(ConfigurationError, match="lock_timeout must be 0 or more seconds"):
            claim.transaction(lock_timeout=wrong)
        for target in ({TP: wrong}, wrong):
            with pytest.raises(ConfigurationError, match=r"must be from 0 to|unknown reset target"):
                store.reset("billing", target, partitions=None if target is not wrong else "all", reason="a trial")
        with pytest.raises(ConfigurationError, match="limit must be 1 or more"):
            store.history("billing", limit=wrong)
        with pytest.raises(ConfigurationError, match="limit must be 1 or more"):
            store.letters("billing", limit=wrong)
