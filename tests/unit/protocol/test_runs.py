"""What became of a run, told from what it has recorded and from what came after it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from offsetstore import Token
from offsetstore.protocol.runs import Ending, Run, RunState, RunStatus

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)


def run_of(seen: float, replaced: float | None, ending: Ending | None = None) -> Run:
    """A run whose last heartbeat was so many seconds before it was replaced, which was so many seconds ago."""
    next_at = None if replaced is None else NOW - timedelta(seconds=replaced)
    seen_at = (next_at or NOW) - timedelta(seconds=seen)
    return Run(
        group="billing",
        token=Token(3, UUID(int=3)),
        owner="ana@host:7",
        topics=("payments",),
        versions={},
        started_at=seen_at - timedelta(hours=1),
        seen_at=seen_at,
        ended_at=None if ending is None else seen_at,
        ending=ending,
        next_at=next_at,
        read_at=NOW,
        status=RunStatus(),
    )


@pytest.mark.behaviour("OPS-22")
@pytest.mark.parametrize(
    ("run", "state"),
    [
        pytest.param(run_of(4, None), "live", id="it sends heartbeats"),
        pytest.param(run_of(16, None), "silent", id="it has stopped sending them"),
        pytest.param(run_of(16, 1), "silent", id="it was silent for long when it was replaced"),
        pytest.param(run_of(9, 1), "silent", id="it was killed, and replaced within 15 s"),
        pytest.param(run_of(2, 1), "fenced", id="it was alive, and could not notice yet"),
        pytest.param(run_of(2, 16), "silent", id="it was killed, replaced at once, and never noticed"),
        pytest.param(run_of(-1, 16, "fenced"), "fenced", id="it was alive, and has noticed"),
        pytest.param(run_of(9, 1, "failed"), "failed", id="it has failed before it was replaced"),
    ],
)
def test_a_run_that_was_replaced_was_fenced_only_if_it_was_alive(run: Run, state: RunState) -> None:
    assert run.state == state
