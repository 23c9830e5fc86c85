"""How jobs of one group must end, told from the order alone, and what must then be in the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offsetstore import Outcome, TopicPartition
from offsetstore.protocol.replay import decide

if TYPE_CHECKING:
    from tests.faults.interleavings.jobs import Job


@dataclass
class Found:
    """What the database holds for one group.

    ``results`` counts each partition's records by their writers; ``advances`` are from, to and epoch, in order, from
    the table that a trigger keeps.
    """

    results: Counter[tuple[TopicPartition, int, str]]
    stored: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    advances: dict[TopicPartition, list[tuple[int | None, int, int]]] = field(
        default_factory=dict[TopicPartition, "list[tuple[int | None, int, int]]"]
    )


def expected_endings(
    jobs: Mapping[str, Job], known: Sequence[TopicPartition], steps: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """Go through the completed steps as if each transaction were alone from its lock to its commit.

    :param known: the partitions that have a row, at 0.
    """
    owner = "held"
    stored = dict.fromkeys(known, 0)
    endings = dict.fromkeys(jobs, "")
    for name, step in steps:
        job = jobs[name]
        if step == "claim's commit":
            owner = name
            endings[name] = "claimed"
        elif step in {"share group", "lock"} and owner != (name if job.token == "own" else job.token):
            endings[name] = "StaleClaim"
        elif step == ("lock" if "lock" in job.steps else "insert"):
            plan = {tp: decide(stored.get(tp, one.from_), one).outcome for tp, one in sorted(job.ranges.items())}
            done = [*filter(None, [endings[name]]), *(outcome.value for outcome in plan.values())]
            endings[name] = "OffsetGap" if Outcome.GAP in plan.values() else " ".join(done)
        elif step == "commit":
            stored |= {tp: max(stored.get(tp, 0), one.until) for tp, one in job.ranges.items()}
        elif step == "rollback" and job.ends == "rollback" and endings[name] not in {"StaleClaim", "OffsetGap"}:
            endings[name] = "rolled back"
    return endings


def check_database(found: Found, endings: Mapping[str, str]) -> None:
    """Hold the database against what was reported.

    :raises AssertionError: a record twice, missing, or of a job that reported none; advances that are no chain.
    """
    once = {(tp, record): 1 for tp, offset in found.stored.items() for record in range(offset)}
    twice_or_missing = {
        place: count
        for place in once.keys() | {(tp, record) for tp, record, _ in found.results}
        if (count := sum(n for (tp, record, _), n in found.results.items() if (tp, record) == place)) != once.get(place)
    }
    assert not twice_or_missing, f"not each record below {found.stored} once: {twice_or_missing}"
    wrote = {writer for _, _, writer in found.results}
    might = {name for name, ending in endings.items() if {"apply", "crop"} & set(ending.split())}
    assert wrote == might, "results of somebody who reported none, or none of somebody who did"
    assert found.advances.keys() == found.stored.keys()
    for tp, moves in found.advances.items():
        assert [start for start, _, _ in moves] == [None, *(until for _, until, _ in moves[:-1])], f"{tp}: no chain"
        assert moves[-1][1] == found.stored[tp], f"{tp}: ends elsewhere"
        assert [until for _, until, _ in moves] == sorted({until for _, until, _ in moves}), f"{tp}: backwards"
        assert [epoch for _, _, epoch in moves] == sorted(epoch for _, _, epoch in moves), f"{tp}: of a fenced claim"


def check_refused(steps: Sequence[tuple[str, str]], endings: Mapping[str, str]) -> None:
    """Who is refused is refused before its user code gets to write anything.

    :raises AssertionError: naming who.
    """
    for name, ending in endings.items():
        assert ending not in {"StaleClaim", "OffsetGap"} or (name, "write") not in steps, f"{name} was let in"
