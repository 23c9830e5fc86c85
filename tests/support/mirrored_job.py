"""A job without Spark that writes to the database and whose offsets are mirrored to Kafka; also as its own process.

``python -m tests.support.mirrored_job URL GROUP SERVERS TOPIC UNTIL``, run from the top of the checkout: claims the
group and takes partition 0 of the topic to the offset in steps of one, as a sink does, each step after the mirror has
had its turn. The failpoint of the environment ends it on its way.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from offsetstore import Append, Broker, Claim, OffsetRange, OffsetStore, TopicPartition
from offsetstore.protocol.events import MirrorTried
from offsetstore.runtime import failpoints
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

OFTEN = 0.02


def process(store: OffsetStore, claim: Claim, tp: TopicPartition, until: int, *, metadata: object = None) -> None:
    """Write one result for each offset from the stored one on, and advance."""
    stored = store.offsets(claim.group).get(tp)
    range_ = OffsetRange(stored.next_offset if stored else 0, until)
    for point in ("in_discovery", "failures_written", "before_lock"):  # where the sink has them
        failpoints.reach(point)
    with store.transaction(claim) as tx:
        plan = tx.lock({tp: range_})
        numbers = pa.array(range(range_.from_, range_.until), pa.int64())
        Append("results").write(tx, [pa.record_batch({"record": numbers})])
        for point in ("letters_written", "letters_replayed"):  # where the sink has them
            failpoints.reach(point)
        tx.advance({tp: plan[tp].remaining}, metadata=metadata)
    failpoints.reach("after_sink")  # where the sink has it


def copied(broker: Broker, group: str, topic: str) -> dict[int, int]:
    """What Kafka has for the group."""
    return {tp.partition: one.next_offset for tp, one in broker.view(group, [topic]).committed.items()}


def _main(url: str, group: str, servers: str, topic: str, until: str) -> None:
    tp = TopicPartition(topic, 0)
    seen = Recorder()
    with OffsetStore.connect(url, observers=[seen]) as store:
        claim = store.claim(group, Broker({"bootstrap.servers": servers}), topics=[topic], mirror_every=OFTEN)
        for step in range(store.offsets(group)[tp].next_offset + 1, int(until) + 1):
            process(store, claim, tp, step)
            turn = len(seen.of(MirrorTried, "done"))
            wait_until(lambda turn=turn: len(seen.of(MirrorTried, "done")) > turn)


if __name__ == "__main__":
    _main(*sys.argv[1:])
