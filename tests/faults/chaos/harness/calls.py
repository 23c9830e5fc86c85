"""A handler as the job's transform, and the log of its calls, which outlives every process.

Each call appends one line when it begins, and one when it ends: to a file that is opened for appending, so that all
workers share it. Only what a kill interrupts lacks its second line.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark import TaskContext

from offsetstore import Handler, Record, Retries
from offsetstore.testing.job_process import OutputLine

Place: TypeAlias = "tuple[str, int, int]"
"""Topic, partition and offset."""

ATTEMPTS: Final = 3
ROW: Final = "row"
"""How a call ends that raises nothing."""
HANGING: Final = -4712
"""The amount of a record for which calls hang."""

_LANDED: Final = "topic string, partition int, `offset` long, seq long, key string, amount long"
_SUMS: Final = "key string, records long, total long"
_SHY: Final = 5
"""For each fifth record the first call in a task fails."""
_BLOCKING: Final = 20

_numbers = itertools.count()
_tried: Counter[tuple[int, str]] = Counter()


def handler(
    *, epoch: int, by_partition: bool, is_async: bool = False, concurrency: int = 8, timeout: float = 30.0, **how: Any
) -> Handler:
    """What `landing.outputs_by_record` or, by partition, `landing.rows_or_rejects` makes of records.

    :param how: fields of `Calling`.
    """
    calling = Calling(epoch=epoch, by_partition=by_partition, **how)
    return Handler(
        calling.later if is_async else calling.at_once,
        _LANDED if by_partition else {"landed": _LANDED, "sums": _SUMS},
        concurrency=concurrency,
        timeout=timeout,
        retries=Retries(attempts=ATTEMPTS, shortest=0.01, longest=0.05),
    )


@dataclass(frozen=True, slots=True)
class Calling:
    """The handler's function.

    :param log: the file.
    :param epoch: of the job's claim.
    :param seconds: what a call takes, at least and at most.
    :param hangs: what it takes for a record that hangs.
    :param blocks: for how long one call in twenty blocks its thread: of an async function, the loop.
    """

    log: str
    epoch: int
    by_partition: bool
    seconds: Sequence[float] = (0.0, 0.05)
    hangs: float = 0.0
    blocks: float = 0.0

    def at_once(self, record: Record) -> Any:
        with self._logged(record) as task:
            time.sleep(self._seconds(record))
            return self._rows(record, task)

    async def later(self, record: Record) -> Any:
        with self._logged(record) as task:
            if self.blocks and record.offset % _BLOCKING == _BLOCKING // 2:
                time.sleep(self.blocks)  # noqa: ASYNC251 - which nobody should do
            await asyncio.sleep(self._seconds(record))
            return self._rows(record, task)

    @contextmanager
    def _logged(self, record: Record) -> Generator[int]:
        context: Any = TaskContext.get()
        task, call = context.taskAttemptId(), f"{os.getpid()}-{next(_numbers)}"
        begun = {"epoch": self.epoch, "pid": os.getpid(), "task": task, "id": record.id}
        key = None if record.key is None else record.key.decode()
        _append(self.log, {"call": call, "begun": time.monotonic(), "key": key, **begun})
        outcome = ROW
        try:
            yield task
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            _append(self.log, {"call": call, "ended": time.monotonic(), "outcome": outcome})

    def _seconds(self, record: Record) -> float:
        if self.hangs and f'"amount": {HANGING}'.encode() in (record.value or b""):
            return self.hangs
        return random.uniform(self.seconds[0], self.seconds[1])  # noqa: S311 - any will do

    def _rows(self, record: Record, task: int) -> Any:
        value = json.loads(record.value or b"")
        _tried[task, record.id] += 1
        if value["seq"] % _SHY == 0 and _tried[task, record.id] == 1:
            raise ValueError("not at the first try")
        amount: int | None = value["amount"]
        if amount is not None and amount < 0:
            raise ValueError("the amount is below 0")
        landed = {"topic": record.topic, "partition": record.partition, "offset": record.offset, **value}
        if self.by_partition:
            return landed
        return {"landed": landed, "sums": (value["key"], 1, amount)}


@functools.cache
def _opened(log: str) -> int:
    return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _append(log: str, line: Mapping[str, Any]) -> None:
    os.write(_opened(log), json.dumps(line).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    :param task: the number of Spark's attempt at a task.
    :param outcome: `ROW` or the class of what it has raised; ``None`` if it has not ended.
    """

    epoch: int
    pid: int
    task: int
    id: str
    key: str | None
    begun: float
    ended: float | None = None
    outcome: str | None = None

    @property
    def place(self) -> Place:
        topic, _, partition, offset = self.id.split("/")
        return topic, int(partition), int(offset)


def read(log: Path) -> list[Call]:
    if not log.exists():
        return []
    told, _, _ = log.read_bytes().rpartition(b"\n")
    begun: dict[str, dict[str, Any]] = {}
    for line in map(json.loads, told.splitlines()):
        begun.setdefault(line.pop("call"), {}).update(line)
    return sorted((Call(**one) for one in begun.values()), key=lambda call: call.begun)


