"""Consumers as processes of their own, members of one fleet; they do to records what `harness.landing` does.

``python -m tests.faults.chaos.means.members URL SERVERS TOPIC GROUP TAKEOVER``, from the top of the checkout, is one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import defaultdict
from itertools import pairwise
from typing import Any, Final, Self

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from offsetstore import (
    Append,
    Claim,
    Flush,
    Handler,
    OffsetRange,
    OffsetStore,
    Record,
    TopicPartition,
    Upsert,
)
from offsetstore.consumer import Consumer
from offsetstore.protocol.events import SinkMade
from offsetstore.store.claim import Takeover
from offsetstore.testing.job_process import BatchPrinter
from tests.faults.chaos.harness.job import note
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.harness.verifier import Told
from tests.faults.chaos.means.kept import Begun, Several, telling

SESSION_TIMEOUT: Final = 6.0
"""Seconds; the least that Kafka allows by default."""

_SCHEMA: Final = {
    "landed": "topic string, partition int, offset long, seq long, key string, amount long",
    "sums": "key string, records long, total long",
}
_MOST: Final = 30
"""Records of a partition in one transaction of a claim."""

_LANDED: Final = "INSERT INTO landed VALUES (%s, %s, %s, %s, %s, %s)"
_SUMS: Final = """
INSERT INTO sums VALUES (%s, 1, %s)
ON CONFLICT (key) DO UPDATE SET records = sums.records + 1, total = sums.total + excluded.total
"""


class Members(Several):
    """Three processes or more, which are stopped in order at the end.

    ``takeover`` is that of the processes that are started from now on.
    """

    def __init__(self, scene: Scene, *, count: int = 3) -> None:
        self.takeover: Takeover = "refuse"
        given = ["-m", __name__, scene.url, scene.servers, scene.topic, scene.group]
        super().__init__(lambda: [*given, self.takeover], scene.directory, "member")
        self._group = scene.group
        self.kept = [self.another() for _ in range(count)]

    def told(self) -> list[Told]:
        done = [[event for event in one.events if event.kind == "done"] for one in self.processes]
        return [Told(self._group, "batch", events) for events in done]

    def __enter__(self) -> Self:
        for one in self.kept:
            one.begin()
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
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
    added: Any = pa.table({"key": parsed["key"], "total": parsed["amount"]}).group_by("key")
    sums: Any = added.aggregate([("total", "count", pc.CountOptions("all")), ("total", "sum")])
    sums = sums.rename_columns(["key", "records", "total"])
    return {"landed": pa.record_batch(parsed), "sums": pa.RecordBatch.from_pydict(sums.to_pydict(), sums.schema)}


def deadly() -> Consumer:
    """A consumer for ``offsetstore consume`` that a record kills, in whose value a word is; CONSUMER_APP says which."""
    given = json.loads(os.environ["CONSUMER_APP"])
    word: bytes = given["word"].encode()

    def check(value: bytes | None) -> bytes:
        if word in (value or b""):
            os.kill(os.getpid(), signal.SIGSEGV)
        return value or b""

    def rows(records: Any) -> Any:
        for value in records.column("value").to_pylist():
            check(value)
        return transform(records)

    def handle(record: Record) -> dict[str, Any]:
        one = json.loads(check(record.value))
        place = (record.topic, record.partition, record.offset)
        amount = one["amount"] or 0
        return {"landed": [(*place, one["seq"], one["key"], one["amount"])], "sums": [(one["key"], 1, amount)]}

    work = rows if given["how"] == "transform" else Handler(handle, _SCHEMA)
    return _consumer(
        OffsetStore.connect(), given["bootstrap"], given["topic"], given["group"], transform=work, rows=given["rows"]
    )


def _consumer(store: OffsetStore, servers: str, topic: str, group: str, *, rows: int, **how: Any) -> Consumer:
    kafka = {"bootstrap.servers": servers, "session.timeout.ms": int(SESSION_TIMEOUT * 1000)}
    return Consumer(
        store,
        group,
        topics=[topic],
        kafka={**kafka, "heartbeat.interval.ms": 500},
        into={"landed": Append("landed"), "sums": Upsert("sums", key=["key"], add=["records", "total"])},
        flush=Flush(rows=rows, seconds=0.2),
        metadata=note,
        **how,
    )


def _main(url: str, servers: str, topic: str, group: str, takeover: str) -> None:
    with OffsetStore.connect(url, observers=[Begun(SinkMade), BatchPrinter()]) as store, telling():
        given: dict[str, Any] = {"transform": transform, "rows": 200, "takeover": takeover}
        _consumer(store, servers, topic, group, **given).run()


if __name__ == "__main__":
    _main(*sys.argv[1:])
