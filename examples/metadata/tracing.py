"""Tracing: each batch leaves its ``traceparent`` with the offset, and the next owner goes on with that trace.

In a log or a tracing system, all batches of a group are then one trace, across restarts, crashes and takeovers. The
consumer or sink has ``metadata=traced(store, "billing", "payments")``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from secrets import token_hex

from offsetstore import BatchInfo, OffsetStore

log = logging.getLogger(__name__)


def traced(store: OffsetStore, group: str, topic: str) -> Callable[[BatchInfo], str]:
    """Make the metadata function, once per start."""
    notes = [note for note in store.find_metadata(group, topic).values() if note]
    trace = str(notes[0]).split("-")[1] if notes else token_hex(16)

    def note(batch: BatchInfo) -> str:
        span = token_hex(8)
        for partition, read in batch.ranges.items():
            log.info("trace %s span %s: %s from %d until %d", trace, span, partition, read.from_, read.until)
        return f"00-{trace}-{span}-01"  # W3C's form

    return note
