"""What travels with the offset. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from offsetstore.errors import AdvanceMismatch, ConfigurationError, LockFirst, MetadataError, StaleClaim, UnknownGroup
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import CommittedOffset, OffsetRange, TopicPartition
from offsetstore.protocol.metadata import KEEP, MAX_BYTES, Metadata
from offsetstore.store.claim import Claim
from offsetstore.store.identity import TaskClaim
from offsetstore.testing.broker import StaticBroker
from tests.contract.parts import GROUP, NEW, P0, P1, P2, WAIT, ContractParts, Read, Stop, Write, assert_untouched, held


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
    def test_a_string_or_json_value_is_stored_with_the_offset(
        self, store: OffsetStore, claim: Claim, value: object
    ) -> None:
        with store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            tx.advance({P0: plan[P0].remaining}, metadata=value)

        assert store.metadata(GROUP) == {P0: value, P1: None, P2: None}

    @pytest.mark.behaviour("META-1")
    def test_metadata_is_rolled_back_with_the_results(self, store: OffsetStore, claim: Claim) -> None:
        with pytest.raises(Stop), store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            tx.advance({P0: plan[P0].remaining}, metadata="never seen")
            raise Stop

        assert store.metadata(GROUP)[P0] is None

    @pytest.mark.behaviour("META-1", "META-4")
    def test_an_advance_without_metadata_keeps_the_last_and_none_clears_it(
        self, store: OffsetStore, claim: Claim
    ) -> None:
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1), P1: OffsetRange(0, 1)})
            tx.advance({P0: OffsetRange(0, 1), P1: OffsetRange(0, 1)}, metadata="a note")
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(1, 2), P1: OffsetRange(1, 2)})
            tx.advance({P0: OffsetRange(1, 2)})
            tx.advance({P1: OffsetRange(1, 2)}, metadata=None)

        assert store.metadata(GROUP) == {P0: "a note", P1: None, P2: None}

    @pytest.mark.behaviour("META-1")
    def test_metadata_that_is_no_json_value_writes_nothing(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        with pytest.raises(MetadataError), store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            write(tx, [0, 1, 2])
            tx.advance({P0: plan[P0].remaining}, metadata=object())

        assert_untouched(store, read)

    @pytest.mark.behaviour("META-2")
    def test_the_next_owner_reads_the_metadata_after_a_takeover(
        self, store: OffsetStore, broker: StaticBroker, claim: Claim
    ) -> None:
        with store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            tx.advance({P0: plan[P0].remaining}, metadata={"run": 1})

        second = store.claim(GROUP, broker)

        assert store.metadata(GROUP)[P0] == {"run": 1}
        with store.transaction(second) as tx:
            plan = tx.lock({P0: OffsetRange(3, 4)})
            tx.advance({P0: plan[P0].remaining})
        assert store.metadata(GROUP)[P0] == {"run": 1}

    @pytest.mark.behaviour("META-12", "START-12")
    def test_two_groups_on_one_topic_have_their_own_offsets_and_metadata(
        self, store: OffsetStore, broker: StaticBroker
    ) -> None:
        for group, until in (("billing", 3), ("shipping", 5)):
            claim = store.claim(group, broker)
            with store.transaction(claim) as tx:
                plan = tx.lock({P0: OffsetRange(0, until)})
                tx.advance({P0: plan[P0].remaining}, metadata=f"of {group}")

        assert store.metadata("billing")[P0] == "of billing"
        assert store.metadata("shipping")[P0] == "of shipping"
        assert [store.offsets(group)[P0].next_offset for group in ("billing", "shipping")] == [3, 5]

    @pytest.mark.behaviour("META-3")
    def test_a_cached_read_keeps_the_value_at_the_claim_and_an_uncached_one_follows(
        self, store: OffsetStore, broker: StaticBroker, claim: Claim
    ) -> None:
        advance(store, claim, P0, 1, metadata="first")
        second = store.claim(GROUP, broker)
        advance(store, second, P0, 2, metadata="second")

        assert [second.metadata(P0), second.metadata(P0, cache=False)] == ["first", "second"]
        with store.transaction(second) as tx:
            tx.lock({P0: OffsetRange(2, 3)})
            tx.advance(tx.ranges, metadata="third")
            assert [tx.metadata(P0), tx.metadata(P0, cache=False), tx.metadata(P1, cache=False)] == [
                "first",
                "third",
                None,
            ]
        assert second.metadata(P0, cache=False) == "third"
        assert store.claim(GROUP, broker).metadata(P0) == "third"

    @pytest.mark.behaviour("META-3")
    def test_a_claim_may_read_uncached_by_default(self, store: OffsetStore, broker: StaticBroker) -> None:
        claim = store.claim(GROUP, broker, metadata=Metadata(cache=False))
        advance(store, claim, P0, 1, metadata="now")

        assert [claim.metadata(P0), claim.metadata(P0, cache=True)] == ["now", None]
        assert claim.metadata(TopicPartition("payments", 99)) is None  # without a row

    @pytest.mark.behaviour("META-4")
    def test_metadata_can_be_written_again_at_the_same_offset(self, store: OffsetStore, claim: Claim) -> None:
        advance(store, claim, P0, 3, metadata="with the offset")
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(3, 3)})
            tx.write_metadata(P0, {"again": 3})

        assert store.metadata(GROUP)[P0] == {"again": 3}
        assert store.offsets(GROUP)[P0].next_offset == 3
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(3, 4)})
            tx.write_metadata(P0, "before an advance that keeps it")
            tx.advance(tx.ranges)
        assert store.metadata(GROUP)[P0] == "before an advance that keeps it"

    @pytest.mark.behaviour("META-4")
    def test_a_replay_does_not_replace_the_metadata_of_a_later_offset(self, store: OffsetStore, claim: Claim) -> None:
        advance(store, claim, P0, 9, metadata="of 9")
        for replayed in (OffsetRange(0, 3), OffsetRange(3, 3), OffsetRange(0, 9)):
            with pytest.raises(AdvanceMismatch, match="in the results already"), store.transaction(claim) as tx:
                tx.lock({P0: replayed})
                tx.write_metadata(P0, "of a replay")

        claim.store_metadata(P0, "for the next advance")
        with store.transaction(claim) as tx:
            locked = tx.lock({P0: OffsetRange(0, 3), P1: OffsetRange(0, 3)})
            tx.advance({tp: decision.remaining for tp, decision in locked.items()}, metadata="of 3")
        with store.transaction(claim) as tx:
            locked = tx.lock({P0: OffsetRange(0, 3)})
            tx.finish({P0: locked[P0].remaining}, {P0: '"of a batch"'})
        assert store.metadata(GROUP) == {P0: "of 9", P1: "of 3", P2: None}
        advance(store, claim, P0, 10)
        assert store.metadata(GROUP)[P0] == "for the next advance"

    @pytest.mark.behaviour("META-4")
    def test_metadata_is_written_only_to_what_is_locked(self, store: OffsetStore, claim: Claim) -> None:
        with pytest.raises(LockFirst), store.transaction(claim) as tx:
            tx.write_metadata(P0, "early")
        with pytest.raises(AdvanceMismatch, match="was not locked"), store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 0)})
            tx.write_metadata(P0, "rolled back")
            tx.write_metadata(P1, "elsewhere")

        assert store.metadata(GROUP) == {P0: None, P1: None, P2: None}

    @pytest.mark.behaviour("META-5")
    def test_stored_metadata_is_for_the_next_advance_alone(self, store: OffsetStore, claim: Claim) -> None:
        value = ["as it was"]
        claim.store_metadata(P0, value)
        value.append("changed later")
        advance(store, claim, P1, 1)
        assert store.metadata(GROUP) == {P0: None, P1: None, P2: None}

        advance(store, claim, P0, 1)
        assert store.metadata(GROUP)[P0] == ["as it was"]

        advance(store, claim, P0, 2, metadata="explicit")
        advance(store, claim, P0, 3)
        assert store.metadata(GROUP)[P0] == "explicit"

    @pytest.mark.behaviour("META-5")
    def test_explicit_metadata_wins_and_uses_up_what_was_stored(self, store: OffsetStore, claim: Claim) -> None:
        claim.store_metadata(None, "stored")
        advance(store, claim, P0, 1, metadata="explicit")
        advance(store, claim, P0, 2)
        advance(store, claim, P1, 1)

        assert store.metadata(GROUP) == {P0: "explicit", P1: "stored", P2: None}

    @pytest.mark.behaviour("META-5")
    def test_stored_metadata_is_kept_until_a_commit(self, store: OffsetStore, claim: Claim) -> None:
        claim.store_metadata(P0, "kept")
        for _ in range(2):
            with pytest.raises(Stop), store.transaction(claim) as tx:
                tx.lock({P0: OffsetRange(0, 1)})
                tx.advance(tx.ranges)
                raise Stop
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1)})
            tx.advance(tx.ranges)
            claim.store_metadata(P0, "stored meanwhile")

        assert store.metadata(GROUP)[P0] == "kept"
        advance(store, claim, P0, 2)
        assert store.metadata(GROUP)[P0] == "stored meanwhile"

    @pytest.mark.behaviour("META-4", "META-5")
    def test_what_a_transaction_writes_wins_over_what_was_stored(self, store: OffsetStore, claim: Claim) -> None:
        claim.store_metadata(None, "stored")
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1), P1: OffsetRange(0, 1), P2: OffsetRange(0, 1)})
            for tp in (P0, P1):
                tx.write_metadata(tp, "written")
            tx.advance({P0: OffsetRange(0, 1)}, metadata="explicit")
            tx.finish({P1: OffsetRange(0, 1), P2: OffsetRange(0, 1)}, {P1: '"of the batch"'})
        assert store.metadata(GROUP) == {P0: "explicit", P1: "written", P2: "stored"}

        for tp in (P0, P1, P2):
            advance(store, claim, tp, 2)
        assert store.metadata(GROUP) == {P0: "explicit", P1: "written", P2: "stored"}

    @pytest.mark.behaviour("META-5")
    def test_metadata_is_stored_for_the_claims_own_topics(self, claim: Claim) -> None:
        with pytest.raises(ConfigurationError, match="a topic that the claim does not have"):
            claim.store_metadata(TopicPartition("refunds", 0), "elsewhere")

    @pytest.mark.behaviour("META-7")
    def test_a_stale_job_reads_no_metadata_of_others(
        self, store: OffsetStore, broker: StaticBroker, claim: Claim
    ) -> None:
        advance(store, claim, P0, 1, metadata="ours")
        stale = store.claim(GROUP, broker)
        second = store.claim(GROUP, broker)
        advance(store, second, P0, 2, metadata="another job's")

        assert stale.metadata(P0) == "ours"  # it does not know yet
        with pytest.raises(StaleClaim):
            stale.metadata(P0, cache=False)
        with pytest.raises(StaleClaim):
            stale.metadata(P0)
        with pytest.raises(StaleClaim):
            claim.metadata(TopicPartition("payments", 99), cache=False)  # without a row
        assert second.metadata(P0) == "ours"

    @pytest.mark.behaviour("META-7")
    def test_a_job_whose_transaction_was_refused_knows_that_it_is_stale(
        self, store: OffsetStore, broker: StaticBroker, claim: Claim
    ) -> None:
        second = store.claim(GROUP, broker)
        with pytest.raises(StaleClaim):
            advance(store, claim, P0, 1)

        assert [claim.is_lost, second.is_lost] == [True, False]
        with pytest.raises(StaleClaim):
            claim.metadata(P0)

    @pytest.mark.behaviour("META-2")
    def test_a_reset_clears_the_notes_of_the_offsets_that_it_moves(
        self, store: OffsetStore, broker: StaticBroker, claim: Claim
    ) -> None:
        for tp in (P0, P1, P2):
            advance(store, claim, tp, 5, metadata={"until": 5})
        store.reset(GROUP, {P0: 2, P1: 5}, reason="for the test")

        second = store.claim(GROUP, broker)
        for cache in (True, False):
            assert [second.metadata(tp, cache=cache) for tp in (P0, P1, P2)] == [None, {"until": 5}, {"until": 5}]

    @pytest.mark.behaviour("META-2")
    def test_an_offset_adopted_from_kafka_has_no_note(
        self, store: OffsetStore, broker: StaticBroker, claim: Claim
    ) -> None:
        for tp in (P0, P1):
            advance(store, claim, tp, 5, metadata={"until": 5})
        broker.commit(GROUP, {P0: CommittedOffset(9)})

        second = store.claim(GROUP, broker, mirror_every=None)
        assert second.starting is not None
        assert second.starting.starts[P0].offset == 9
        for cache in (True, False):
            assert [second.metadata(tp, cache=cache) for tp in (P0, P1)] == [None, {"until": 5}]

    @pytest.mark.behaviour("META-3")
    def test_a_tasks_copy_refuses_cached_reads_of_partitions_that_it_lacks(
        self, store: OffsetStore, broker: StaticBroker, claim: Claim
    ) -> None:
        advance(store, claim, P0, 1, metadata="a note")
        copy = TaskClaim.of(store.claim(GROUP, broker), [P0, P1])

        with store.transaction(copy) as tx:
            tx.lock({})
            assert [tx.metadata(tp) for tp in (P0, P1)] == ["a note", None]
            with pytest.raises(ConfigurationError, match="batch's partitions only"):
                tx.metadata(P2)
            assert tx.metadata(P2, cache=False) is None

    @pytest.mark.behaviour("META-8")
    def test_each_topic_has_its_own_serializer(self, store: OffsetStore) -> None:
        orders = TopicPartition("orders", 0)
        broker = StaticBroker.with_topics({"payments": 1, "orders": 1}, end=100)
        formats = {"orders": Metadata(serializer=str, deserializer=int)}
        claim = store.claim(GROUP, broker, metadata=formats)
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1), orders: OffsetRange(0, 1)})
            tx.advance(tx.ranges, metadata=7)

        assert {tp: row.metadata for tp, row in store.offsets(GROUP).items()} == {orders: "7", P0: "7"}
        assert claim.metadata(orders, cache=False) == 7
        assert store.metadata(GROUP, formats) == {orders: 7, P0: 7}
        with pytest.raises(ConfigurationError, match="metadata names topics"):
            store.claim(GROUP, broker, metadata={"order": Metadata()})

    @pytest.mark.behaviour("META-8")
    def test_a_serializer_that_fails_writes_nothing(
        self, store: OffsetStore, broker: StaticBroker, write: Write, read: Read
    ) -> None:
        claim = store.claim(GROUP, broker, metadata=Metadata(serializer=fail))
        with pytest.raises(MetadataError, match="serializer failed") as caught, store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            write(tx, [0, 1, 2])
            tx.advance(tx.ranges, metadata="any")

        assert isinstance(caught.value.__cause__, Stop)
        assert_untouched(store, read)

    @pytest.mark.behaviour("META-8")
    def test_a_deserializer_that_fails_blocks_no_claim(
        self, store: OffsetStore, broker: StaticBroker, claim: Claim
    ) -> None:
        advance(store, claim, P0, 1, metadata="a note")
        second = store.claim(GROUP, broker, metadata=Metadata(deserializer=fail))

        for cache in (True, False):
            with pytest.raises(MetadataError, match="deserializer failed"):
                second.metadata(P0, cache=cache)
        advance(store, second, P0, 2)
        assert store.metadata(GROUP)[P0] == "a note"

    @pytest.mark.behaviour("META-9")
    def test_metadata_is_found_without_a_claim(self, store: OffsetStore, claim: Claim) -> None:
        advance(store, claim, P0, 1, metadata={"trace": "7f3a"})

        assert store.find_metadata(GROUP, "payments", 0) == {"trace": "7f3a"}
        assert store.find_metadata(GROUP, "payments", 9) is None
        assert store.find_metadata(GROUP, "payments") == {P0: {"trace": "7f3a"}, P1: None, P2: None}
        assert store.find_metadata("unknown", "payments") == {}

    # -- by an operator

    @pytest.mark.behaviour("META-4")
    def test_an_operator_rewrites_and_clears_metadata_and_the_history_has_it(
        self, store: OffsetStore, claim: Claim
    ) -> None:
        advance(store, claim, P0, 7, metadata="the job's")
        assert store.write_metadata(GROUP, P0, {"checked": True}, reason="ticket 17", actor="ana") == 7
        assert store.metadata(GROUP) == {P0: {"checked": True}, P1: None, P2: None}
        [line] = store.history(GROUP, events=["metadata"])
        assert (line.topic_partition, line.from_offset, line.to_offset) == (P0, 7, 7)
        assert (line.actor, line.reason, line.token) == ("ana", "ticket 17", claim.token)

        assert store.write_metadata(GROUP, P1, None, reason="ticket 18") == 0
        assert store.write_metadata(GROUP, P0, None, reason="ticket 18") == 7
        assert store.offsets(GROUP)[P0].metadata is None
        plain = Metadata(serializer=str, deserializer=int)
        store.write_metadata(GROUP, P0, 7, reason="ticket 19", formats={"payments": plain})
        assert store.offsets(GROUP)[P0].metadata == "7"

    @pytest.mark.behaviour("META-3", "META-4")
    def test_a_running_job_keeps_what_an_operator_has_written(self, store: OffsetStore, claim: Claim) -> None:
        advance(store, claim, P0, 1, metadata="the job's")
        claim = store.claim(GROUP, topics=["payments"])
        store.write_metadata(GROUP, P0, "the operator's", reason="ticket 17")
        assert claim.metadata(P0) == "the job's"
        assert claim.metadata(P0, cache=False) == "the operator's"
        advance(store, claim, P0, 2)
        assert store.metadata(GROUP)[P0] == "the operator's"
        advance(store, claim, P0, 3, metadata="the job's next")
        assert store.metadata(GROUP)[P0] == "the job's next"

    def test_an_operator_waits_for_the_job_s_transaction(self, store: OffsetStore, claim: Claim) -> None:
        with ThreadPoolExecutor(1) as pool:
            with held(store, claim, P0):
                waiting = pool.submit(store.write_metadata, GROUP, P0, "the operator's", reason="ticket 17")
                with pytest.raises(TimeoutError):
                    waiting.result(0.2)
            waiting.result(WAIT)
        assert store.metadata(GROUP)[P0] == "the operator's"

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
        store: OffsetStore,
        claim: Claim,
        *,
        group: str,
        tp: TopicPartition,
        value: object,
        reason: str,
        error: type[Exception],
        what: str,
    ) -> None:
        advance(store, claim, P0, 1, metadata="the job's")
        with pytest.raises(error, match=what):
            store.write_metadata(group, tp, value, reason=reason)
        assert store.metadata(GROUP) == {P0: "the job's", P1: None, P2: None}
        assert store.history(GROUP, events=["metadata"]) == []

    @pytest.mark.behaviour("META-11")
    def test_a_megabyte_with_unicode_and_quotes_comes_back(
        self, store: OffsetStore, broker: StaticBroker, claim: Claim
    ) -> None:
        odd = "é\\\"'{},\tNULL ☃ 🦆 "
        text = odd * (MAX_BYTES // len(odd.encode()))
        claim = store.claim(GROUP, broker, metadata=Metadata(serializer=str, deserializer=str))
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1), P1: OffsetRange(0, 1)})
            tx.advance({P0: OffsetRange(0, 1)}, metadata=text)
            tx.write_metadata(P1, "NULL")
            tx.advance({P1: OffsetRange(0, 1)})

        assert claim.metadata(P0, cache=False) == text
        assert claim.metadata(P1, cache=False) == "NULL"
        advance(store, claim, P0, 2)
        assert claim.metadata(P0, cache=False) == text


class PeopleMetadataContract(MetadataContract):
    """With what only people ask, which a store in memory does not have."""

    @pytest.mark.behaviour("META-7")
    def test_a_job_of_a_renamed_group_reads_none_as_no_note(self, store: OffsetStore, claim: Claim) -> None:
        advance(store, claim, P0, 1, metadata="moves along")
        store.rename_group(GROUP, "renamed", reason="for the test")

        with pytest.raises(StaleClaim):
            claim.metadata(P0, cache=False)
        assert store.find_metadata("renamed", "payments", 0) == "moves along"
