"""A store with something on each page of the dashboard: groups in all states, curves, errors, letters, odd names."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Final

from offsetstore import LetterError, OffsetRange, OffsetStore, TopicPartition
from offsetstore.operations.people import people
from offsetstore.operations.samples import record_samples
from offsetstore.protocol.letters import NewLetter, Payload
from offsetstore.protocol.runs import JobError
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker

TOPIC: Final = "payments"
P0, P1, P2 = (TopicPartition(TOPIC, number) for number in range(3))
ODD: Final = "<script>alert(1)</script> \u202egnp.evil & 'quoted' " + "long" * 50
"""The name of a group that a page must show, and not obey."""

_ERROR: Final = LetterError("RowsRefused", "SECRET", "23514", "public.payments", "positive", "amount")
_PAYLOAD: Final = Payload(b"SECRET", b"SECRET", (), 0, 0)


def broker() -> StaticBroker:
    """A hundred records in each of three partitions, one a minute."""
    made = StaticBroker.with_topics({TOPIC: 3}, end=100)
    now = int(time.time() * 1000)
    for tp in (P0, P1, P2):
        made.records[tp] = {offset: now - (100 - offset) * 60_000 for offset in range(100)}
    return made


def furnish(store: OffsetStore, kafka: StaticBroker) -> None:
    """`billing` runs behind, with letters, errors and curves; `shipping` is paused; `ODD` has left."""
    billing = store.claim("billing", topics=[TOPIC], mirror_every=None)
    ranges = {tp: OffsetRange(0, until) for tp, until in ((P0, 40), (P1, 90), (P2, 100))}
    with store.transaction(billing) as tx:
        tx.lock(ranges)
        letters = [NewLetter(P0, offset, "refused", _ERROR, 2, None, _PAYLOAD) for offset in (3, 5, 7)]
        tx.letters.write(letters)
        tx.advance(ranges, metadata={"until": "<b>bold</b> \u202etxet"})
    refused = JobError(
        source="batch",
        error_class="RowsRefused",
        text="a row violates the constraint <i>positive</i>",
        sqlstate="23514",
        topic_partition=P0,
        batch=7,
        ranges="payments-0 [30, 40)",
        times=3,
    )
    with transaction(store.database, name="errors") as session:
        session.append_errors("billing", billing.token, [refused])
    for group, reason in (("shipping", "<i>maintenance</i>"), (ODD, "moved on")):
        claim = store.claim(group, topics=[TOPIC], mirror_every=None)
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 10)})
            tx.advance({P0: OffsetRange(0, 10)})
        claim.close()
        store.pause(group, reason=reason)
    store.resume(ODD, reason="<u>on</u> \u202eagain")
    store.reset(ODD, {P0: 5}, reason="<u>again</u>")
    _draw_curves(store, kafka)


def _draw_curves(store: OffsetStore, kafka: StaticBroker) -> None:
    """Samples of half an hour, with a gap."""
    lag = store.lag(None, kafka)
    for age in [*range(1800, 1200, -10), *range(900, 0, -10)]:
        at = lag.store.at - timedelta(seconds=age)
        samples = {
            name: replace(one, at=at, stored=one.stored + 50 * (1800 - age), lag=age % 700, batches=(1800 - age) // 10)
            for name, one in lag.samples().items()
        }
        with transaction(store.database, name="samples") as session:
            record_samples(people(session), samples)
