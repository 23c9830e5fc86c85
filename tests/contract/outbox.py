"""The outbox: its records come and go with the results. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import pytest

from offsetstore.errors import ConfigurationError, RowsRefused
from offsetstore.offsets import OffsetRange
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.store.claim import Claim
from tests.contract.parts import P0, ContractParts, Stop

BYTES = bytes(range(256))
RECORDS = [
    OutboxRecord("events", BYTES, BYTES, (("trace", BYTES), ("trace", None), ("größe", b""))),
    OutboxRecord("events", None, None),
    OutboxRecord("other.events", b"", b"", (("", b""),)),
]
ReadOutbox: TypeAlias = Callable[[], list[OutboxRecord]]
"""Reads what is committed, in order."""


class OutboxContract(ContractParts):
    """What a job puts into the outbox."""

    @pytest.fixture
    def outbox(self) -> ReadOutbox:
        """To be overridden."""
        raise NotImplementedError

    @pytest.mark.behaviour("OUT-1")
    def test_records_results_and_offset_are_committed_together(self, claim: Claim, outbox: ReadOutbox) -> None:
        with pytest.raises(Stop), self.store.transaction(claim) as tx:
            tx.lock({})
            tx.produce_all(RECORDS)
            raise Stop
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            self.write(tx, [0])
            tx.produce("events", "a key", "größer", [("trace", "7f3a")])
            assert tx.produce_all(iter(RECORDS)) == 3
            tx.advance(tx.ranges)
            assert (outbox(), self.read()) == ([], [])

        assert outbox() == [OutboxRecord("events", b"a key", "größer".encode(), (("trace", b"7f3a"),)), *RECORDS]
        assert self.stored()[P0] == 3

    @pytest.mark.behaviour("OUT-1")
    def test_a_savepoint_takes_its_records_along(self, claim: Claim, outbox: ReadOutbox) -> None:
        with self.store.transaction(claim) as tx:
            tx.lock({})
            tx.produce_all(RECORDS[:1])
            savepoint = tx.connection.begin_nested()
            tx.produce_all(RECORDS[1:])
            savepoint.rollback()

        assert outbox() == RECORDS[:1]

    def test_a_record_that_kafka_can_t_have_is_refused_and_nothing_of_its_call_is_written(
        self, claim: Claim, outbox: ReadOutbox
    ) -> None:
        with self.store.transaction(claim) as tx:
            tx.lock({})
            with pytest.raises(RowsRefused, match="the name of the topic is not valid"):
                tx.produce_all([*RECORDS, OutboxRecord("no topic", None, b"")])
            for wrong, found in ((RECORDS[0].topic, "builtins.str"), (("events", b""), "2 parts")):
                with pytest.raises(ConfigurationError, match=f"not a record; found {found}"):
                    tx.produce_all([*RECORDS, cast("OutboxRecord", wrong)])
            assert tx.produce_all([]) == 0

        assert outbox() == []
