"""A group is paused and resumed, and its job keeps its claim. See `tests.contract.suite`."""
# ruff: noqa: ARG002 - these are tests: the name is the docstring, fixtures are asked for by their effects

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from offsetstore.errors import ConfigurationError, GroupRenamed
from offsetstore.offsets import OffsetRange, Pause
from offsetstore.protocol.database import GroupRow
from offsetstore.store.claim import Claim
from tests.contract.parts import GROUP, P0, P1, ContractParts

OTHER = "invoicing"
REASON = "ticket 17"
LATER = timedelta(hours=1)


class PauseContract(ContractParts):
    """Pause and resume, and what the history says."""

    @pytest.fixture
    def running(self) -> Claim:
        """A claim with 40 stored, which copies nothing to Kafka."""
        claim = self.again()
        self.give(claim, {P0: OffsetRange(0, 40)})
        return claim

    def paused(self, group: str = GROUP) -> Pause | None:
        """The group's pause."""
        return self.owner(group).pause

    def pause_that_has_ended(self) -> None:
        with self.session() as earlier:
            earlier.lock_group(GROUP)
            earlier.write_pause(GROUP, Pause(earlier.now() - LATER, earlier.now(), REASON))
        assert self.paused() is None

    @pytest.mark.behaviour("OPS-2")
    def test_a_pause_is_there_until_the_group_is_resumed_and_the_history_has_both(self, running: Claim) -> None:
        assert self.paused() is None
        pause = self.store.pause(GROUP, reason=REASON, actor="ana").after
        assert pause is not None
        assert self.paused() == pause == Pause(pause.at, None, REASON)
        assert abs(datetime.now(UTC) - pause.at) < timedelta(seconds=60)

        ended = self.store.resume(GROUP, reason="done", actor="bo")
        assert (ended.before, ended.after, ended.executed) == (pause, None, True)
        assert self.paused() is None
        lines = self.store.history(GROUP)[-2:]
        assert (replace(lines[-1], at=None, db_role=None),) == ended.history
        of_group = (None, None, None, running.token)
        assert [
            (line.event, line.actor, line.reason, line.topic_partition, line.from_offset, line.to_offset, line.token)
            for line in lines
        ] == [("pause", "ana", REASON, *of_group), ("resume", "bo", "done", *of_group)]

    @pytest.mark.behaviour("OPS-2")
    def test_a_pause_ends_by_itself_at_the_time_that_it_names(self, running: Claim) -> None:
        until = datetime.now(UTC) + LATER
        assert self.store.pause(GROUP, until=until, reason=REASON).after == self.paused()
        assert (pause := self.paused()) is not None
        assert pause.until == until
        assert self.store.history(GROUP)[-1].reason == f"until {until.isoformat()}: {REASON}"

        self.pause_that_has_ended()
        assert self.store.resume(GROUP, reason="done").before is None
        self.pause_that_has_ended()
        self.store.pause(GROUP, reason="ticket 18", actor="bo")
        ended, second = self.store.history(GROUP)[-2:]
        assert (ended.event, ended.actor, second.event, second.reason) == ("resume", "bo", "pause", "ticket 18")
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
        history = self.store.history
        for number in range(3):
            self.store.pause(GROUP, reason=f"pause {number}")
            self.store.resume(GROUP, reason=f"resume {number}")
        lines = history(GROUP)

        assert history(GROUP, limit=2) == lines[-2:]
        assert history(GROUP, limit=100) == lines
        assert [line.reason for line in history(GROUP, events=["pause"], limit=2)] == ["pause 1", "pause 2"]
        assert history(GROUP, events=["pause", "resume"]) == lines[-6:]
        assert history(GROUP, since=lines[-3].at) == lines[-3:]
        assert history(GROUP, since=datetime.now(UTC) + LATER) == []
        of_p1 = [line for line in lines if line.topic_partition == P1]
        assert history(GROUP, topic_partition=P1) == of_p1 != []
        assert history(GROUP, topic_partition=P1, events=["pause"]) == []
        ids = [line.id for line in lines]
        assert ids == sorted(set(ids))
        assert history(GROUP, before=ids[0]) == []
        assert history(GROUP, before=ids[-2]) == lines[:-2]
        assert history(GROUP, before=ids[-2], limit=2) == lines[-4:-2]
        assert history(GROUP, events=["resume"], before=ids[-1] + 1) == history(GROUP, events=["resume"])

    def test_the_history_is_followed(self, running: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("offsetstore.operations.people._INTERVAL", 0.05)
        self.store.pause(GROUP, reason="0")
        following = self.store.follow_history(GROUP, events=["pause", "resume"], limit=1)
        assert next(following).reason == "0"
        for number in range(1, 4):
            (self.store.resume if number % 2 else self.store.pause)(GROUP, reason=f"{number}")
            self.store.write_metadata(GROUP, P0, number, reason="not asked for")
            assert next(following).reason == f"{number}"

    def test_a_part_of_the_history_that_is_none_is_refused(self) -> None:
        refused: dict[str, dict[str, Any]] = {
            "without a zone": {"since": datetime(2026, 1, 1)},  # noqa: DTZ001
            "no such events; found pauze": {"events": ["pauze"]},
            "1 or more": {"limit": 0},
        }
        for what, chosen in refused.items():
            for read in (self.store.history, self.store.follow_history):
                with pytest.raises(ConfigurationError, match=what):
                    read(GROUP, **chosen)


class PeoplePauseContract(PauseContract):
    """With what only people ask, which a store in memory does not have."""

    @pytest.mark.behaviour("OPS-2")
    @pytest.mark.parametrize("decide", ["rename", "delete"])
    def test_a_pause_that_has_ended_by_itself_is_in_the_history_of_a_group_that_goes(
        self, running: Claim, decide: str
    ) -> None:
        self.pause_that_has_ended()
        if decide == "rename":
            self.store.rename_group(GROUP, OTHER, reason=REASON)
        else:
            self.store.delete_group(GROUP, reason=REASON, takeover="fence")
        events = [line.event for line in self.store.history(GROUP) if line.topic_partition is None]
        assert events[-2:] == ["resume", decide]

    @pytest.mark.behaviour("OPS-2")
    def test_a_claim_and_a_reset_keep_the_pause_and_a_rename_takes_it_along(self, running: Claim) -> None:
        pause = self.store.pause(GROUP, reason=REASON).after
        running.close()
        self.again().close()
        assert self.paused() == pause
        self.store.reset(GROUP, {P0: 10}, reason=REASON)
        assert (self.paused(), self.group_state().decision) == (pause, "reset")
        self.store.rename_group(GROUP, OTHER, reason=REASON)
        assert (self.paused(), self.paused(OTHER)) == (None, pause)
        self.store.resume(OTHER, reason=REASON)
        assert self.group_state(OTHER).decision == "rename", "a pause hides it not"
        for decide in (self.store.pause, self.store.resume):
            with pytest.raises(GroupRenamed, match=OTHER):
                decide(GROUP, reason=REASON)
        with pytest.raises(GroupRenamed, match=OTHER):
            self.again()
