"""Retries counted in the note: a record that fails is tried five times, by however many processes, then set aside.

The note at the stored offset has the number of attempts and the type of the last error. So a restart does not begin to
count anew, and an operator sees what the group waits for: ``offsetstore metadata get -g billing payments``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offsetstore import Claim, OffsetRange, OffsetStore, Payload, Record, TopicPartition, Transaction

ATTEMPTS = 5


def attempt(store: OffsetStore, claim: Claim, record: Record, handle: Callable[[Transaction, Record], None]) -> float:
    """Try a record, in order; return the seconds to wait before the next try, 0 if the record is passed."""
    partition = TopicPartition(record.topic, record.partition)
    stored = claim.offsets().get(partition)
    # Offsets between the stored one and the record's have no record: compaction, or a transaction's marker.
    begin = record.offset if stored is None else min(stored.next_offset, record.offset)
    note: Any = claim.metadata(partition, cache=False) or {"attempts": 0}

    def pass_record(tx: Transaction, do: Callable[[], object]) -> None:
        tx.lock({partition: OffsetRange(begin, record.offset + 1)})
        do()
        tx.advance({partition: OffsetRange(begin, record.offset + 1)}, metadata=None)

    try:
        store.run(claim, lambda tx: pass_record(tx, lambda: handle(tx, record)))
    except ValueError as error:
        # Only the type: an error's text may have the record's values.
        note = {"attempts": note["attempts"] + 1, "error": type(error).__name__}
    else:
        return 0
    if note["attempts"] == ATTEMPTS:
        payload = Payload(record.key, record.value, record.headers, record.timestamp_ms, 0)
        reason = f"failed {ATTEMPTS} times: {note['error']}"
        store.run(
            claim,
            lambda tx: pass_record(tx, lambda: tx.dead_letter(partition, record.offset, reason, payload=payload)),
        )
        return 0

    def keep(tx: Transaction) -> None:
        tx.lock({partition: OffsetRange(begin, begin)})
        tx.write_metadata(partition, note)

    store.run(claim, keep)
    return 2.0 ** note["attempts"]
