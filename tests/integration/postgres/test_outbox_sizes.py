"""How many rows of the outbox go together: by their bytes, headers included."""

from __future__ import annotations

from typing import cast

import pytest

from offsetstore import OffsetStore
from offsetstore.operations.people import ask
from offsetstore.postgres import outbox
from offsetstore.postgres.outbox import Portions, Reader
from offsetstore.protocol.outbox import OutboxRecord
from tests.support.outbox import put

HEADERS = (("trace", bytes(7_000_000)),)
"""Base64 makes 9 MB of it, and compression some kilobytes."""


@pytest.mark.behaviour("OUT-1", "OUT-2")
@pytest.mark.parametrize(
    "record",
    [OutboxRecord("events", None, b"", HEADERS), OutboxRecord("events", None, bytes(9_000_000))],
    ids=["headers", "value"],
)
def test_large_records_are_written_with_several_statements_and_sent_one_by_one(
    store: OffsetStore, record: OutboxRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    one = outbox.OutboxStatements.one

    def watched(session: outbox.OutboxStatements, statement: str, **values: object) -> object:
        if statement == outbox.WRITE_OUTBOX:
            sent.append(len(cast("list[str]", values["topics"])))
        return one(session, statement, **values)

    monkeypatch.setattr(outbox.OutboxStatements, "one", watched)
    put(store, [record] * 4)
    assert max(sent) <= 2
    assert sum(sent) == 4

    reading = Reader(lambda query: ask(store.database, query), Portions(), largest=10_000_000)
    [row] = reading.look("{}", 10)
    assert (row.value, row.headers) == (record.value, record.headers)
