"""What travels with the offset. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from offsetstore.errors import AdvanceMismatch, ConfigurationError, MetadataError, StaleClaim, UnknownGroup
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import CommittedOffset, OffsetRange, TopicPartition
from offsetstore.protocol.metadata import KEEP, MAX_BYTES, Metadata
from offsetstore.store.claim import Claim
from offsetstore.store.identity import TaskClaim
from offsetstore.testing.broker import StaticBroker
from tests.contract.parts import GROUP, NEW, P0, P1, P2, WAIT, ContractParts, Stop, assert_untouched, held


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

    @pytest.mark.behaviour("META-1")
    @pytest.mark.parametrize("value", ["a note", {"trace": ["é", 1, 2.5, True, None]}, [], 0, False, ""])
    def test_a_string_or_json_value_is_stored_with_the_offset(self, claim: Claim, value: object) -> None:
        with self.store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            tx.advance({P0: plan[P0].remaining}, metadata=value)

        assert self.store.metadata(GROUP) == {P0: value, P1: None, P2: None}

    @pytest.mark.behaviour("META-1", "META-4")
    def test_an_advance_without_metadata_keeps_the_last_and_none_clears_it(self, claim: Claim) -> None:
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1), P1: OffsetRange(0, 1)})
            tx.advance({P0: OffsetRange(0, 1), P1: OffsetRange(0, 1)}, metadata="a note")
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(1, 2), P1: OffsetRange(1, 2)})
            tx.advance({P0: OffsetRange(1, 2)})
            tx.advance({P1: OffsetRange(1, 2)}, metadata=None)

        assert self.store.metadata(GROUP) == {P0: "a note", P1: None, P2: None}

    @pytest.mark.behaviour("META-12", "START-12")
    def test_two_groups_on_one_topic_have_their_own_offsets_and_metadata(self) -> None:
        for group, until in (("billing", 3), ("shipping", 5)):
            claim = self.store.claim(group, self.broker)
            with self.store.transaction(claim) as tx:
                plan = tx.lock({P0: OffsetRange(0, until)})
                tx.advance({P0: plan[P0].remaining}, metadata=f"of {group}")

        assert self.store.metadata("billing")[P0] == "of billing"
        assert self.store.metadata("shipping")[P0] == "of shipping"
        assert [self.store.offsets(group)[P0].next_offset for group in ("billing", "shipping")] == [3, 5]

    @pytest.mark.behaviour("META-3")
    def test_a_cached_read_keeps_the_value_at_the_claim_and_an_uncached_one_follows(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 1, metadata="first")
        second = self.store.claim(GROUP, self.broker)
        advance(self.store, second, P0, 2, metadata="second")

        assert [second.metadata(P0), second.metadata(P0, cache=False)] == ["first", "second"]
        with self.store.transaction(second) as tx:
            tx.lock({P0: OffsetRange(2, 3)})
            tx.advance(tx.ranges, metadata="third")
            assert [tx.metadata(P0), tx.metadata(P0, cache=False), tx.metadata(P1, cache=False)] == [
                "first",
                "third",
                None,
            ]
        assert second.metadata(P0, cache=False) == "third"
        assert self.store.claim(GROUP, self.broker).metadata(P0) == "third"

    @pytest.mark.behaviour("META-3")
    def test_a_claim_may_read_uncached_by_default(self) -> None:
        claim = self.store.claim(GROUP, self.broker, metadata=Metadata(cache=False))
        advance(self.store, claim, P0, 1, metadata="now")

        assert [claim.metadata(P0), claim.metadata(P0, cache=True)] == ["now", None]
        assert claim.metadata(TopicPartition("payments", 99)) is None  # without a row

    @pytest.mark.behaviour("META-4")
    def test_metadata_can_be_written_again_at_the_same_offset(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 3, metadata="with the offset")
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(3, 3)})
            tx.write_metadata(P0, {"again": 3})

        assert self.store.metadata(GROUP)[P0] == {"again": 3}
        assert self.store.offsets(GROUP)[P0].next_offset == 3
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
        with self.store.transaction(claim) as tx:
            locked = tx.lock({P0: OffsetRange(0, 3), P1: OffsetRange(0, 3)})
            tx.advance({tp: decision.remaining for tp, decision in locked.items()}, metadata="of 3")
        with self.store.transaction(claim) as tx:
            locked = tx.lock({P0: OffsetRange(0, 3)})
            tx.finish({P0: locked[P0].remaining}, {P0: '"of a batch"'})
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

    @pytest.mark.behaviour("META-5")
    def test_metadata_is_stored_for_the_claims_own_topics(self, claim: Claim) -> None:
        with pytest.raises(ConfigurationError, match="a topic that the claim does not have"):
            claim.store_metadata(TopicPartition("refunds", 0), "elsewhere")

    @pytest.mark.behaviour("META-7")
    def test_a_stale_job_reads_no_metadata_of_others(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 1, metadata="ours")
        stale = self.store.claim(GROUP, self.broker)
        second = self.store.claim(GROUP, self.broker)
        advance(self.store, second, P0, 2, metadata="another job's")

        assert stale.metadata(P0) == "ours"  # it does not know yet
        with pytest.raises(StaleClaim):
            stale.metadata(P0, cache=False)
        with pytest.raises(StaleClaim):
            stale.metadata(P0)
        with pytest.raises(StaleClaim):
            claim.metadata(TopicPartition("payments", 99), cache=False)  # without a row
        assert second.metadata(P0) == "ours"

    @pytest.mark.behaviour("META-7")
    def test_a_job_whose_transaction_was_refused_knows_that_it_is_stale(self, claim: Claim) -> None:
        second = self.store.claim(GROUP, self.broker)
        with pytest.raises(StaleClaim):
            advance(self.store, claim, P0, 1)

        assert [claim.is_lost, second.is_lost] == [True, False]
        with pytest.raises(StaleClaim):
            claim.metadata(P0)

    @pytest.mark.behaviour("META-2")
    def test_a_reset_clears_the_notes_of_the_offsets_that_it_moves(self, claim: Claim) -> None:
        for tp in (P0, P1, P2):
            advance(self.store, claim, tp, 5, metadata={"until": 5})
        self.store.reset(GROUP, {P0: 2, P1: 5}, reason="for the test")

        second = self.store.claim(GROUP, self.broker)
        for cache in (True, False):
            assert [second.metadata(tp, cache=cache) for tp in (P0, P1, P2)] == [None, {"until": 5}, {"until": 5}]

    @pytest.mark.behaviour("META-2")
    def test_an_offset_adopted_from_kafka_has_no_note(self, claim: Claim) -> None:
        for tp in (P0, P1):
            advance(self.store, claim, tp, 5, metadata={"until": 5})
        self.broker.commit(GROUP, {P0: CommittedOffset(9)})

        second = self.store.claim(GROUP, self.broker, mirror_every=None)
        assert second.starting is not None
        assert second.starting.starts[P0].offset == 9
        for cache in (True, False):
            assert [second.metadata(tp, cache=cache) for tp in (P0, P1)] == [None, {"until": 5}]

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
        assert_untouched(self.store, self.read)

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

        assert self.store.find_metadata(GROUP, "payments", 0) == {"trace": "7f3a"}
        assert self.store.find_metadata(GROUP, "payments", 9) is None
        assert self.store.find_metadata(GROUP, "payments") == {P0: {"trace": "7f3a"}, P1: None, P2: None}
        assert self.store.find_metadata("unknown", "payments") == {}

    # -- by an operator

    @pytest.mark.behaviour("META-4")
    def test_an_operator_rewrites_and_clears_metadata_and_the_history_has_it(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 7, metadata="the job's")
        assert self.store.write_metadata(GROUP, P0, {"checked": True}, reason="ticket 17", actor="ana") == 7
        assert self.store.metadata(GROUP) == {P0: {"checked": True}, P1: None, P2: None}
        [line] = self.store.history(GROUP, events=["metadata"])
        assert (line.topic_partition, line.from_offset, line.to_offset) == (P0, 7, 7)
        assert (line.actor, line.reason, line.token) == ("ana", "ticket 17", claim.token)

        assert self.store.write_metadata(GROUP, P1, None, reason="ticket 18") == 0
        assert self.store.write_metadata(GROUP, P0, None, reason="ticket 18") == 7
        assert self.store.offsets(GROUP)[P0].metadata is None
        plain = Metadata(serializer=str, deserializer=int)
        self.store.write_metadata(GROUP, P0, 7, reason="ticket 19", formats={"payments": plain})
        assert self.store.offsets(GROUP)[P0].metadata == "7"

    @pytest.mark.behaviour("META-3", "META-4")
    def test_a_running_job_keeps_what_an_operator_has_written(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 1, metadata="the job's")
        claim = self.store.claim(GROUP, topics=["payments"])
        self.store.write_metadata(GROUP, P0, "the operator's", reason="ticket 17")
        assert claim.metadata(P0) == "the job's"
        assert claim.metadata(P0, cache=False) == "the operator's"
        advance(self.store, claim, P0, 2)
        assert self.store.metadata(GROUP)[P0] == "the operator's"
        advance(self.store, claim, P0, 3, metadata="the job's next")
        assert self.store.metadata(GROUP)[P0] == "the job's next"

    def test_an_operator_waits_for_the_job_s_transaction(self, claim: Claim) -> None:
        with ThreadPoolExecutor(1) as pool:
            with held(self.store, claim, P0):
                waiting = pool.submit(self.store.write_metadata, GROUP, P0, "the operator's", reason="ticket 17")
                with pytest.raises(TimeoutError):
                    waiting.result(0.2)
            waiting.result(WAIT)
        assert self.store.metadata(GROUP)[P0] == "the operator's"

    @pytest.mark.parametrize(
        ("group", "tp", "value", "reason", "error", "what"),
        [
            pytest.param("nobody", P0, 1, "why", UnknownGroup, "no offsets of group 'nobody'", id="group"),
            pytest.param(GROUP, NEW, 1, "why", ConfigurationError, "no offset of this partition", id="partition"),
            pytest.param(GROUP, P0, 1, " ", ConfigurationError, "needs a reason", id="reason"),
            pytest.param(GROUP, P0, "x" * MAX_BYTES, "why", MetadataError, "too large", id="too long"),
            pytest.param(GROUP, P0, {1: 2}, "why", MetadataError, "as JSON", id="not JSON"),
        ],
    )
    def test_metadata_that_an_operator_cant_write_changes_nothing(
        self,
        claim: Claim,
        *,
        group: str,
        tp: TopicPartition,
        value: object,
        reason: str,
        error: type[Exception],
        what: str,
    ) -> None:
        advance(self.store, claim, P0, 1, metadata="the job's")
        with pytest.raises(error, match=what):
            self.store.write_metadata(group, tp, value, reason=reason)
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


class PeopleMetadataContract(MetadataContract):
    """With what only people ask, which a store in memory does not have."""

    @pytest.mark.behaviour("META-7")
    def test_a_job_of_a_renamed_group_reads_none_as_no_note(self, claim: Claim) -> None:
        advance(self.store, claim, P0, 1, metadata="moves along")
        self.store.rename_group(GROUP, "renamed", reason="for the test")

        with pytest.raises(StaleClaim):
            claim.metadata(P0, cache=False)
        assert self.store.find_metadata("renamed", "payments", 0) == "moves along"
