"""Runs and their errors in memory: the part of a `MemorySession` that implements `RunSession`."""

# ruff: noqa: D102 - the Protocol says what the methods do

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime

from offsetstore.offsets import Token
from offsetstore.protocol.database import GroupRow
from offsetstore.protocol.letters import writable
from offsetstore.protocol.runs import Ending, JobError, NewRun, Run, RunStatus


@dataclass(slots=True)
class RunContents:
    """Both tables. ``trimmed`` is how many of each were to be kept, by group, when a transaction trimmed them."""

    runs: dict[tuple[str, int], Run] = field(default_factory=dict[tuple[str, int], Run])
    errors: list[tuple[str, JobError]] = field(default_factory=list[tuple[str, JobError]])
    trimmed: dict[str, int] = field(default_factory=dict[str, int])

    def apply(self, changes: RunContents) -> None:
        """Take over what a transaction wrote."""
        self.runs |= changes.runs
        self.errors += changes.errors
        for group, keep in changes.trimmed.items():
            for epoch in sorted(epoch for name, epoch in self.runs if name == group)[:-keep]:
                del self.runs[group, epoch]
            of_group = [one for one in self.errors if one[0] == group]
            self.errors = [one for one in self.errors if one[0] != group] + of_group[-keep:]

    def copy(self) -> RunContents:
        """As it is now."""
        return RunContents(dict(self.runs), [*self.errors], dict(self.trimmed))


class RunMemory:
    """See the module. A session gives it its own changes, what is committed, and its clock."""

    _statement: Callable[[], AbstractContextManager[object]]
    group: Callable[[str], GroupRow | None]

    def __init__(
        self, committed: RunContents, changes: Callable[[], RunContents], clock: Callable[[], datetime]
    ) -> None:
        self._committed_runs = committed
        self._changed_runs = changes
        self._run_clock = clock

    def begin_run(self, group: str, token: Token, run: NewRun) -> None:
        with self._statement():
            now = self._run_clock()
            self._changed_runs().runs[group, token.epoch] = Run(
                group=group,
                token=token,
                owner=run.owner,
                topics=run.topics,
                versions=run.versions,
                started_at=now,
                seen_at=now,
                ended_at=None,
                ending=None,
                next_at=None,
                read_at=now,
                status=RunStatus(),
            )

    def write_run(self, group: str, token: Token, status: RunStatus, ending: Ending | None) -> None:
        with self._statement():
            run = self._all_runs().get((group, token.epoch))
            if run is None or run.token != token:
                return
            now = self._run_clock()
            ended = None if ending is None else run.ended_at or now
            self._changed_runs().runs[group, token.epoch] = replace(
                run, seen_at=now, ended_at=ended, ending=ending, read_at=now, status=status
            )

    def append_errors(self, group: str, token: Token, errors: Sequence[JobError]) -> None:
        with self._statement():
            now = self._run_clock()
            self._changed_runs().errors += [
                (group, replace(one, text=one.text and writable(one.text), epoch=token.epoch, at=now)) for one in errors
            ]

    def trim_runs(self, group: str, keep: int) -> None:
        with self._statement():
            self._changed_runs().trimmed[group] = keep

    def _all_runs(self) -> dict[tuple[str, int], Run]:
        return self._committed_runs.runs | self._changed_runs().runs
