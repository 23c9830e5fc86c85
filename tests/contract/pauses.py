"""A group is paused and resumed, and its job keeps its claim. See `tests.contract.suite`."""
# ruff: noqa: ARG002 - these are tests: the name is the docstring, fixtures are asked for by their effects

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from offsetstore.errors import ConfigurationError, GroupRenamed
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import OffsetRange, Pause
from offsetstore.protocol.database import GroupRow
from offsetstore.store.claim import Claim
from tests.contract.parts import GROUP, P0, P1, WAIT, ContractParts

OTHER = "invoicing"
REASON = "ticket 17"
LATER = timedelta(hours=1)


def paused(store: OffsetStore, group: str = GROUP) -> Pause | None:
    """The group's pause."""
    return store.group_state(group).pause


class PauseContract(ContractParts):
    """Pause and resume, and what the history says."""

    @pytest.fixture
    def running(self) -> Claim:
        """A claim with 40 stored, which copies nothing to Kafka."""
        claim = self.store.claim(GROUP, self.broker, mirror_every=None)
        self.give(claim, {P0: OffsetRange(0, 40)})
        return claim

    @pytest.mark.behaviour("OPS-2")
    def test_a_pause_is_there_until_the_group_is_resumed_and_the_history_has_both(self, running: Claim) -> None:
        assert paused(self.store) is None
        pause = self.store.pause(GROUP, reason=REASON, actor="ana").after
        assert pause is not None
        assert paused(self.store) == pause == Pause(pause.at, None, REASON)
        assert abs(datetime.now(UTC) - pause.at) < timedelta(seconds=60)

        ended = self.store.resume(GROUP, reason="done", actor="bo")
        assert (ended.before, ended.after, ended.executed) == (pause, None, True)
        assert paused(self.store) is None
        lines = self.store.history(GROUP)[-2:]
        assert (replace(lines[-1], at=None, db_role=None),) == ended.history
        assert [(line.event, line.actor, line.reason) for line in lines] == [
            ("pause", "ana", REASON),
            ("resume", "bo", "done"),
        ]
        assert {(line.topic_partition, line.from_offset, line.to_offset, line.token) for line in lines} == {
            (None, None, None, running.token)
        }

    @pytest.mark.behaviour("OPS-2")
    def test_a_pause_ends_by_itself_at_the_time_that_it_names(self, running: Claim) -> None:
        until = datetime.now(UTC) + timedelta(seconds=3)
        pause = self.store.pause(GROUP, until=until, reason=REASON).after
        assert pause is not None
        assert paused(self.store) == pause
        assert pause.until == until
        assert self.store.history(GROUP)[-1].reason == f"until {until.isoformat()}: {REASON}"

        end = time.monotonic() + WAIT
        while paused(self.store) is not None and time.monotonic() < end:
            time.sleep(0.05)
        assert paused(self.store) is None
        assert datetime.now(UTC) >= until
        assert self.store.resume(GROUP, reason="done").before is None

        self.store.pause(GROUP, reason="ticket 18", actor="bo")
        first, ended, second = self.store.history(GROUP)[-3:]
        assert [line.event for line in (first, ended, second)] == ["pause", "resume", "pause"]
        assert (ended.actor, second.reason) == ("bo", "ticket 18")
        assert ended.reason.startswith("ended by itself: paused since ")
        assert ended.reason.endswith(f": {REASON}")

    @pytest.mark.behaviour("OPS-2")
    def test_a_pause_fences_nobody_and_is_read_with_the_rows(self, running: Claim) -> None:
        pause = self.store.pause(GROUP, reason=REASON).after

        def both() -> GroupRow:
            owner, rows = running.read(lambda session: session.read_group(GROUP))
            assert owner is not None
            assert rows == self.store.offsets(GROUP)
            assert {row.token for row in rows.values()} == {owner.token} == {running.token}
            return owner

        assert both().pause == pause
        assert both().is_live
        self.give(running, {P0: OffsetRange(40, 50)})
        self.store.resume(GROUP, reason=REASON)
        assert both().pause is None
        self.give(running, {P0: OffsetRange(50, 60)})

    # -- the history

    @pytest.mark.behaviour("OPS-1")
    def test_the_history_is_read_in_part(self, running: Claim) -> None:
        for number in range(3):
            self.store.pause(GROUP, reason=f"pause {number}")
            self.store.resume(GROUP, reason=f"resume {number}")
        lines = self.store.history(GROUP)

        assert self.store.history(GROUP, limit=2) == lines[-2:]
        assert self.store.history(GROUP, limit=100) == lines
        assert [line.reason for line in self.store.history(GROUP, events=["pause"], limit=2)] == ["pause 1", "pause 2"]
        assert self.store.history(GROUP, events=["pause", "resume"]) == lines[-6:]
        assert self.store.history(GROUP, since=lines[-3].at) == lines[-3:]
        assert self.store.history(GROUP, since=datetime.now(UTC) + LATER) == []
        assert (
            self.store.history(GROUP, topic_partition=P1)
            == [line for line in lines if line.topic_partition == P1]
            != []
        )
        assert self.store.history(GROUP, topic_partition=P1, events=["pause"]) == []
        ids = [line.id for line in lines]
        assert ids == sorted(set(ids))
        assert self.store.history(GROUP, before=ids[0]) == []
        assert self.store.history(GROUP, before=ids[-2]) == lines[:-2]
        assert self.store.history(GROUP, before=ids[-2], limit=2) == lines[-4:-2]
        assert self.store.history(GROUP, events=["resume"], before=ids[-1] + 1) == self.store.history(
            GROUP, events=["resume"]
        )

    def test_the_history_is_followed(self, running: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("offsetstore.operations.reads._INTERVAL", 0.05)
        self.store.pause(GROUP, reason="0")
        following = self.store.follow_history(GROUP, events=["pause", "resume"], limit=1)
        assert next(following).reason == "0"
        for number in range(1, 6):
            (self.store.resume if number % 2 else self.store.pause)(GROUP, reason=f"{number}")
            self.store.write_metadata(GROUP, P0, number, reason="not asked for")
            assert next(following).reason == f"{number}"

    @pytest.mark.parametrize(
        ("chosen", "what"),
        [
            pytest.param({"since": datetime(2026, 1, 1)}, "without a zone", id="no zone"),  # noqa: DTZ001
            pytest.param({"events": ["pauze"]}, "no such events; found pauze", id="unknown event"),
            pytest.param({"limit": 0}, "1 or more", id="limit"),
        ],
    )
    def test_a_part_of_the_history_that_is_none_is_refused(self, chosen: dict[str, Any], what: str) -> None:
        for read in (self.store.history, self.store.follow_history):
            with pytest.raises(ConfigurationError, match=what):
                read(GROUP, **chosen)

    # -- what is refused


class PeoplePauseContract(PauseContract):
    """With what only people ask, which a store in memory does not have."""

    @pytest.mark.behaviour("OPS-2")
    @pytest.mark.parametrize("decide", ["rename", "delete"])
    def test_a_pause_that_has_ended_by_itself_is_in_the_history_of_a_group_that_goes(
        self, running: Claim, decide: str
    ) -> None:
        self.store.pause(GROUP, until=datetime.now(UTC) + timedelta(seconds=2), reason=REASON)
        end = time.monotonic() + WAIT
        while paused(self.store) is not None and time.monotonic() < end:
            time.sleep(0.05)
        if decide == "rename":
            self.store.rename_group(GROUP, OTHER, reason=REASON)
        else:
            self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        events = [line.event for line in self.store.history(GROUP) if line.topic_partition is None]
        assert events[-3:] == ["pause", "resume", decide]

    @pytest.mark.behaviour("OPS-2")
    def test_a_claim_and_a_reset_keep_the_pause_and_a_rename_takes_it_along(self, running: Claim) -> None:
        pause = self.store.pause(GROUP, reason=REASON).after
        running.close()
        self.store.claim(GROUP, self.broker, mirror_every=None).close()
        assert paused(self.store) == pause
        self.store.reset(GROUP, {P0: 10}, reason=REASON)
        assert paused(self.store) == pause
        self.store.rename_group(GROUP, OTHER, reason=REASON)
        assert (paused(self.store), paused(self.store, OTHER)) == (None, pause)
        self.store.rename_group(OTHER, GROUP, reason=REASON)
        assert (paused(self.store), paused(self.store, OTHER)) == (pause, None)

    def test_a_pause_hides_no_reset_and_no_rename(self, running: Claim) -> None:
        self.store.reset(GROUP, {P0: 10}, reason=REASON)
        self.store.pause(GROUP, reason=REASON)
        assert self.store.group_state(GROUP).decision == "reset"
        self.store.rename_group(GROUP, OTHER, reason=REASON)
        self.store.resume(OTHER, reason=REASON)
        assert self.store.group_state(OTHER).decision == "rename"
        with pytest.raises(GroupRenamed, match=OTHER):
            self.store.claim(GROUP, self.broker, mirror_every=None)
        for decide in (self.store.pause, self.store.resume):
            with pytest.raises(GroupRenamed, match=OTHER):
                decide(GROUP, reason=REASON)