@dataclass(frozen=True, slots=True)
class Worked:
    """What one job has done.

    :param events: what it has told.
    :param kills: when processes of its tasks were killed, in seconds of the clock that all processes share.
    :param was_cut: whether it was killed itself, or failed, or was stopped in the middle of a micro-batch.
    """

    epoch: int
    events: Sequence[OutputLine] = ()
    kills: Sequence[float] = ()
    was_cut: bool = False

    def under_way(self, at: float = float("inf")) -> Mapping[str, Sequence[int]]:
        ranges: Mapping[str, Sequence[int]] = {}
        for event in self.events:
            if event.at > at:
                break
            if event.kind == "begun":
                ranges = event.what["ranges"]
            elif event.kind == "done":
                ranges = {}
        return ranges

    def may_repeat(self, place: Place) -> int:
        """For how many kills of its tasks' processes a record may have been called again."""
        return sum(_is_in(place, self.under_way(at)) for at in self.kills)

    def may_leave(self, place: Place) -> bool:
        """Whether a later job may call again for a record that this one has called for."""
        return self.was_cut and _is_in(place, self.under_way())


def _is_in(place: Place, ranges: Mapping[str, Sequence[int]]) -> bool:
    topic, partition, offset = place
    begin, until = ranges.get(f"{topic}-{partition}", (0, 0))
    return begin <= offset < until


def wrong(
    calls: Sequence[Call],
    produced: Collection[Place],
    jobs: Collection[Worked],
    *,
    topic_ids: Mapping[str, str],
    concurrency: int,
) -> list[str]:
    """What must not be, in plain words.

    - Each record was called for, to an end, under its one id.
    - In a task it was called again only after a call that raised, and at most as often as `Retries` say.
    - In another task of the same job it was called only if a process of the job's tasks was killed while its
      micro-batch was under way: once for each of these.
    - In a later job only if its micro-batch was under way when the earlier one was cut. So one kill never repeats more
      than one micro-batch.
    - In one process, calls of a key never overlapped; in each task they were in order, and no more ran than may.
    """
    most = most_at_once(calls)
    return [
        *_never_called(calls, produced, topic_ids),
        *_wrongly_tried(calls),
        *_repeated(calls, {job.epoch: job for job in jobs}),
        *_out_of_order(calls),
        *([f"{most} calls ran at once in one task, with concurrency={concurrency}"] if most > concurrency else []),
    ]


def called_again(calls: Sequence[Call]) -> set[Place]:
    """The records that were called for in more than one task."""
    return {place for place, tasks in _tasks(calls).items() if len(tasks) > 1}


def most_at_once(calls: Sequence[Call]) -> int:
    """How many calls ran at once in one task, at most. Those that hung in an earlier one of its process don't count."""
    most = 0
    for of_task in _grouped(calls, lambda call: (call.epoch, call.pid, call.task)).values():
        changes = sorted(change for call in of_task for change in ((call.begun, 1), (call.ended or float("inf"), -1)))
        most = max(most, *itertools.accumulate(change for _, change in changes))
    return most


def _never_called(calls: Sequence[Call], produced: Collection[Place], topic_ids: Mapping[str, str]) -> Iterator[str]:
    ended = {call.place for call in calls if call.outcome}
    for call in calls:
        if call.id.split("/")[1] != topic_ids.get(call.place[0]):
            yield f"a call for {_named(call.place)} had the id {call.id}"
    for place in sorted({*produced} - ended):
        yield f"no call for {_named(place)} has ended"
    for place in sorted({call.place for call in calls} - {*produced}):
        yield f"a call for {_named(place)}, which nobody has produced"


def _wrongly_tried(calls: Sequence[Call]) -> Iterator[str]:
    tries = _grouped(calls, lambda call: (call.epoch, call.pid, call.task, call.place))
    for (_, _, task, place), of_record in tries.items():
        outcomes = [call.outcome for call in of_record]
        if len(outcomes) > ATTEMPTS or {ROW, None} & {*outcomes[:-1]}:
            yield f"calls for {_named(place)} in task {task} have ended with {outcomes}"


def _tasks(calls: Sequence[Call]) -> dict[Place, set[tuple[int, int, int]]]:
    by_place = _grouped(calls, lambda call: call.place)
    return {place: {(one.epoch, one.pid, one.task) for one in found} for place, found in by_place.items()}


def _repeated(calls: Sequence[Call], jobs: Mapping[int, Worked]) -> Iterator[str]:
    for place, tasks in sorted(_tasks(calls).items()):
        epochs = Counter(epoch for epoch, _, _ in tasks)
        for epoch, count in epochs.items():
            job = jobs[epoch]
            if count > 1 + job.may_repeat(place):
                yield f"job {epoch} has called for {_named(place)} in {count} tasks"
            if epoch != max(epochs) and not job.may_leave(place):
                yield f"{_named(place)} was called for by job {epoch}, and again by job {max(epochs)}"


def _out_of_order(calls: Sequence[Call]) -> Iterator[str]:
    with_keys = [call for call in calls if call.key is not None]
    for (pid, topic, partition, key), of_key in _grouped(
        with_keys, lambda call: (call.pid, *call.place[:2], call.key)
    ).items():
        for one, next_ in itertools.pairwise(of_key):
            told = f"key {key} of {topic}-{partition} in process {pid}: "
            if one.ended is None or one.ended > next_.begun:
                yield f"{told}calls for offsets {one.place[2]} and {next_.place[2]} ran at once"
            elif one.task == next_.task and one.place[2] > next_.place[2]:
                yield f"{told}offset {next_.place[2]} was called for after {one.place[2]}"


def _grouped(calls: Sequence[Call], key: Callable[[Call], Any]) -> dict[Any, list[Call]]:
    found: dict[Any, list[Call]] = defaultdict(list)
    for call in calls:
        found[key(call)].append(call)
    return found


def _named(place: Place) -> str:
    topic, partition, offset = place
    return f"{topic}-{partition}@{offset}"
