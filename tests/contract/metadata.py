"""What travels with the offset. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from offsetstore.errors import AdvanceMismatch, ConfigurationError, MetadataError, StaleClaim, UnknownGroup
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import CommittedOffset, OffsetRange, TopicPartition
from offsetstore.protocol.metadata import KEEP, MAX_BYTES, Metadata
from offsetstore.store.claim import Claim
from offsetstore.store.identity import TaskClaim
from offsetstore.testing.broker import StaticBroker
from tests.contract.parts import GROUP, NEW, P0, P1, P2, WAIT, ContractParts, Stop, starts


def advance(store: OffsetStore, claim: Claim, tp: TopicPartition, until: int, *, metadata: object = KEEP) -> None:
    """Advance from wherever the partition is."""
    with store.transaction(claim) as tx:
        tx.lock({tp: OffsetRange(0, until)})
        tx.advance(tx.ranges, metadata=metadata)


def fail(_: object) -> str:
    """Neither serialize nor deserialize."""
    raise Stop


class MetadataContract(ContractParts):
    """What travels with the offset."""

    @pytest.mark.behaviour("META-1", "META-4")
    def test_a_string_or_json_value_is_stored_with_the_offset_and_kept_until_another_one_is(self, claim: Claim) -> None:
        values: list[object] = ["a note", {"trace": ["é", 1, 2.5, True, None]}, [], 0, False, "", None]
        for number, value in enumerate(values):
            self.give(claim, {P0: OffsetRange(2 * number, 2 * number + 1)}, metadata=value)
            assert self.store.metadata(GROUP) == {P0: value, P1: None, P2: None}
            self.give(claim, {P0: OffsetRange(2 * number + 1, 2 * number + 2)})
            assert self.store.metadata(GROUP)[P0] == value

    @pytest.mark.behaviour("META-12", "START-12")
    def test_two_groups_on_one_topic_have_their_own_offsets_and_metadata(self) -> None:
        for group, until in (("billing", 3), ("shipping", 5)):
            claim = self.store.claim(group, self.broker)
            self.give(claim, {P0: OffsetRange(0, until)}, metadata=f"of {group}")

        found = {group: (self.stored(group)[P0], self.store.metadata(group)[P0]) for group in ("billing", "shipping")}
        assert found == {"billing": (3, "of billing"), "shipping": (5, "of shipping")}

    @pytest.mark.behaviour("META-3")
    def test_a_cached_read_keeps_the_value_at_the_claim_and_an_uncached_one_follows(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 1, metadata="first")
        second = self.store.claim(GROUP, self.broker)
        advance(self.store, second, P0, 2, metadata="second")

        assert [second.metadata(P0), second.metadata(P0, cache=False)] == ["first", "second"]
        with self.store.transaction(second) as tx:
            tx.lock({P0: OffsetRange(2, 3)})
            tx.advance(tx.ranges, metadata="third")
            found = [tx.metadata(P0), tx.metadata(P0, cache=False), tx.metadata(P1, cache=False)]
            assert found == ["first", "third", None]
        assert second.metadata(P0, cache=False) == "third"
        third = self.store.claim(GROUP, self.broker, metadata=Metadata(cache=False))
        advance(self.store, third, P0, 4, metadata="now")
        assert [third.metadata(P0), third.metadata(P0, cache=True)] == ["now", "third"]
        assert third.metadata(TopicPartition("payments", 99)) is None  # without a row

    @pytest.mark.behaviour("META-4")
    def test_metadata_can_be_written_again_at_the_same_offset(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 3, metadata="with the offset")
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(3, 3)})
            tx.write_metadata(P0, {"again": 3})

        assert (self.stored()[P0], self.store.metadata(GROUP)[P0]) == (3, {"again": 3})
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(3, 4)})
            tx.write_metadata(P0, "before an advance that keeps it")
            tx.advance(tx.ranges)
        assert self.store.metadata(GROUP)[P0] == "before an advance that keeps it"

    @pytest.mark.behaviour("META-4")
    def test_a_replay_does_not_replace_the_metadata_of_a_later_offset(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 9, metadata="of 9")
        for replayed in (OffsetRange(0, 3), OffsetRange(3, 3), OffsetRange(0, 9)):
            with pytest.raises(AdvanceMismatch, match="in the results already"), self.store.transaction(claim) as tx:
                tx.lock({P0: replayed})
                tx.write_metadata(P0, "of a replay")

        claim.store_metadata(P0, "for the next advance")
        for finishes in (False, True):
            with self.store.transaction(claim) as tx:
                locked = tx.lock({P0: OffsetRange(0, 3), P1: OffsetRange(0, 3)})
                left = {tp: decision.remaining for tp, decision in locked.items()}
                if finishes:
                    tx.finish(left, {P0: '"of a batch"'})
                else:
                    tx.advance(left, metadata="of 3")
        assert self.store.metadata(GROUP) == {P0: "of 9", P1: "of 3", P2: None}
        advance(self.store, claim, P0, 10)
        assert self.store.metadata(GROUP)[P0] == "for the next advance"

    @pytest.mark.behaviour("META-5")
    def test_stored_metadata_is_for_the_next_advance_alone(self, claim: Claim) -> None:
        value = ["as it was"]
        claim.store_metadata(P0, value)
        value.append("changed later")
        advance(self.store, claim, P1, 1)
        assert self.store.metadata(GROUP) == {P0: None, P1: None, P2: None}

        advance(self.store, claim, P0, 1)
        assert self.store.metadata(GROUP)[P0] == ["as it was"]

        advance(self.store, claim, P0, 2, metadata="explicit")
        advance(self.store, claim, P0, 3)
        assert self.store.metadata(GROUP)[P0] == "explicit"
        with pytest.raises(ConfigurationError, match="a topic that the claim does not have"):
            claim.store_metadata(TopicPartition("refunds", 0), "elsewhere")

    @pytest.mark.behaviour("META-5")
    def test_stored_metadata_is_kept_until_a_commit(self, claim: Claim) -> None:
        claim.store_metadata(P0, "kept")
        for _ in range(2):
            with pytest.raises(Stop), self.store.transaction(claim) as tx:
                tx.lock({P0: OffsetRange(0, 1)})
                tx.advance(tx.ranges)
                raise Stop
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1)})
            tx.advance(tx.ranges)
            claim.store_metadata(P0, "stored meanwhile")

        assert self.store.metadata(GROUP)[P0] == "kept"
        advance(self.store, claim, P0, 2)
        assert self.store.metadata(GROUP)[P0] == "stored meanwhile"

    @pytest.mark.behaviour("META-4", "META-5")
    def test_what_a_transaction_writes_wins_over_what_was_stored(self, claim: Claim) -> None:
        claim.store_metadata(None, "stored")
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1), P1: OffsetRange(0, 1), P2: OffsetRange(0, 1)})
            for tp in (P0, P1):
                tx.write_metadata(tp, "written")
            tx.advance({P0: OffsetRange(0, 1)}, metadata="explicit")
            tx.finish({P1: OffsetRange(0, 1), P2: OffsetRange(0, 1)}, {P1: '"of the batch"'})
        assert self.store.metadata(GROUP) == {P0: "explicit", P1: "written", P2: "stored"}

        for tp in (P0, P1, P2):
            advance(self.store, claim, tp, 2)
        assert self.store.metadata(GROUP) == {P0: "explicit", P1: "written", P2: "stored"}

    @pytest.mark.behaviour("META-7")
    def test_a_stale_job_reads_no_metadata_of_others(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 1, metadata="ours")
        stale = self.store.claim(GROUP, self.broker)
        second = self.store.claim(GROUP, self.broker)
        advance(self.store, second, P0, 2, metadata="another job's")

        assert stale.metadata(P0) == "ours"  # it does not know yet
        for cache in (False, True):
            with pytest.raises(StaleClaim):
                stale.metadata(P0, cache=cache)
        with pytest.raises(StaleClaim):
            advance(self.store, claim, P0, 3)
        with pytest.raises(StaleClaim):
            claim.metadata(P0)
        with pytest.raises(StaleClaim):
            claim.metadata(TopicPartition("payments", 99), cache=False)  # without a row
        assert [claim.is_lost, second.is_lost, second.metadata(P0)] == [True, False, "ours"]

    @pytest.mark.behaviour("META-2")
    def test_the_next_claim_has_the_notes_but_of_offsets_that_a_reset_or_another_tool_has_moved(self) -> None:
        first = self.again()
        for tp in (P0, P1, P2):
            advance(self.store, first, tp, 5, metadata={"until": 5})
        self.store.reset(GROUP, {P0: 2, P1: 5}, reason="for the test")
        self.broker.commit(GROUP, {P2: CommittedOffset(9)})

        second = self.again()
        assert starts(second) == {P0: 2, P1: 5, P2: 9}
        for cache in (True, False):
            assert [second.metadata(tp, cache=cache) for tp in (P0, P1, P2)] == [None, {"until": 5}, None]

    @pytest.mark.behaviour("META-3")
    def test_a_tasks_copy_refuses_cached_reads_of_partitions_that_it_lacks(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 1, metadata="a note")
        copy = TaskClaim.of(self.store.claim(GROUP, self.broker), [P0, P1])

        with self.store.transaction(copy) as tx:
            tx.lock({})
            assert [tx.metadata(tp) for tp in (P0, P1)] == ["a note", None]
            with pytest.raises(ConfigurationError, match="batch's partitions only"):
                tx.metadata(P2)
            assert tx.metadata(P2, cache=False) is None

    @pytest.mark.behaviour("META-8")
    def test_each_topic_has_its_own_serializer(self) -> None:
        orders = TopicPartition("orders", 0)
        broker = StaticBroker.with_topics({"payments": 1, "orders": 1}, end=100)
        formats = {"orders": Metadata(serializer=str, deserializer=int)}
        claim = self.store.claim(GROUP, broker, metadata=formats)
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1), orders: OffsetRange(0, 1)})
            tx.advance(tx.ranges, metadata=7)

        assert {tp: row.metadata for tp, row in self.store.offsets(GROUP).items()} == {orders: "7", P0: "7"}
        assert claim.metadata(orders, cache=False) == 7
        assert self.store.metadata(GROUP, formats) == {orders: 7, P0: 7}
        with pytest.raises(ConfigurationError, match="metadata names topics"):
            self.store.claim(GROUP, broker, metadata={"order": Metadata()})

    @pytest.mark.behaviour("META-8")
    def test_a_serializer_that_fails_writes_nothing(self) -> None:
        claim = self.store.claim(GROUP, self.broker, metadata=Metadata(serializer=fail))
        with pytest.raises(MetadataError, match="serializer failed") as caught, self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            self.write(tx, [0, 1, 2])
            tx.advance(tx.ranges, metadata="any")
        assert isinstance(caught.value.__cause__, Stop)
        self.assert_untouched()

    @pytest.mark.behaviour("META-8")
    def test_a_deserializer_that_fails_blocks_no_claim(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 1, metadata="a note")
        second = self.store.claim(GROUP, self.broker, metadata=Metadata(deserializer=fail))

        for cache in (True, False):
            with pytest.raises(MetadataError, match="deserializer failed"):
                second.metadata(P0, cache=cache)
        advance(self.store, second, P0, 2)
        assert self.store.metadata(GROUP)[P0] == "a note"

    @pytest.mark.behaviour("META-9")
    def test_metadata_is_found_without_a_claim(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 1, metadata={"trace": "7f3a"})

        assert [self.store.find_metadata(GROUP, "payments", number) for number in (0, 9)] == [{"trace": "7f3a"}, None]
        assert self.store.find_metadata(GROUP, "payments") == {P0: {"trace": "7f3a"}, P1: None, P2: None}
        assert self.store.find_metadata("unknown", "payments") == {}

    # -- by an operator

    @pytest.mark.behaviour("META-3", "META-4")
    def test_an_operator_rewrites_and_clears_metadata_and_the_history_has_it(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 7, metadata="the job's")
        claim = self.store.claim(GROUP, topics=["payments"])
        assert self.store.write_metadata(GROUP, P0, {"checked": True}, reason="ticket 17", actor="ana") == 7
        assert self.store.metadata(GROUP) == {P0: {"checked": True}, P1: None, P2: None}
        [line] = self.store.history(GROUP, events=["metadata"])
        assert (line.topic_partition, line.from_offset, line.to_offset) == (P0, 7, 7)
        assert (line.actor, line.reason, line.token) == ("ana", "ticket 17", claim.token)
        assert [claim.metadata(P0), claim.metadata(P0, cache=False)] == ["the job's", {"checked": True}]
        advance(self.store, claim, P0, 8)
        assert self.store.metadata(GROUP)[P0] == {"checked": True}

        assert self.store.write_metadata(GROUP, P1, None, reason="ticket 18") == 0
        assert self.store.write_metadata(GROUP, P0, None, reason="ticket 18") == 8
        assert self.store.offsets(GROUP)[P0].metadata is None
        plain = Metadata(serializer=str, deserializer=int)
        self.store.write_metadata(GROUP, P0, 7, reason="ticket 19", formats={"payments": plain})
        assert self.store.offsets(GROUP)[P0].metadata == "7"

    def test_an_operator_waits_for_the_job_s_transaction(self, claim: Claim) -> None:
        with ThreadPoolExecutor(1) as pool:
            with self.held(claim, P0):
                waiting = pool.submit(self.store.write_metadata, GROUP, P0, "the operator's", reason="ticket 17")
                with pytest.raises(TimeoutError):
                    waiting.result(0.2)
            waiting.result(WAIT)
        assert self.store.metadata(GROUP)[P0] == "the operator's"

    def test_metadata_that_an_operator_cant_write_changes_nothing(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 1, metadata="the job's")
        refused: list[tuple[type[Exception], str, dict[str, Any]]] = [
            (UnknownGroup, "no offsets of group 'nobody'", {"group": "nobody"}),
            (ConfigurationError, "no offset of this partition", {"tp": NEW}),
            (ConfigurationError, "needs a reason", {"reason": " "}),
            (MetadataError, "too large", {"value": "x" * MAX_BYTES}),
            (MetadataError, "as JSON", {"value": {1: 2}}),
        ]
        for error, what, wrong in refused:
            given: dict[str, Any] = {"group": GROUP, "tp": P0, "value": 1, "reason": "why", **wrong}
            with pytest.raises(error, match=what):
                self.store.write_metadata(**given)
        assert self.store.metadata(GROUP) == {P0: "the job's", P1: None, P2: None}
        assert self.store.history(GROUP, events=["metadata"]) == []

    @pytest.mark.behaviour("META-11")
    def test_a_megabyte_with_unicode_and_quotes_comes_back(self, claim: Claim) -> None:
        odd = "é\\\"'{},\tNULL ☃ 🦆 "
        text = odd * (MAX_BYTES // len(odd.encode()))
        claim = self.store.claim(GROUP, self.broker, metadata=Metadata(serializer=str, deserializer=str))
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1), P1: OffsetRange(0, 1)})
            tx.advance({P0: OffsetRange(0, 1)}, metadata=text)
            tx.write_metadata(P1, "NULL")
            tx.advance({P1: OffsetRange(0, 1)})

        assert claim.metadata(P0, cache=False) == text
        assert claim.metadata(P1, cache=False) == "NULL"
        advance(self.store, claim, P0, 2)
        assert claim.metadata(P0, cache=False) == text
