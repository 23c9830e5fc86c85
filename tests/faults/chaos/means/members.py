"""Consumers as processes of their own, members of one fleet; they do to records what `harness.landing` does.

``python -m tests.faults.chaos.means.members URL SERVERS TOPIC GROUP TAKEOVER``, from the top of the checkout, is one.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, Self, cast

import psycopg
import pyarrow as pa

from offsetstore import Append, BatchInfo, Claim, Flush, OffsetRange, OffsetStore, TopicPartition, Upsert
from offsetstore.consumer import Consumer
from offsetstore.errors import OffsetStoreError, exit_code
from offsetstore.protocol.events import BatchEnded, Event, SinkMade
from offsetstore.store.claim import Takeover
from offsetstore.testing.job_process import BatchPrinter, JobProcess, print_event
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.harness.verifier import Told
from tests.faults.chaos.means.kept import Kept

SESSION_TIMEOUT: Final = 6.0
"""Seconds; the least that Kafka allows by default."""

_MOST: Final = 30
"""Records of a partition in one transaction of a claim."""

_LANDED: Final = "INSERT INTO landed VALUES (%s, %s, %s, %s, %s, %s)"
_SUMS: Final = """
INSERT INTO sums VALUES (%s, 1, %s)
ON CONFLICT (key) DO UPDATE SET records = sums.records + 1, total = sums.total + excluded.total
"""


class Members:
    """Processes that are kept alive, three or more; a context manager, at whose end they are stopped in order."""

    def __init__(self, scene: Scene, *, count: int = 3) -> None:
        self.takeover: Takeover = "refuse"
        """Of the processes that are started from now on."""
        self._scene = scene
        self._closing = ExitStack()
        self._all: list[Kept] = []
        self.kept = [self.another() for _ in range(count)]

    def another(self) -> Kept:
        """Have one more place for a member, which nothing is in yet."""
        scene = self._scene
        made = Kept(
            lambda: ["-m", __name__, scene.url, scene.servers, scene.topic, scene.group, self.takeover],
            scene.directory / f"member-{len(self._all)}.log",
        )
        self._all.append(self._closing.enter_context(made))
        return made

    @property
    def processes(self) -> Sequence[JobProcess]:
        """All there were."""
        return [process for one in self._all for process in one.processes]

    def unexpected(self, allowed: Sequence[str]) -> list[str]:
        """The ends that these errors, and what we have done, do not explain."""
        return [end for one in self._all for end in one.unexpected(allowed)]

    def told(self) -> list[Told]:
        """What they have told of what is committed."""
        done = [[event for event in one.events if event.kind == "done"] for one in self.processes]
        return [Told(self._scene.group, "batch", events) for events in done]

    def __enter__(self) -> Self:
        for one in self.kept:
            one.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._closing:
            if kind is None:
                for one in self.kept:
                    one.stop()


def write_by_claim(scene: Scene, store: OffsetStore, claim: Claim, starts: dict[TopicPartition, int]) -> int:
    """Write what the ledger has from these offsets on, in one transaction, without Spark and Kafka; move them.

    :return: how many records.
    :raises StaleClaim: the claim was fenced; nothing was written.
    """
    mine = {
        tp: [*scene.ledger.between(tp.topic, 0, tp.partition, start, start + _MOST)] for tp, start in starts.items()
    }
    with store.transaction(claim) as tx:
        ranges = {tp: OffsetRange(starts[tp], starts[tp] + len(entries)) for tp, entries in mine.items() if entries}
        tx.lock(ranges)
        into: psycopg.Cursor[Any] = tx.connection.connection.driver_connection.cursor()
        for tp in ranges:
            for one in mine[tp]:
                into.execute(_LANDED, (tp.topic, tp.partition, one.offset, one.seq, one.key, one.amount))
                into.execute(_SUMS, (one.key, one.amount or 0))
        for tp, range_ in ranges.items():
            tx.advance({tp: range_}, metadata={"until": range_.until})
    starts |= {tp: range_.until for tp, range_ in ranges.items()}
    return sum(map(len, mine.values()))


def longest_wait(scene: Scene) -> float:
    """The most seconds from one move of a stored offset to the next, as the observer has seen them."""
    moved: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for before, after in pairwise(scene.observer.looks):
        for place, offset in after.stored.items():
            if before.stored.get(place) != offset:
                moved[place].append(after.at)
    return max((b - a for times in moved.values() for a, b in pairwise(times)), default=0.0)


def transform(records: Any) -> dict[str, pa.RecordBatch]:
    """As `landing.outputs`: the records, and what they add up to."""
    values = [json.loads(value) for value in records.column("value").to_pylist()]
    parsed: dict[str, Any] = {name: records.column(name) for name in ("topic", "partition", "offset")}
    parsed |= {
        name: pa.array([one[name] for one in values], type_)
        for name, type_ in (("seq", pa.int64()), ("key", pa.string()), ("amount", pa.int64()))
    }
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in values:
        sums[one["key"]][0] += 1
        sums[one["key"]][1] += one["amount"] or 0
    added: dict[str, Any] = {
        "key": pa.array([*sums], pa.string()),
        "records": pa.array([count for count, _ in sums.values()], pa.int64()),
        "total": pa.array([total for _, total in sums.values()], pa.int64()),
    }
    return {"landed": pa.record_batch(parsed), "sums": pa.record_batch(added)}


class _Printer:
    """Prints ``begun`` when the process has joined, and what is written."""

    def __init__(self) -> None:
        self._batches = BatchPrinter()

    def on(self, event: Event) -> None:
        """Print it."""
        if isinstance(event, SinkMade):
            print_event("begun")
        elif isinstance(event, BatchEnded):
            self._batches.on(event)


def note(info: BatchInfo) -> object:
    """As `harness.job.note`, without Spark."""
    return {tp: {"until": range_.until} for tp, range_ in info.ranges.items()}


def _main(url: str, servers: str, topic: str, group: str, takeover: str) -> None:
    with OffsetStore.connect(url, observers=[_Printer()]) as store:
        consumer = Consumer(
            store,
            group,
            topics=[topic],
            kafka={
                "bootstrap.servers": servers,
                "session.timeout.ms": int(SESSION_TIMEOUT * 1000),
                "heartbeat.interval.ms": 500,
            },
            transform=transform,
            into={"landed": Append("landed"), "sums": Upsert("sums", key=["key"], add=["records", "total"])},
            flush=Flush(rows=200, seconds=0.2),
            metadata=note,
            takeover=cast("Takeover", takeover),
        )
        try:
            consumer.run()
        except OffsetStoreError as error:
            print_event("failed", class_name=type(error).__name__, text=str(error))
            sys.exit(exit_code(error))


if __name__ == "__main__":
    _main(*sys.argv[1:])
