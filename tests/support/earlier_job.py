"""A job on offsetstore as it was at an earlier commit: ``earlier_job.py URL REVISION``.

It runs with the code of that commit first on its path. Each line of its input is a step, and is answered with
``done``, or with the error's class.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from sqlalchemy import text

import offsetstore.postgres.database
from offsetstore import LetterError, LetterKey, OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import OffsetStoreError
from offsetstore.protocol.letters import NewLetter, Payload
from offsetstore.testing import StaticBroker

P0 = TopicPartition("payments", 0)


class Job:
    """One start after the other."""

    def __init__(self, url: str, revision: str) -> None:
        self.url, self.revision = url, revision

    def trust(self) -> None:
        """Let it run on ``REVISION``, too: it would run on its own alone, as all code did before decision 0056."""
        offsetstore.postgres.database.HEAD = self.revision

    def start(self) -> None:
        """Connect and claim."""
        self.store = OffsetStore.connect(self.url)
        self.claim = self.store.claim("billing", StaticBroker.with_topics({"payments": 1}, end=1000))

    def write(self) -> None:
        """Write the ten records from the stored offset on, but for the first: that is a letter."""
        begin = self.store.offsets("billing")[P0].next_offset
        with self.store.transaction(self.claim) as tx:
            tx.lock({P0: OffsetRange(begin, begin + 10)})
            tx.connection.execute(text(f"INSERT INTO results SELECT generate_series({begin + 1}, {begin + 9})"))
            error = LetterError("ValueError", "not a number")
            write: Any = tx.letters.write if hasattr(tx, "letters") else getattr(tx, "write_letters")  # noqa: B009
            write([NewLetter(P0, begin, "raised", error, 1, None, Payload(b"k", b"v", None, 0, 0))])
            tx.advance({P0: OffsetRange(begin, begin + 10)}, metadata={"from": begin})

    def decide(self) -> None:
        """What operators do, and see."""
        store = self.store
        store.pause("billing", reason="a test")
        store.resume("billing", reason="a test")
        stored = store.offsets("billing")[P0].next_offset
        store.request_replay("billing", [LetterKey(P0, stored - 10)], reason="a test")
        copy, renamed = f"copy of {stored}", f"renamed from {stored}"
        store.copy_group("billing", copy, reason="a test")
        store.reset(copy, {P0: 5}, reason="a test")
        store.rename_group(copy, renamed, reason="a test")
        store.delete_group(renamed, reason="a test")
        assert store.history("billing")
        assert store.runs("billing")
        assert store.letters("billing").letters
        assert store.facts().tables
        assert getattr(store.group_state("billing"), "owner", None)
        assert store.groups()

    def stop(self) -> None:
        """End cleanly."""
        self.store.close()


if __name__ == "__main__":
    assert offsetstore.__file__.startswith(os.environ["PYTHONPATH"]), offsetstore.__file__
    job = Job(*sys.argv[1:])
    for line in sys.stdin:
        try:
            getattr(job, line.strip())()
        except OffsetStoreError as error:
            print(type(error).__name__, flush=True)  # noqa: T201 - the answer
        else:
            print("done", flush=True)  # noqa: T201 - the answer
