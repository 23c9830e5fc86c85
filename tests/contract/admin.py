"""An operator's decisions stick, and earlier jobs are fenced. See `tests.contract.suite`."""
# ruff: noqa: ARG002 - these are tests: the name is the docstring, fixtures and numbers are the point

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid4

import pytest

from offsetstore.errors import (
    ConfigurationError,
    ForeignStore,
    GroupBusy,
    GroupRenamed,
    InvalidText,
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
from offsetstore.protocol.letters import LetterError, LetterKey, NewLetter, Payload
from offsetstore.protocol.policy import StartPolicy
from offsetstore.protocol.stamp import Stamp, digest
from offsetstore.protocol.starting import Reason
from offsetstore.protocol.store_facts import StoreIdentity
from offsetstore.protocol.stored_letters import LetterFilter
from offsetstore.store.claim import Claim
from offsetstore.store.sessions import transaction
from offsetstore.testing.broker import StaticBroker
from tests.contract.parts import GROUP, NEW, P0, P1, P2, ContractParts, held

OTHER = "invoicing"
NEW_NAME = "billing-v2"
REASON = "ticket 17"
REFUNDS = TopicPartition("refunds", 0)


def stored(store: OffsetStore, group: str = GROUP) -> dict[TopicPartition, int]:
    """The group's offsets."""
    return {tp: row.next_offset for tp, row in store.offsets(group).items()}


def copied(store: OffsetStore, claim: Claim, offset: int, group: str = GROUP) -> CommittedOffset:
    """The offset as the claim's mirror copies it to Kafka."""
    return CommittedOffset(offset, Stamp(store.database.store_id(), claim.token.epoch, digest(group)).text())


Decide: TypeAlias = Callable[[OffsetStore], object]


def resets(group: str, offsets: dict[TopicPartition, int], reason: str = REASON) -> Decide:
    return lambda store: store.reset(group, offsets, reason=reason)


def renames(group: str, new: str, reason: str = REASON) -> Decide:
    return lambda store: store.rename_group(group, new, reason=reason)


def pauses(group: str, until: datetime | None = None, reason: str = REASON) -> Decide:
    return lambda store: store.pause(group, until=until, reason=reason)


def asks(decide: Decide) -> Decide:
    return decide


REFUSED: Final = [
    pytest.param(resets(GROUP, {NEW: 1}), "no offset of this partition", id="reset of an unknown partition"),
    pytest.param(resets("nobody", {P0: 1}), "no offsets of group", id="reset of an unknown group"),
    pytest.param(resets("", {P0: 1}), "not a consumer group", id="reset of no group"),
    pytest.param(resets(GROUP, {}), "names no partitions", id="reset of no partitions"),
    pytest.param(resets(GROUP, {P0: -1}), "must be from 0 to", id="reset to a negative offset"),
    pytest.param(resets(GROUP, {P0: 2**63}), "must be from 0 to", id="reset beyond 64 bits"),
    pytest.param(resets(GROUP, {P0: 1}, "  "), "needs a reason", id="reset without a reason"),
    pytest.param(renames(GROUP, "taken"), "'taken' already", id="a name that is taken"),
    pytest.param(renames(GROUP, GROUP), "that name already", id="the same name"),
    pytest.param(renames("nobody", OTHER), "no offsets of group", id="a name for nobody"),
    pytest.param(renames(GROUP, ""), "not a consumer group", id="no name"),
    pytest.param(renames(GROUP, OTHER, ""), "needs a reason", id="rename without a reason"),
    pytest.param(renames(GROUP, "a\0b"), "can't be stored; found a", id="NUL in a name"),
    pytest.param(renames(GROUP, "a\udc80b"), "can't be stored; found a", id="half a character in a name"),
    pytest.param(renames(GROUP, "é" * 128), "is too long; found 256 bytes", id="a long name"),
    pytest.param(asks(lambda store: store.claim("é" * 128, topics=["t"])), "is too long", id="a long name of a claim"),
    pytest.param(asks(lambda store: store.claim(OTHER, topics=["a\0"])), "can't be stored", id="NUL in a topic"),
    pytest.param(
        asks(lambda store: store.copy_group(GROUP, "a\0", reason=REASON)), "can't be stored", id="NUL in a copy"
    ),
    pytest.param(pauses("nobody"), "no group 'nobody'", id="pause of an unknown group"),
    pytest.param(pauses(GROUP, reason=" "), "needs a reason", id="pause without a reason"),
    pytest.param(pauses(GROUP, datetime(2020, 1, 1, tzinfo=UTC)), "has passed", id="pause until the past"),
    pytest.param(pauses(GROUP, datetime.max.replace(tzinfo=UTC)), "too far away", id="pause until the last day"),
    pytest.param(pauses(GROUP, datetime(2120, 1, 1)), "without a zone", id="pause without a zone"),  # noqa: DTZ001
    pytest.param(asks(lambda store: store.resume(GROUP, reason="")), "needs a reason", id="resume without a reason"),
]


class AdminContract(ContractParts):
    """Resets, copies, renames and deletes."""

    @pytest.fixture
    def advanced(self) -> Claim:
        """A claim with 40, 30 and 0 stored, which copies nothing to Kafka."""
        claim = self.store.claim(GROUP, self.broker, mirror_every=None)
        self.give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30)})
        return claim

    # -- reset

    def test_a_reset_sets_the_partitions_named_and_says_what_it_did(self, advanced: Claim) -> None:
        done = self.store.reset(GROUP, {P1: 99, P0: 10}, reason=REASON, actor="ana")

        assert stored(self.store) == {P0: 10, P1: 99, P2: 0}
        rows = self.store.offsets(GROUP)
        assert [rows[tp].pinned for tp in (P0, P1, P2)] == [True, True, False]
        assert {row.token for row in rows.values()} == {done.history[0].token}
        moved = [(one.topic_partition, one.from_offset, one.to_offset) for one in done.moves]
        assert moved == [(P0, 40, 10), (P1, 30, 99)]
        assert done.fenced is not None
        assert done.fenced.token == advanced.token
        history = self.store.history(GROUP)
        assert [replace(line, at=None, db_role=None) for line in history[-2:]] == list(done.history)
        assert {(line.event, line.actor, line.reason) for line in history[-2:]} == {("reset", "ana", REASON)}

    def test_a_reset_fences_the_job_that_runs_in_every_partition(self, advanced: Claim) -> None:
        before = self.read()
        done = self.store.reset(GROUP, {P0: 10}, reason=REASON)

        assert done.history[0].token.epoch > advanced.token.epoch
        for range_ in ({P0: OffsetRange(10, 20)}, {P1: OffsetRange(30, 40)}, {NEW: OffsetRange(0, 5)}):
            with pytest.raises(StaleClaim):
                self.give(advanced, range_)
        assert self.read() == before
        assert NEW not in stored(self.store)

    @pytest.mark.behaviour("START-21")
    @pytest.mark.parametrize("prefer", ["larger", "stored", "agree"])
    def test_a_reset_backwards_sticks_through_restarts_whatever_kafka_says(self, advanced: Claim, prefer: Any) -> None:
        policy = StartPolicy(prefer=prefer)
        self.broker.current = replace(self.broker.current, committed={P0: CommittedOffset(40), P1: CommittedOffset(90)})
        self.store.reset(GROUP, {P0: 10, P1: 0}, reason=REASON)

        for _ in range(3):
            again = self.store.claim(GROUP, self.broker, policy=policy, mirror_every=None)
            assert again.starting is not None
            assert again.starting.offsets == {P0: 10, P1: 0, P2: 0}
            assert again.starting.starts[P0].reason is Reason.PINNED

    @pytest.mark.behaviour("OPS-13")
    def test_a_job_that_only_ever_claims_its_pinned_offsets_has_made_no_progress(self, advanced: Claim) -> None:
        self.store.reset(GROUP, {P0: 1}, reason="again")
        before = {tp: (row.next_offset, row.updated_at) for tp, row in self.store.offsets(GROUP).items()}
        for _ in range(2):
            self.store.claim(GROUP, self.broker, mirror_every=None).close()
        rows = self.store.offsets(GROUP)
        assert rows[P0].pinned
        assert {tp: (row.next_offset, row.updated_at) for tp, row in rows.items()} == before

    def test_a_reset_ends_a_transaction_that_does_not_end(self, advanced: Claim) -> None:
        with held(self.store, advanced, P1):
            self.store.reset(GROUP, {P0: 10}, reason=REASON, takeover_timeout=0.1)
        assert stored(self.store)[P0] == 10

    @pytest.mark.behaviour("OPS-10")
    def test_a_reset_that_is_to_refuse_neither_waits_for_a_live_job_nor_ends_its_transaction(
        self, advanced: Claim
    ) -> None:
        before = self.store.history(GROUP)
        with self.store.transaction(advanced) as tx:
            left = tx.lock({P1: OffsetRange(30, 31), NEW: OffsetRange(0, 5)})  # NEW is unknown: the group's row is held
            with pytest.raises(GroupBusy, match="is live; nothing was written"):
                self.store.reset(GROUP, {P0: 10}, reason=REASON, takeover="refuse", takeover_timeout=0)
            tx.advance({tp: decision.remaining for tp, decision in left.items()})

        assert [line for line in self.store.history(GROUP) if line.event == "reset"] == []
        assert self.store.history(GROUP)[: len(before)] == before
        self.give(advanced, {P0: OffsetRange(40, 41)})
        advanced.close()
        done = self.store.reset(GROUP, {P0: 10}, reason=REASON, takeover="refuse")
        assert (done.executed, done.met_live_owner, done.fenced) == (True, False, None)

    def test_a_dry_run_says_what_it_would_do_and_neither_waits_nor_writes(self, advanced: Claim) -> None:
        before = self.store.history(GROUP)
        with held(self.store, advanced, P1):
            found = self.store.reset(
                GROUP, "earliest", partitions={P0.topic: None}, broker=self.broker, reason=REASON, dry_run=True
            )

        assert [(one.from_offset, one.to_offset) for one in found.moves] == [(40, 0), (30, 0), (0, 0)]
        assert (found.executed, found.met_live_owner, found.fenced) == (False, True, None)
        assert self.store.history(GROUP) == before
        self.give(advanced, {P0: OffsetRange(40, 41)})

    @pytest.mark.behaviour("OPS-1", "OPS-2", "OPS-3")
    @pytest.mark.parametrize(("decide", "what"), REFUSED)
    def test_a_decision_that_cant_be_right_changes_nothing_and_fences_nobody(
        self, advanced: Claim, decide: Decide, what: str
    ) -> None:
        taken = self.store.claim("taken", self.broker, mirror_every=None)
        before = self.store.history(GROUP)
        with pytest.raises(ConfigurationError, match=what):
            decide(self.store)

        assert (self.store.history(GROUP), self.store.history("nobody")) == (before, [])
        assert (self.store.owner("nobody"), self.store.owner(OTHER), self.store.group_state(GROUP).pause) == (
            None,
            None,
            None,
        )
        self.give(advanced, {P0: OffsetRange(40, 41)})
        self.give(taken, {P0: OffsetRange(0, 1)})

    @pytest.mark.parametrize(
        ("wrong", "what"),
        [
            pytest.param({"reason": "in \0 it"}, "reason can't be stored; found a NUL, character 4 of 7", id="NUL"),
            pytest.param(
                {"reason": "\udcff"}, "reason can't be stored; found a lone surrogate, character 1", id="half"
            ),
            pytest.param({"reason": "x" * 1001}, "reason is too long; found 1,001", id="long"),
            pytest.param({"reason": None}, "reason must be a text", id="none"),
            pytest.param({"actor": "ana\0"}, "actor can't be stored; found a NUL, character 4", id="actor"),
            pytest.param({"actor": "x" * 2001}, "actor is too long", id="long actor"),
        ],
    )
    def test_a_text_that_cant_be_stored_is_named_in_every_decision(
        self, advanced: Claim, wrong: Mapping[str, Any], what: str
    ) -> None:
        why: dict[str, Any] = {"reason": REASON, **wrong}
        decisions: list[Callable[[], object]] = [
            lambda: self.store.reset(GROUP, {P0: 1}, **why),
            lambda: self.store.pause(GROUP, **why),
            lambda: self.store.resume(GROUP, **why),
            lambda: self.store.copy_group(GROUP, OTHER, **why),
            lambda: self.store.rename_group(GROUP, OTHER, **why),
            lambda: self.store.delete_group(GROUP, **why),
            lambda: self.store.request_replay(GROUP, LetterFilter(), **why),
            lambda: self.store.discard(GROUP, LetterFilter(), **why),
            lambda: self.store.prune(GROUP, older_than=timedelta(days=1), **why),
            lambda: self.store.write_metadata(GROUP, P0, "x", **why),
            lambda: self.store.moved(**why),
            lambda: self.store.new_id(**why),
        ]
        for decide in decisions:
            with pytest.raises(ValueError, match=what) as refused:
                decide()
            assert isinstance(refused.value, InvalidText)
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
    def test_a_copy_has_the_same_offsets_and_metadata_and_leaves_the_job_alone(self, advanced: Claim) -> None:
        self.store.write_metadata(GROUP, P0, "a note", reason=REASON)
        planned = self.store.copy_group(GROUP, OTHER, reason=REASON, dry_run=True)
        assert stored(self.store, OTHER) == {}
        done = self.store.copy_group(GROUP, OTHER, reason=REASON, actor="ana")

        assert (
            done.offsets
            == planned.offsets
            == stored(self.store)
            == stored(self.store, OTHER)
            == {P0: 40, P1: 30, P2: 0}
        )
        assert (planned.executed, done.executed) == (False, True)
        assert self.store.find_metadata(OTHER, "payments", 0) == "a note"
        self.give(advanced, {P0: OffsetRange(40, 50)})
        self.broker.current = replace(self.broker.current, committed={P0: CommittedOffset(90)})
        copy = self.store.claim(OTHER, self.broker, mirror_every=None)
        assert copy.starting is not None
        assert copy.starting.offsets == {P0: 40, P1: 30, P2: 0}
        assert stored(self.store)[P0] == 50

        left = self.store.history(GROUP)[-1]
        assert (left.event, left.actor, left.reason) == ("copy", "ana", f"to '{OTHER}': {REASON}")
        arrived = [line for line in self.store.history(OTHER) if line.event == "copy"]
        assert [(line.topic_partition, line.to_offset) for line in arrived] == [
            (None, None),
            (P0, 40),
            (P1, 30),
            (P2, 0),
        ]

    @pytest.mark.behaviour("OPS-3")
    def test_a_job_of_the_other_name_is_fenced_by_a_copy(self, advanced: Claim) -> None:
        waiting = self.store.claim(OTHER, topics=["payments"])
        self.store.copy_group(GROUP, OTHER, reason=REASON)
        with pytest.raises(StaleClaim):
            self.give(waiting, {P0: OffsetRange(0, 5)})
        assert stored(self.store, OTHER) == {P0: 40, P1: 30, P2: 0}

    @pytest.mark.behaviour("OPS-3")
    @pytest.mark.parametrize("decide", ["rename", "delete"])
    def test_a_decision_that_may_not_fence_refuses_a_live_job(self, advanced: Claim, decide: str) -> None:
        def decided(**how: Any) -> Any:
            if decide == "rename":
                return self.store.rename_group(GROUP, OTHER, reason=REASON, takeover="refuse", **how)
            return self.store.delete_group(GROUP, reason=REASON, **how)

        assert decided(dry_run=True).offsets == {P0: 40, P1: 30, P2: 0}
        with self.store.transaction(advanced) as tx:
            left = tx.lock({P1: OffsetRange(30, 31), NEW: OffsetRange(0, 5)})
            with pytest.raises(GroupBusy, match="is live"):  # its transaction is not waited for, nor ended
                decided(takeover_timeout=0)
            tx.advance({tp: decision.remaining for tp, decision in left.items()})
        self.give(advanced, {P0: OffsetRange(40, 41)})
        advanced.close()
        assert decided().executed

    def test_a_rename_moves_offsets_and_batch_marks_and_has_a_history_under_both_names(self, advanced: Claim) -> None:
        query = uuid4()
        session = self.store.database.begin(name="a stateful query")
        session.mark_batch(GROUP, query, 7)
        session.commit()

        self.store.rename_group(GROUP, OTHER, reason=REASON, actor="ana")

        assert stored(self.store) == {}
        assert stored(self.store, OTHER) == {P0: 40, P1: 30, P2: 0}
        session = self.store.database.begin(name="look")
        assert [session.batch_mark(name, query) for name in (GROUP, OTHER)] == [None, 7]
        session.rollback()
        left, arrived = self.store.history(GROUP)[-1], self.store.history(OTHER)
        assert (left.event, left.actor, left.reason) == ("rename", "ana", f"to '{OTHER}': {REASON}")
        assert [(line.topic_partition, line.to_offset) for line in arrived] == [
            (None, None),
            (P0, 40),
            (P1, 30),
            (P2, 0),
        ]
        assert {(line.event, line.reason) for line in arrived} == {("rename", f"from '{GROUP}': {REASON}")}

    @pytest.mark.behaviour("START-14")
    def test_a_job_under_the_old_name_is_fenced_and_brings_nothing_back(self, advanced: Claim) -> None:
        before = self.read()
        self.store.rename_group(GROUP, OTHER, reason=REASON)

        for range_ in ({P0: OffsetRange(40, 50)}, {NEW: OffsetRange(0, 5)}, {}):
            with pytest.raises(StaleClaim):
                self.give(advanced, range_)
        assert self.read() == before
        assert stored(self.store) == {}

    @pytest.mark.behaviour("TX-11")
    def test_a_rename_is_known_under_both_names_to_whoever_claimed_one_before(self, advanced: Claim) -> None:
        self.store.rename_group(GROUP, OTHER, reason=REASON)
        after = self.store.claim(OTHER, self.broker, mirror_every=None)

        session = self.store.database.begin(name="test")
        try:
            for group in (GROUP, OTHER):
                assert session.replaced_since(group, advanced.token.epoch)
                assert not session.replaced_since(group, after.token.epoch)
            assert not session.replaced_since("nobody", 0)
        finally:
            session.rollback()

    def test_a_name_can_be_used_again_and_taken_back(self, advanced: Claim) -> None:
        self.store.rename_group(GROUP, OTHER, reason=REASON)
        self.store.rename_group(OTHER, GROUP, reason="a mistake")

        assert stored(self.store) == {P0: 40, P1: 30, P2: 0}
        with pytest.raises(StaleClaim):
            self.give(advanced, {P0: OffsetRange(40, 50)})

    # -- delete

    @pytest.mark.behaviour("OPS-3")
    def test_a_delete_leaves_the_name_and_a_history_that_has_the_offsets(self, advanced: Claim) -> None:
        self.store.write_metadata(GROUP, P0, "a note", reason=REASON)
        self.store.pause(GROUP, reason=REASON)
        query = uuid4()
        session = self.store.database.begin(name="a stateful query")
        session.mark_batch(GROUP, query, 7)
        session.commit()
        planned = self.store.delete_group(GROUP, reason=REASON, dry_run=True, takeover="fence")
        assert stored(self.store) == {P0: 40, P1: 30, P2: 0}
        done = self.store.delete_group(GROUP, reason=REASON, actor="ana", takeover="fence")

        assert done.offsets == planned.offsets == {P0: 40, P1: 30, P2: 0}
        assert (planned.executed, done.executed, done.contested, done.letters) == (False, True, False, {})
        assert done.owner is not None
        assert done.owner.token == advanced.token
        assert stored(self.store) == {}
        session = self.store.database.begin(name="look")
        assert session.batch_mark(GROUP, query) is None
        session.rollback()
        state = self.store.group_state(GROUP)
        assert (state.decision, state.pause, state.is_live) == ("delete", None, False)
        of_group, *lines = [line for line in self.store.history(GROUP) if line.event == "delete"]
        assert (of_group.topic_partition, of_group.actor, of_group.reason) == (None, "ana", REASON)
        assert of_group.token.epoch > advanced.token.epoch
        assert [(line.topic_partition, line.from_offset, line.to_offset) for line in lines] == [
            (P0, 40, None),
            (P1, 30, None),
            (P2, 0, None),
        ]
        [listed] = [one for one in self.store.groups() if one.group == GROUP]
        assert (listed.partitions, listed.owner.token) == (0, of_group.token)

    @pytest.mark.behaviour("OPS-3")
    def test_a_job_that_still_runs_is_fenced_by_a_delete_and_brings_nothing_back(self, advanced: Claim) -> None:
        before = self.read()
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        for range_ in ({P0: OffsetRange(40, 50)}, {NEW: OffsetRange(0, 5)}, {}):
            with pytest.raises(StaleClaim):
                self.give(advanced, range_)
        assert stored(self.store) == {}

        self.store.claim(GROUP, self.broker, mirror_every=None)  # nor once another job has the name
        for range_ in ({P0: OffsetRange(40, 50)}, {P0: OffsetRange(0, 5)}, {NEW: OffsetRange(0, 5)}):
            with pytest.raises(StaleClaim):
                self.give(advanced, range_)
        assert stored(self.store) == {P0: 0, P1: 0, P2: 0}
        assert self.read() == before

    @pytest.mark.behaviour("OPS-3")
    @pytest.mark.parametrize("on_rewound", ["fail", "kafka", "stored"])
    def test_a_job_of_a_deleted_name_begins_by_its_policy_whatever_was_copied_to_kafka(
        self, advanced: Claim, on_rewound: Any
    ) -> None:
        copies = {P0: copied(self.store, advanced, 40), P1: copied(self.store, advanced, 30)}
        self.broker.current = replace(self.broker.current, committed=copies)
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        policy = StartPolicy(auto_offset_reset="latest", on_rewound=on_rewound)
        latest = self.store.claim(GROUP, self.broker, policy=policy, mirror_every=None)
        assert latest.starting is not None
        assert latest.starting.offsets == {P0: 100, P1: 100, P2: 100}

        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        young = self.store.claim(GROUP, self.broker, policy=StartPolicy(on_rewound=on_rewound), mirror_every=None)
        self.give(young, {P0: OffsetRange(0, 5)})
        again = self.store.claim(
            GROUP, self.broker, policy=policy, mirror_every=None
        )  # 40 is still in Kafka, above its row
        assert again.starting is not None
        assert again.starting.offsets == {P0: 5, P1: 0, P2: 0}

    @pytest.mark.behaviour("OPS-3", "START-14")
    def test_a_database_that_is_older_than_a_copy_of_after_the_delete_is_still_noticed(self, advanced: Claim) -> None:
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        young = self.store.claim(GROUP, self.broker, mirror_every=None)
        self.broker.current = replace(self.broker.current, committed={P0: copied(self.store, young, 40)})
        with pytest.raises(StoreRewound):
            self.store.claim(GROUP, self.broker, mirror_every=None)

    @pytest.mark.behaviour("OPS-3")
    def test_what_another_application_has_committed_counts_after_a_delete_as_for_any_new_group(
        self, advanced: Claim
    ) -> None:
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        committed = {P0: CommittedOffset(70), P1: copied(self.store, advanced, 30)}
        self.broker.current = replace(self.broker.current, committed=committed)
        with pytest.raises(NoStartingOffset):  # P1 has none
            self.store.claim(GROUP, self.broker, policy=StartPolicy(auto_offset_reset="none"), mirror_every=None)
        started = self.store.claim(GROUP, self.broker, mirror_every=None)
        assert started.starting is not None
        assert started.starting.offsets == {P0: 70, P1: 0, P2: 0}
        assert started.starting.starts[P0].reason is Reason.ONLY_COMMITTED

    @pytest.mark.behaviour("START-27")
    def test_a_contest_keeps_its_epoch_until_a_claim_looks_at_kafka(self, claim: Claim) -> None:
        with transaction(self.store.database, name="mirror") as session:
            session.contest(GROUP, claim.token, [P0])

        def contested_in() -> tuple[bool, int]:
            row = self.store.offsets(GROUP)[P0]
            return row.contested, row.pinned_epoch

        assert contested_in() == (True, claim.token.epoch)
        self.store.claim(GROUP, topics=[P0.topic]).close()
        self.store.reset(GROUP, {P1: 0}, reason=REASON)
        assert contested_in() == (True, claim.token.epoch)
        after = self.store.claim(GROUP, self.broker, mirror_every=None)
        assert contested_in() == (True, after.token.epoch)

    @pytest.mark.behaviour("OPS-3")
    def test_a_delete_says_that_another_application_uses_the_group(self, advanced: Claim) -> None:
        session = self.store.database.begin(name="the mirror")
        session.contest(GROUP, advanced.token, [P1])
        session.commit()
        assert self.store.delete_group(GROUP, reason=REASON, takeover="fence").contested

    @pytest.mark.behaviour("OPS-20")
    def test_a_copy_leaves_open_letters_to_the_group_and_a_delete_waits_until_they_are_replayed(
        self, advanced: Claim
    ) -> None:
        error, record = LetterError("ValueError", "not a number"), Payload(b"key", b"value", None, None, None)
        with self.store.transaction(advanced) as tx:
            left = tx.lock({P0: OffsetRange(40, 50)})[P0].remaining
            tx.write_letters([NewLetter(P0, offset, "raised", error, 1, None, record) for offset in (41, 42, 43)])
            tx.advance({P0: left})
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
            assert tx.lock_letters(letters)
            tx.settle_letters(letters, {})
            tx.touch()
        assert self.store.delete_group(GROUP, reason=REASON, takeover="fence").open_letters == 0
        assert stored(self.store, OTHER)[P0] == 50

    @pytest.mark.behaviour("OPS-3")
    def test_a_deleted_name_is_unknown_until_a_job_claims_it(self, advanced: Claim) -> None:
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        for decide in (self.store.delete_group, self.store.pause, self.store.resume):
            with pytest.raises(UnknownGroup, match="was deleted"):
                decide(GROUP, reason=REASON)
        with pytest.raises(UnknownGroup):
            self.store.delete_group("nobody", reason=REASON, takeover="fence")
        self.store.claim(GROUP, self.broker, mirror_every=None)
        assert self.store.delete_group(GROUP, reason=REASON, takeover="fence").executed

    @pytest.mark.behaviour("OPS-3")
    def test_a_name_that_was_taken_over_can_be_deleted_but_one_that_was_given_up_can_not(self, advanced: Claim) -> None:
        self.store.rename_group(GROUP, OTHER, reason=REASON)
        with pytest.raises(GroupRenamed):
            self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        self.store.delete_group(OTHER, reason=REASON, takeover="fence")
        with pytest.raises(GroupRenamed):  # its job would read the topics from the beginning
            self.store.claim(GROUP, self.broker, mirror_every=None)
        assert self.store.claim(OTHER, self.broker, mirror_every=None).starting is not None

    @pytest.mark.behaviour("OPS-3")
    def test_a_deleted_name_can_be_given_to_another_group(self, advanced: Claim) -> None:
        other = self.store.claim(OTHER, self.broker, mirror_every=None)
        self.give(other, {P0: OffsetRange(0, 7)})
        self.broker.current = replace(self.broker.current, committed={P0: copied(self.store, advanced, 40)})
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        self.store.rename_group(OTHER, GROUP, reason=REASON)
        started = self.store.claim(GROUP, self.broker, mirror_every=None)
        assert started.starting is not None
        assert started.starting.offsets == {P0: 7, P1: 0, P2: 0}
        with pytest.raises(StaleClaim):
            self.give(advanced, {P0: OffsetRange(7, 9)})

    @pytest.mark.behaviour("TX-11")
    def test_a_delete_is_known_to_whoever_claimed_the_group_before(self, advanced: Claim) -> None:
        session = self.store.database.begin(name="test")
        assert session.deleted_epochs(GROUP) == {}
        session.rollback()
        self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        after = self.store.claim(GROUP, self.broker, mirror_every=None)
        session = self.store.database.begin(name="test")
        try:
            assert session.replaced_since(GROUP, advanced.token.epoch)
            assert not session.replaced_since(GROUP, after.token.epoch)
            epochs = session.deleted_epochs(GROUP)
            assert advanced.token.epoch < epochs[None] == epochs[P0.topic] < after.token.epoch
        finally:
            session.rollback()

    # -- delete what a group has of a topic

    @pytest.fixture
    def two_topics(self) -> Claim:
        """A claim with 40 and 30 of one topic, and 5 of another, each with a letter; Kafka has a copy of each."""
        both = StaticBroker.with_topics({"payments": 3, "refunds": 1}, end=100)
        self.broker.current = both.current
        claim = self.store.claim(GROUP, self.broker, mirror_every=None)
        self.give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30), REFUNDS: OffsetRange(0, 5)})
        copies = {tp: copied(self.store, claim, offset) for tp, offset in ((P0, 40), (P1, 30), (REFUNDS, 5))}
        self.broker.current = replace(self.broker.current, committed=copies)
        with self.store.transaction(claim) as tx:
            left = tx.lock({tp: OffsetRange(at, at + 1) for tp, at in ((P0, 40), (REFUNDS, 5))})
            error = LetterError("ValueError", "not a number")
            ranges = {tp: decision.remaining for tp, decision in left.items()}
            tx.write_letters([NewLetter(tp, one.from_, "raised", error, 1, None, None) for tp, one in ranges.items()])
            tx.advance(ranges)
        return claim

    @pytest.mark.behaviour("OPS-3")
    def test_what_a_group_has_of_a_topic_is_deleted_and_nothing_else(self, two_topics: Claim) -> None:
        self.store.pause(GROUP, reason=REASON)
        with pytest.raises(GroupBusy):
            self.store.delete_group(GROUP, topics=["refunds"], discard_letters=True, reason=REASON)
        with pytest.raises(LettersOpen) as caught:
            self.store.delete_group(GROUP, topics=["refunds"], takeover="fence", reason=REASON)
        assert caught.value.found == 1
        assert "Only a job that reads the topic can replay them" in caught.value.next_step
        before = self.store.offsets(GROUP)
        done = self.store.delete_group(GROUP, topics="refunds", discard_letters=True, takeover="fence", reason=REASON)

        assert done.last_read == ("refunds",)
        assert (done.topics, done.offsets, done.open_letters) == (("refunds",), {REFUNDS: 6}, 1)
        assert stored(self.store) == {P0: 41, P1: 30, P2: 0}
        after = self.store.offsets(GROUP)
        assert {tp: replace(row, token=before[tp].token) for tp, row in after.items()} == {
            tp: row for tp, row in before.items() if tp != REFUNDS
        }
        assert [one.topic_partition for one in self.store.letters(GROUP).letters] == [P0]
        state = self.store.group_state(GROUP)
        assert (state.decision, state.is_live, state.pause is None) == ("delete-topic", False, False)
        [line] = self.store.history(GROUP, events=["delete-topic"])
        assert (line.topic_partition, line.from_offset, line.to_offset) == (REFUNDS, 6, None)
        assert line.reason == f"with 1 open and 0 settled dead letters: {REASON}"
        assert {row.token for row in after.values()} == {line.token}
        with transaction(self.store.database, name="test") as session:
            assert session.replaced_since(GROUP, two_topics.token.epoch)  # an unknown COMMIT stays unknown
        for range_ in ({P1: OffsetRange(30, 31)}, {REFUNDS: OffsetRange(6, 7)}, {}):  # the job brings nothing back
            with pytest.raises(StaleClaim):
                self.give(two_topics, range_)

    @pytest.mark.behaviour("OPS-3", "START-14")
    def test_a_topic_that_was_deleted_is_a_new_one_and_the_others_go_on(self, two_topics: Claim) -> None:
        self.store.delete_group(GROUP, topics=["refunds"], discard_letters=True, takeover="fence", reason=REASON)
        policy = StartPolicy(auto_offset_reset="latest")
        again = self.store.claim(GROUP, self.broker, policy=policy, mirror_every=None)
        assert again.starting is not None
        assert again.starting.offsets == {P0: 41, P1: 30, P2: 0, REFUNDS: 100}

        ahead = {
            **self.broker.current.committed,
            P0: copied(self.store, two_topics, 60),
        }  # a copy of what the database has lost
        self.broker.current = replace(self.broker.current, committed=ahead)
        with pytest.raises(StoreRewound) as caught:
            self.store.claim(GROUP, self.broker, mirror_every=None)
        assert caught.value.topic_partition == P0

    @pytest.mark.behaviour("OPS-3")
    def test_a_group_that_has_no_offsets_has_no_topic_to_delete(self) -> None:
        self.store.claim(GROUP, topics=["refunds"], mirror_every=None).close()
        with pytest.raises(UnknownGroup, match="no offsets of group"):
            self.store.delete_group(GROUP, topics="refunds", reason=REASON)

    # -- the store in another database

    def _set_home(self, home: str | None) -> None:
        with transaction(self.store.database, name="test") as session:
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
            self.store.claim(GROUP, self.broker, mirror_every=None)
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
        assert self.store.claim(GROUP, self.broker, mirror_every=None).token.epoch == advanced.token.epoch + 1

    @pytest.mark.behaviour("START-27")
    def test_a_home_that_is_not_known_is_not_compared(self) -> None:
        self._set_home(None)
        assert not self.store.identity().is_compared
        self.store.claim(GROUP, self.broker, mirror_every=None)
        assert self.store.moved(reason=REASON).identity.is_compared

    @pytest.mark.behaviour("START-27", "START-9")
    def test_a_copy_is_a_store_of_its_own_and_adopts_nothing_of_the_original_s_group_in_kafka(
        self, advanced: Claim
    ) -> None:
        self.store.reset(GROUP, {P1: 10}, reason=REASON)  # pinned, which counts more than other commits
        running = self.store.claim(GROUP, self.broker, mirror_every=None)
        self.store.rename_group(self.store.claim(OTHER, self.broker, mirror_every=None).group, NEW_NAME, reason=REASON)
        of_original = {P0: copied(self.store, advanced, 60), P1: copied(self.store, advanced, 70)}
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
        with pytest.raises(StaleClaim):
            self.give(running, {P0: OffsetRange(40, 41)})
        [line] = self.store.history(GROUP, events=["new-id"])
        assert (line.actor, line.token.epoch) == ("ana", running.token.epoch + 1)
        assert line.reason == (
            f"this database is a copy of store {original}, and is store {after.store_id} now: {REASON}"
        )
        assert self.store.group_state(GROUP).decision == "new-id"
        assert self.store.history(OTHER, events=["new-id"]) == []  # it has no offsets, and no job
        assert len(self.store.history(NEW_NAME, events=["new-id"])) == 1

        for tp in (P0, P1):
            self.broker.current = replace(self.broker.current, committed={tp: of_original[tp]})
            with pytest.raises(ForeignStore):
                self.store.claim(GROUP, self.broker, mirror_every=None)
            self.broker.current = replace(self.broker.current, committed={tp: CommittedOffset(80)})
            with pytest.raises(KafkaGroupContested):
                self.store.claim(GROUP, self.broker, mirror_every=None)
        self.broker.current = replace(self.broker.current, committed={})
        own = self.store.claim(GROUP, self.broker, kafka_group="own", mirror_every=None)
        assert own.starting is not None
        assert own.starting.offsets == {P0: 40, P1: 10, P2: 0}
        assert own.store_id == after.store_id
