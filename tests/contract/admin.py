"""An operator's decisions stick, and earlier jobs are fenced. See `tests.contract.suite`."""
# ruff: noqa: ARG002 - these are tests: the name is the docstring, fixtures and numbers are the point

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from offsetstore.errors import (
    ConfigurationError,
    ForeignStore,
    GroupBusy,
    GroupRenamed,
    KafkaGroupContested,
    LettersOpen,
    NoStartingOffset,
    PlanChanged,
    StaleClaim,
    StoreMoved,
    StoreRewound,
    UnknownGroup,
)
from offsetstore.offset_store import OffsetStore, resolve_starting_offsets
from offsetstore.offsets import CommittedOffset, OffsetRange, TopicPartition
from offsetstore.operations.home import set_identity
from offsetstore.operations.people import people
from offsetstore.operations.stored_letters import LetterFilter
from offsetstore.protocol.letters import LetterError, LetterKey, NewLetter, Payload
from offsetstore.protocol.starting import Reason, StartPolicy
from offsetstore.protocol.store_facts import Stamp, StoreIdentity, digest
from offsetstore.store.claim import Claim
from offsetstore.store.identity import replaced_since
from offsetstore.testing.broker import StaticBroker
from tests.contract.parts import GROUP, NEW, P0, P1, P2, ContractParts, starts

OTHER = "invoicing"
NEW_NAME = "billing-v2"
REASON = "ticket 17"
REFUNDS = TopicPartition("refunds", 0)


REFUSED: Final[dict[str, tuple[str, Callable[[OffsetStore], object]]]] = {
    "reset of an unknown partition": (
        "no offset of this partition",
        lambda store: store.reset(GROUP, {NEW: 1}, reason=REASON),
    ),
    "reset of an unknown group": ("no offsets of group", lambda store: store.reset("nobody", {P0: 1}, reason=REASON)),
    "reset of no group": ("not a consumer group", lambda store: store.reset("", {P0: 1}, reason=REASON)),
    "reset of no partitions": ("names no partitions", lambda store: store.reset(GROUP, {}, reason=REASON)),
    "reset to a negative offset": ("must be from 0 to", lambda store: store.reset(GROUP, {P0: -1}, reason=REASON)),
    "reset beyond 64 bits": ("must be from 0 to", lambda store: store.reset(GROUP, {P0: 2**63}, reason=REASON)),
    "a name that is taken": ("'taken' already", lambda store: store.rename_group(GROUP, "taken", reason=REASON)),
    "the same name": ("that name already", lambda store: store.rename_group(GROUP, GROUP, reason=REASON)),
    "a name for nobody": ("no offsets of group", lambda store: store.rename_group("nobody", OTHER, reason=REASON)),
    "no name": ("not a consumer group", lambda store: store.rename_group(GROUP, "", reason=REASON)),
    "a long name": (
        "is too long; found 256 bytes",
        lambda store: store.rename_group(GROUP, "é" * 128, reason=REASON),
    ),
    "a long name of a claim": ("is too long", lambda store: store.claim("é" * 128, topics=["t"])),
    "NUL in a topic": ("can't be stored", lambda store: store.claim(OTHER, topics=["a\0"])),
    "NUL in a name": (
        "can't be stored; found a",
        lambda store: store.rename_group(GROUP, "a\0b", reason=REASON),
    ),
    "NUL in a copy": ("can't be stored", lambda store: store.copy_group(GROUP, "a\0", reason=REASON)),
    "pause of an unknown group": ("no group 'nobody'", lambda store: store.pause("nobody", reason=REASON)),
    "pause until the past": (
        "has passed",
        lambda store: store.pause(GROUP, until=datetime(2020, 1, 1, tzinfo=UTC), reason=REASON),
    ),
    "pause until the last day": (
        "too far away",
        lambda store: store.pause(GROUP, until=datetime.max.replace(tzinfo=UTC), reason=REASON),
    ),
    "pause without a zone": (
        "without a zone",
        lambda store: store.pause(GROUP, until=datetime(2120, 1, 1), reason=REASON),  # noqa: DTZ001
    ),
}
TEXTS: Final[dict[str, dict[str, Any]]] = {
    "needs a reason": {"reason": "  "},
    "reason can't be stored; found a NUL, character 4 of 7": {"reason": "in \0 it"},
    "reason can't be stored; found a lone surrogate, character 1": {"reason": "\udcff"},
    "reason is too long; found 1,001": {"reason": "x" * 1001},
    "reason must be a text": {"reason": None},
    "actor can't be stored; found a NUL, character 4": {"actor": "ana\0"},
    "actor is too long": {"actor": "x" * 2001},
}


def dead(tp: TopicPartition, offset: int) -> NewLetter:
    error, record = LetterError("ValueError", "not a number"), Payload(b"key", b"value", None, None, None)
    return NewLetter(tp, offset, "raised", error, 1, None, record)


class AdminContract(ContractParts):
    """Resets, copies, renames and deletes."""

    @pytest.fixture
    def advanced(self) -> Claim:
        """A claim with 40, 30 and 0 stored, which copies nothing to Kafka."""
        claim = self.again()
        self.give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30)})
        return claim

    def copied(self, claim: Claim, offset: int) -> CommittedOffset:
        """The offset as the claim's mirror copies it to Kafka."""
        return CommittedOffset(offset, Stamp(self.store.database.store_id(), claim.token.epoch, digest(GROUP)).text())

    def commit(self, committed: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Kafka has these offsets of the group, and no other."""
        self.broker.current = replace(self.broker.current, committed=committed)

    def assert_fenced(self, claim: Claim, *ranges: dict[TopicPartition, OffsetRange]) -> None:
        """A job that still runs writes nothing, and brings nothing back."""
        before = self.read(), self.stored()
        for one in ranges:
            with pytest.raises(StaleClaim):
                self.give(claim, one)
        assert (self.read(), self.stored()) == before

    # -- reset

    def test_a_reset_sets_the_partitions_named_and_says_what_it_did(self, advanced: Claim) -> None:
        done = self.store.reset(GROUP, {P1: 99, P0: 10}, reason=REASON, actor="ana")

        rows = self.store.offsets(GROUP)
        assert {tp: (row.next_offset, row.pinned) for tp, row in rows.items()} == {
            P0: (10, True),
            P1: (99, True),
            P2: (0, False),
        }
        assert {row.token for row in rows.values()} == {done.history[0].token}
        moved = [(one.topic_partition, one.from_offset, one.to_offset) for one in done.moves]
        assert moved == [(P0, 40, 10), (P1, 30, 99)]
        assert done.fenced is not None
        assert done.fenced.token == advanced.token
        history = self.store.history(GROUP)
        assert [replace(line, at=None, db_role=None) for line in history[-2:]] == list(done.history)
        assert {(line.event, line.actor, line.reason) for line in history[-2:]} == {("reset", "ana", REASON)}
        self.assert_fenced(advanced, {P0: OffsetRange(10, 20)}, {P2: OffsetRange(0, 4)}, {NEW: OffsetRange(0, 5)})

    @pytest.mark.behaviour("START-21", "OPS-13")
    def test_a_reset_backwards_sticks_through_restarts_whatever_kafka_says(self, advanced: Claim) -> None:
        self.commit({P0: CommittedOffset(40), P1: CommittedOffset(90)})
        self.store.reset(GROUP, {P0: 10, P1: 0}, reason=REASON)
        before = {tp: (row.next_offset, row.updated_at) for tp, row in self.store.offsets(GROUP).items()}

        for prefer in ("larger", "stored", "agree"):
            again = self.again(policy=StartPolicy(prefer=prefer))
            assert starts(again) == {P0: 10, P1: 0, P2: 0}
            assert again.starting is not None
            assert again.starting.starts[P0].reason is Reason.PINNED
            again.close()
        rows = self.store.offsets(GROUP)
        assert {tp: (row.next_offset, row.updated_at) for tp, row in rows.items()} == before, "no progress was made"

    def test_a_reset_ends_a_transaction_that_does_not_end(self, advanced: Claim) -> None:
        with self.held(advanced, P1):
            self.store.reset(GROUP, {P0: 10}, reason=REASON, takeover_timeout=0.1)
        assert self.stored()[P0] == 10

    @pytest.mark.behaviour("OPS-10")
    def test_a_reset_that_is_to_refuse_neither_waits_for_a_live_job_nor_ends_its_transaction(
        self, advanced: Claim
    ) -> None:
        before = self.store.history(GROUP)
        with self.store.transaction(advanced) as tx:
            tx.lock({P1: OffsetRange(30, 31), NEW: OffsetRange(0, 5)})  # NEW is unknown: the group's row is held
            with pytest.raises(GroupBusy, match="is live; nothing was written"):
                self.store.reset(GROUP, {P0: 10}, reason=REASON, takeover="refuse", takeover_timeout=0)
            tx.advance(tx.ranges)

        assert self.store.history(GROUP, events=["reset"]) == []
        assert self.store.history(GROUP)[: len(before)] == before
        self.give(advanced, {P0: OffsetRange(40, 41)})
        advanced.close()
        done = self.store.reset(GROUP, {P0: 10}, reason=REASON, takeover="refuse")
        assert (done.executed, done.met_live_owner, done.fenced) == (True, False, None)

    def test_a_dry_run_says_what_it_would_do_and_neither_waits_nor_writes(self, advanced: Claim) -> None:
        before = self.store.history(GROUP)
        with self.held(advanced, P1):
            found = self.store.reset(
                GROUP, "earliest", partitions={P0.topic: None}, broker=self.broker, reason=REASON, dry_run=True
            )

        assert [(one.from_offset, one.to_offset) for one in found.moves] == [(40, 0), (30, 0), (0, 0)]
        assert (found.executed, found.met_live_owner, found.fenced) == (False, True, None)
        assert self.store.history(GROUP) == before
        self.give(advanced, {P0: OffsetRange(40, 41)})

    @pytest.mark.behaviour("OPS-1", "OPS-2", "OPS-3")
    def test_a_decision_that_cant_be_right_changes_nothing_and_fences_nobody(self, advanced: Claim) -> None:
        taken = self.store.claim("taken", self.broker, mirror_every=None)
        before = self.store.history(GROUP)
        for name, (what, decide) in REFUSED.items():
            with pytest.raises(ConfigurationError, match=what):
                decide(self.store)
            assert (self.store.history(GROUP), self.store.history("nobody")) == (before, []), name

        assert [self.store.owner(group) for group in ("nobody", OTHER)] == [None, None]
        assert self.group_state().pause is None
        self.give(advanced, {P0: OffsetRange(40, 41)})
        self.give(taken, {P0: OffsetRange(0, 1)})

    def test_a_text_that_cant_be_stored_is_named_in_every_decision(self, advanced: Claim) -> None:
        decisions: list[Callable[..., object]] = [
            partial(self.store.reset, GROUP, {P0: 1}),
            partial(self.store.pause, GROUP),
            partial(self.store.resume, GROUP),
            partial(self.store.copy_group, GROUP, OTHER),
            partial(self.store.rename_group, GROUP, OTHER),
            partial(self.store.delete_group, GROUP),
            partial(self.store.request_replay, GROUP, LetterFilter()),
            partial(self.store.discard, GROUP, LetterFilter()),
            partial(self.store.prune, GROUP, older_than=timedelta(days=1)),
            partial(self.store.write_metadata, GROUP, P0, "x"),
            self.store.moved,
            self.store.new_id,
        ]
        for what, wrong in TEXTS.items():
            for decide in decisions:
                with pytest.raises(ConfigurationError, match=what):
                    decide(**{"reason": REASON, **wrong})
        self.give(advanced, {P0: OffsetRange(40, 41)})

    # -- names

    @pytest.mark.behaviour("OPS-3")
    def test_groups_are_listed_by_name_with_their_owner_and_what_they_have(self, advanced: Claim) -> None:
        self.store.claim(OTHER, topics=["refunds"]).close()
        listed = {one.group: one for one in self.store.groups()}
        assert [*listed] == sorted(listed)
        mine, other = listed[GROUP], listed[OTHER]
        assert mine.owner == replace(mine.owner, token=advanced.token, owner=advanced.owner)
        assert (mine.owner.is_live, mine.partitions, mine.topics, mine.dead_letters) == (True, 3, ("payments",), 0)
        assert mine.advanced_for is not None
        assert (other.owner.is_live, other.partitions, other.topics, other.advanced_for) == (False, 0, (), None)

    @pytest.mark.behaviour("DASH-1")
    def test_the_store_tells_what_it_is_like(self, claim: Claim) -> None:
        facts = self.store.facts()

        assert abs(datetime.now(UTC) - facts.at) < timedelta(seconds=60)
        assert facts.server
        assert facts.is_as_expected
        assert facts.oldest_transaction >= timedelta(0)
        names = [table.name for table in facts.tables]
        assert {"consumer_groups", "kafka_partitions", "offset_history"} <= set(names)
        assert names == sorted(names)
        assert all(table.hot_share is None or 0 <= table.hot_share <= 1 for table in facts.tables)

    @pytest.mark.behaviour("OPS-3")
    def test_a_copy_has_the_same_offsets_and_metadata_and_fences_the_job_of_the_other_name_alone(
        self, advanced: Claim
    ) -> None:
        waiting = self.store.claim(OTHER, topics=["payments"])
        self.store.write_metadata(GROUP, P0, "a note", reason=REASON)
        planned = self.store.copy_group(GROUP, OTHER, reason=REASON, dry_run=True)
        assert self.stored(OTHER) == {}
        done = self.store.copy_group(GROUP, OTHER, reason=REASON, actor="ana")

        assert [done.offsets, planned.offsets, self.stored(), self.stored(OTHER)] == [{P0: 40, P1: 30, P2: 0}] * 4
        assert (planned.executed, done.executed) == (False, True)
        assert self.store.find_metadata(OTHER, "payments", 0) == "a note"
        self.assert_fenced(waiting, {P0: OffsetRange(0, 5)})
        self.give(advanced, {P0: OffsetRange(40, 50)})
        self.commit({P0: CommittedOffset(90)})
        assert starts(self.store.claim(OTHER, self.broker, mirror_every=None)) == {P0: 40, P1: 30, P2: 0}
        assert self.stored()[P0] == 50

        left = self.store.history(GROUP)[-1]
        assert (left.event, left.actor, left.reason) == ("copy", "ana", f"to '{OTHER}': {REASON}")
        arrived = self.store.history(OTHER, events=["copy"])
        expected = [(None, None), (P0, 40), (P1, 30), (P2, 0)]
        assert [(line.topic_partition, line.to_offset) for line in arrived] == expected

    @pytest.mark.behaviour("OPS-3")
    @pytest.mark.parametrize("decide", ["rename", "delete"])
    def test_a_decision_that_may_not_fence_refuses_a_live_job(self, advanced: Claim, decide: str) -> None:
        def decided(**how: Any) -> Any:
            if decide == "rename":
                return self.store.rename_group(GROUP, OTHER, reason=REASON, takeover="refuse", **how)
            return self.store.delete_group(GROUP, reason=REASON, **how)

        assert decided(dry_run=True).offsets == {P0: 40, P1: 30, P2: 0}
        with self.store.transaction(advanced) as tx:
            tx.lock({P1: OffsetRange(30, 31), NEW: OffsetRange(0, 5)})
            with pytest.raises(GroupBusy, match="is live"):  # its transaction is not waited for, nor ended
                decided(takeover_timeout=0)
            tx.advance(tx.ranges)
        self.give(advanced, {P0: OffsetRange(40, 41)})
        advanced.close()
        assert decided().executed

    @pytest.mark.behaviour("OPS-3", "START-14", "META-7", "TX-11")
    def test_a_rename_moves_all_of_a_group_and_is_known_under_both_names(self, advanced: Claim) -> None:
        query = uuid4()
        self.store.write_metadata(GROUP, P0, "moves along", reason=REASON)
        with self.session() as session:
            session.mark_batch(GROUP, query, 7)

        self.store.rename_group(GROUP, OTHER, reason=REASON, actor="ana")

        assert self.stored() == {}
        assert self.stored(OTHER) == {P0: 40, P1: 30, P2: 0}
        assert self.store.find_metadata(OTHER, "payments", 0) == "moves along"
        left, arrived = self.store.history(GROUP)[-1], self.store.history(OTHER)
        assert (left.event, left.actor, left.reason) == ("rename", "ana", f"to '{OTHER}': {REASON}")
        expected = [(None, None), (P0, 40), (P1, 30), (P2, 0)]
        assert [(line.topic_partition, line.to_offset) for line in arrived] == expected
        assert {(line.event, line.reason) for line in arrived} == {("rename", f"from '{GROUP}': {REASON}")}
        with pytest.raises(StaleClaim):  # instead of no note
            advanced.metadata(P0, cache=False)
        self.assert_fenced(advanced, {P0: OffsetRange(40, 50)}, {NEW: OffsetRange(0, 5)}, {})

        after = self.store.claim(OTHER, self.broker, mirror_every=None)
        with self.session() as session:
            assert [session.batch_mark(name, query) for name in (GROUP, OTHER)] == [None, 7]
            for group in (GROUP, OTHER):
                assert replaced_since(session, group, advanced.token.epoch)
                assert not replaced_since(session, group, after.token.epoch)
            assert not replaced_since(session, "nobody", 0)
        self.store.rename_group(OTHER, GROUP, reason="a mistake")
        assert self.stored() == {P0: 40, P1: 30, P2: 0}
        self.assert_fenced(advanced, {P0: OffsetRange(40, 50)})

    # -- delete

    @pytest.mark.behaviour("OPS-3", "TX-11")
    def test_a_delete_leaves_the_name_and_a_history_that_has_the_offsets(self, advanced: Claim) -> None:
        self.store.write_metadata(GROUP, P0, "a note", reason=REASON)
        self.store.pause(GROUP, reason=REASON)
        query = uuid4()
        with self.session() as session:
            session.mark_batch(GROUP, query, 7)
            assert session.deleted_epochs(GROUP) == {}
        planned = self.store.delete_group(GROUP, reason=REASON, dry_run=True, takeover="fence")
        assert self.stored() == {P0: 40, P1: 30, P2: 0}
        done = self.store.delete_group(GROUP, reason=REASON, actor="ana", takeover="fence")

        assert done.offsets == planned.offsets == {P0: 40, P1: 30, P2: 0}
        assert (planned.executed, done.executed, done.contested, done.letters) == (False, True, False, {})
        assert done.owner is not None
        assert (done.owner.token, self.stored()) == (advanced.token, {})
        state = self.group_state()
        assert (state.decision, state.pause, state.is_live) == ("delete", None, False)
        of_group, *lines = self.store.history(GROUP, events=["delete"])
        assert (of_group.topic_partition, of_group.actor, of_group.reason) == (None, "ana", REASON)
        expected = [(P0, 40, None), (P1, 30, None), (P2, 0, None)]
        assert [(line.topic_partition, line.from_offset, line.to_offset) for line in lines] == expected
        [listed] = self.store.groups()
        assert (listed.partitions, listed.owner.token) == (0, of_group.token)

        after = self.again()
        with self.session() as session:
            assert session.batch_mark(GROUP, query) is None
            assert replaced_since(session, GROUP, advanced.token.epoch)
            assert not replaced_since(session, GROUP, after.token.epoch)
            epochs = session.deleted_epochs(GROUP)
        assert advanced.token.epoch < epochs[None] == epochs[P0.topic] == of_group.token.epoch < after.token.epoch

    @pytest.mark.behaviour("OPS-3")
    def test_a_job_that_still_runs_is_fenced_by_a_delete_and_brings_nothing_back(self, advanced: Claim) -> None:
        ranges = [{P0: OffsetRange(40, 50)}, {P0: OffsetRange(0, 5)}, {NEW: OffsetRange(0, 5)}, {}]
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        self.assert_fenced(advanced, *ranges)
        self.again()  # nor once another job has the name
        self.assert_fenced(advanced, *ranges)
        assert self.stored() == {P0: 0, P1: 0, P2: 0}

    @pytest.mark.behaviour("OPS-3")
    @pytest.mark.parametrize("on_rewound", ["fail", "kafka", "stored"])
    def test_a_job_of_a_deleted_name_begins_by_its_policy_whatever_was_copied_to_kafka(
        self, advanced: Claim, on_rewound: Any
    ) -> None:
        self.commit({P0: self.copied(advanced, 40), P1: self.copied(advanced, 30)})
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        policy = StartPolicy(auto_offset_reset="latest", on_rewound=on_rewound)
        assert starts(self.again(policy=policy)) == {P0: 100, P1: 100, P2: 100}

        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        young = self.again(policy=StartPolicy(on_rewound=on_rewound))
        self.give(young, {P0: OffsetRange(0, 5)})
        # 40 is still in Kafka, above its row
        assert starts(self.again(policy=policy)) == {P0: 5, P1: 0, P2: 0}

    @pytest.mark.behaviour("OPS-3", "START-14")
    def test_a_database_that_is_older_than_a_copy_of_after_the_delete_is_still_noticed(self, advanced: Claim) -> None:
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        self.commit({P0: self.copied(self.again(), 40)})
        with pytest.raises(StoreRewound):
            self.again()

    @pytest.mark.behaviour("OPS-3")
    def test_what_another_application_has_committed_counts_after_a_delete_as_for_any_new_group(
        self, advanced: Claim
    ) -> None:
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        self.commit({P0: CommittedOffset(70), P1: self.copied(advanced, 30)})
        with pytest.raises(NoStartingOffset):  # P1 has none
            self.again(policy=StartPolicy(auto_offset_reset="none"))
        assert starts(self.again()) == {P0: 70, P1: 0, P2: 0}

    @pytest.mark.behaviour("START-27", "OPS-3")
    def test_a_contest_keeps_its_epoch_until_a_claim_looks_at_kafka(self, claim: Claim) -> None:
        with self.session() as mirror:
            mirror.contest(GROUP, claim.token, [P0])

        def contested_in() -> tuple[bool, int]:
            row = self.store.offsets(GROUP)[P0]
            return row.contested, row.pinned_epoch

        assert contested_in() == (True, claim.token.epoch)
        self.store.claim(GROUP, topics=[P0.topic]).close()
        self.store.reset(GROUP, {P1: 0}, reason=REASON)
        assert contested_in() == (True, claim.token.epoch)
        after = self.again()
        assert contested_in() == (True, after.token.epoch)
        assert self.store.delete_group(GROUP, reason=REASON, takeover="fence").contested

    @pytest.mark.behaviour("OPS-20")
    def test_a_copy_leaves_open_letters_to_the_group_and_a_delete_waits_until_they_are_replayed(
        self, advanced: Claim
    ) -> None:
        self.give(advanced, {P0: OffsetRange(40, 50)}, *(dead(P0, offset) for offset in (41, 42, 43)))
        self.store.discard(GROUP, LetterKey(P0, 42), reason=REASON)

        planned = self.store.copy_group(GROUP, OTHER, reason=REASON, dry_run=True)
        assert planned.open_letters == self.store.copy_group(GROUP, OTHER, reason=REASON).open_letters == 2
        assert self.store.letter_counts(OTHER) == {}
        assert self.store.request_replay(OTHER, LetterFilter(), reason=REASON).letters == ()
        with pytest.raises(LettersOpen) as caught:
            self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        assert caught.value.found == 2

        self.store.request_replay(GROUP, LetterFilter(), reason=REASON)
        letters = self.store.letters(GROUP, state="requested", contents=True).letters
        with self.store.transaction(advanced) as tx:
            tx.lock({P0: OffsetRange(50, 50)})
            assert tx.letters.lock(letters)
            tx.letters.settle(letters, {})
            tx.touch()
        assert self.store.delete_group(GROUP, reason=REASON, takeover="fence").open_letters == 0
        assert self.stored(OTHER)[P0] == 50

    @pytest.mark.behaviour("OPS-3")
    def test_a_deleted_name_is_unknown_until_a_job_claims_it(self, advanced: Claim) -> None:
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        for decide in (self.store.delete_group, self.store.pause, self.store.resume):
            with pytest.raises(UnknownGroup, match="was deleted"):
                decide(GROUP, reason=REASON)
        with pytest.raises(UnknownGroup):
            self.store.delete_group("nobody", reason=REASON, takeover="fence")
        self.store.claim(GROUP, topics=["refunds"], mirror_every=None).close()
        with pytest.raises(UnknownGroup, match="no offsets of group"):
            self.store.delete_group(GROUP, topics="refunds", reason=REASON)
        self.again()
        assert self.store.delete_group(GROUP, reason=REASON, takeover="fence").executed

    @pytest.mark.behaviour("OPS-3")
    def test_a_name_that_was_taken_over_can_be_deleted_but_one_that_was_given_up_can_not(self, advanced: Claim) -> None:
        self.store.rename_group(GROUP, OTHER, reason=REASON)
        with pytest.raises(GroupRenamed):
            self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        self.store.delete_group(OTHER, reason=REASON, takeover="fence")
        with pytest.raises(GroupRenamed):  # its job would read the topics from the beginning
            self.again()
        assert self.store.claim(OTHER, self.broker, mirror_every=None).starting is not None

    @pytest.mark.behaviour("OPS-3")
    def test_a_deleted_name_can_be_given_to_another_group(self, advanced: Claim) -> None:
        other = self.store.claim(OTHER, self.broker, mirror_every=None)
        self.give(other, {P0: OffsetRange(0, 7)})
        self.commit({P0: self.copied(advanced, 40)})
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        self.store.rename_group(OTHER, GROUP, reason=REASON)
        assert starts(self.again()) == {P0: 7, P1: 0, P2: 0}
        self.assert_fenced(advanced, {P0: OffsetRange(7, 9)})

    # -- delete what a group has of a topic

    @pytest.fixture
    def two_topics(self) -> Claim:
        """A claim with 40 and 30 of one topic, and 5 of another, each with a letter; Kafka has a copy of each."""
        both = StaticBroker.with_topics({"payments": 3, "refunds": 1}, end=100)
        self.broker.current = both.current
        claim = self.again()
        self.give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30), REFUNDS: OffsetRange(0, 5)})
        self.commit({tp: self.copied(claim, offset) for tp, offset in ((P0, 40), (P1, 30), (REFUNDS, 5))})
        ranges = {P0: OffsetRange(40, 41), REFUNDS: OffsetRange(5, 6)}
        self.give(claim, ranges, dead(P0, 40), dead(REFUNDS, 5))
        return claim

    @pytest.mark.behaviour("OPS-3")
    def test_what_a_group_has_of_a_topic_is_deleted_and_nothing_else(self, two_topics: Claim) -> None:
        self.store.pause(GROUP, reason=REASON)
        with pytest.raises(GroupBusy):
            self.store.delete_group(GROUP, topics=["refunds"], discard_letters=True, reason=REASON)
        with pytest.raises(LettersOpen, match="Only a job that reads the topic can replay them") as caught:
            self.store.delete_group(GROUP, topics=["refunds"], takeover="fence", reason=REASON)
        assert caught.value.found == 1
        before = self.store.offsets(GROUP)
        done = self.store.delete_group(GROUP, topics="refunds", discard_letters=True, takeover="fence", reason=REASON)

        assert (done.last_read, done.topics, done.offsets, done.open_letters) == (
            ("refunds",),
            ("refunds",),
            {REFUNDS: 6},
            1,
        )
        [line] = self.store.history(GROUP, events=["delete-topic"])
        assert (line.topic_partition, line.from_offset, line.to_offset) == (REFUNDS, 6, None)
        assert line.reason == f"with 1 open and 0 settled dead letters: {REASON}"
        assert self.stored() == {P0: 41, P1: 30, P2: 0}
        after = self.store.offsets(GROUP)
        assert after == {tp: replace(row, token=line.token) for tp, row in before.items() if tp != REFUNDS}
        assert [one.topic_partition for one in self.store.letters(GROUP).letters] == [P0]
        state = self.group_state()
        assert (state.decision, state.is_live, state.pause is None) == ("delete-topic", False, False)
        with self.session() as session:
            assert replaced_since(session, GROUP, two_topics.token.epoch)  # an unknown COMMIT stays unknown
        self.assert_fenced(two_topics, {P1: OffsetRange(30, 31)}, {REFUNDS: OffsetRange(6, 7)}, {})

    @pytest.mark.behaviour("OPS-3", "START-14")
    def test_a_topic_that_was_deleted_is_a_new_one_and_the_others_go_on(self, two_topics: Claim) -> None:
        self.store.delete_group(GROUP, topics=["refunds"], discard_letters=True, takeover="fence", reason=REASON)
        again = self.again(policy=StartPolicy(auto_offset_reset="latest"))
        assert starts(again) == {P0: 41, P1: 30, P2: 0, REFUNDS: 100}

        # a copy of what the database has lost
        self.commit({**self.broker.current.committed, P0: self.copied(two_topics, 60)})
        with pytest.raises(StoreRewound) as caught:
            self.again()
        assert caught.value.topic_partition == P0

    # -- the store in another database

    def _set_home(self, home: str | None) -> None:
        with self.session() as session:
            set_identity(people(session), session.identity().store_id, home)
        self.store.database.check_schema()

    @pytest.mark.behaviour("START-27", "START-23")
    def test_a_store_in_another_database_starts_no_job_before_somebody_says_why(self, advanced: Claim) -> None:
        before, asked = self.store.history(GROUP), len(self.broker.asked)
        here = self.store.identity().here
        self._set_home("elsewhere")
        for given in (self.broker, None):
            with pytest.raises(StoreMoved, match="elsewhere, the home of store") as caught:
                self.store.claim(GROUP, given, topics=["payments"], mirror_every=None)
            assert all(way in caught.value.next_step for way in ("store moved", "store new-id", "kafka_group="))
        assert len(self.broker.asked) == asked
        self._set_home(here)
        self.broker.script = [lambda: self._set_home("elsewhere")]  # meanwhile: it is compared under the locks, too
        with pytest.raises(StoreMoved):
            self.again()
        assert self.store.history(GROUP) == before
        with pytest.raises(StoreMoved):
            resolve_starting_offsets(self.broker, group=GROUP, store=self.store)
        self.give(advanced, {P0: OffsetRange(40, 41)})  # who runs already is not fenced

        with pytest.raises(ConfigurationError, match="reason"):
            self.store.moved(reason=" ")
        planned = self.store.moved(reason=REASON, dry_run=True)
        assert (planned.executed, planned.identity, [*planned.groups]) == (False, self.store.identity(), [GROUP])
        assert self.store.identity().is_elsewhere
        done = self.store.moved(reason=REASON, actor="ana", if_plan=planned.digest)
        after = StoreIdentity(self.store.database.store_id(), here, here)
        assert (done.executed, done.identity, done.digest) == (True, after, planned.digest)
        assert self.store.identity() == after
        [line] = self.store.history(GROUP, events=["moved"])
        assert (line.actor, line.token) == ("ana", advanced.token)
        assert line.reason == f"from database elsewhere to {here}: {REASON}"
        again = self.store.moved(reason=REASON)  # it is at home: nothing is written
        assert (again.executed, again.identity, again.groups) == (False, after, {})
        with pytest.raises(PlanChanged):
            self.store.moved(reason=REASON, if_plan=planned.digest)
        assert len(self.store.history(GROUP, events=["moved"])) == 1
        assert resolve_starting_offsets(self.broker, group=GROUP, store=self.store).offsets[P0] == 41
        assert self.again().token.epoch == advanced.token.epoch + 1

    @pytest.mark.behaviour("START-27")
    def test_a_home_that_is_not_known_is_not_compared(self) -> None:
        self._set_home(None)
        assert not self.store.identity().is_compared
        self.again()
        assert self.store.moved(reason=REASON).identity.is_compared

    @pytest.mark.behaviour("START-27", "START-9")
    def test_a_copy_is_a_store_of_its_own_and_adopts_nothing_of_the_original_s_group_in_kafka(
        self, advanced: Claim
    ) -> None:
        self.store.reset(GROUP, {P1: 10}, reason=REASON)  # pinned, which counts more than other commits
        running = self.again()
        self.store.rename_group(self.store.claim(OTHER, self.broker, mirror_every=None).group, NEW_NAME, reason=REASON)
        of_original = {P0: self.copied(advanced, 60), P1: self.copied(advanced, 70)}
        original = self.store.database.store_id()
        self._set_home("elsewhere")

        with pytest.raises(ConfigurationError, match="reason"):
            self.store.new_id(reason="")
        planned = self.store.new_id(reason=REASON, dry_run=True)
        assert (planned.executed, planned.identity.store_id) == (False, original)
        assert {group: owner.is_live for group, owner in planned.groups.items()} == {GROUP: True, NEW_NAME: False}
        running.close()
        with pytest.raises(PlanChanged) as changed:
            self.store.new_id(reason=REASON, if_plan=planned.digest)
        assert self.store.identity().store_id == original
        done = self.store.new_id(reason=REASON, actor="ana", if_plan=changed.value.plan.digest)
        assert (done.executed, [*done.groups]) == (True, [GROUP, NEW_NAME])
        after = done.identity
        assert after.store_id not in {original, UUID(int=0)}
        assert after == self.store.identity() == self.store.database.identity()
        assert after.home == after.here
        self.assert_fenced(running, {P0: OffsetRange(40, 41)})
        [line] = self.store.history(GROUP, events=["new-id"])
        assert (line.actor, line.token.epoch) == ("ana", running.token.epoch + 1)
        assert line.reason == (
            f"this database is a copy of store {original}, and is store {after.store_id} now: {REASON}"
        )
        assert self.group_state().decision == "new-id"
        assert self.store.history(OTHER, events=["new-id"]) == []  # it has no offsets, and no job
        assert len(self.store.history(NEW_NAME, events=["new-id"])) == 1

        for tp in (P0, P1):
            for committed, error in ((of_original[tp], ForeignStore), (CommittedOffset(80), KafkaGroupContested)):
                self.commit({tp: committed})
                with pytest.raises(error):
                    self.again()
        self.commit({})
        own = self.again(kafka_group="own")
        assert starts(own) == {P0: 40, P1: 10, P2: 0}
        assert own.store_id == after.store_id
