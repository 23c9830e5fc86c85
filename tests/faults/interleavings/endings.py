"""How jobs of one group must end, told from the order alone, and what must then be in the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from offsetstore import Outcome, TopicPartition
from offsetstore.protocol.replay import decide

if TYPE_CHECKING:
    from tests.faults.interleavings.jobs import Job


REFUSED: Final = ("StaleClaim", "PartitionLost", "OffsetGap")


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
    jobs: Mapping[str, Job],
    known: Sequence[TopicPartition],
    steps: Sequence[tuple[str, str]],
    lost: Collection[str] = (),
) -> dict[str, str]:
    """Go through the completed steps as if each transaction were alone from its lock to its commit.

    :param known: the partitions that have a row, at 0.
    :param lost: jobs that have lost their partitions, where that can't be told from the steps.
    """
    owner = "held"
    fleet = _Fleet(dict.fromkeys(known, "a")) if any(job.member for job in jobs.values()) else None
    stored = dict.fromkeys(known, 0)
    endings = dict.fromkeys(jobs, "")
    for name, step in steps:
        job = jobs[name]
        if job.joins or step == "claim's commit":
            takes_over = step in {"claim's commit", "join's write tokens"}
            owner, fleet = (name, None) if takes_over else (owner, fleet)
            endings[name] = "joined" if job.joins else "claimed"
        elif step == "lock" and name in lost:
            endings[name] = "PartitionLost"
        elif job.member and (ending := _of_member(job, step, fleet)):
            endings[name] = ending
            stored |= {tp: stored.get(tp, 0) for tp in job.takes if ending == "took"}
        elif (
            step in {"share group", "lock"} and not job.member and owner != (name if job.token == "own" else job.token)
        ):
            endings[name] = "StaleClaim"
        elif step == ("lock" if "lock" in job.steps else "insert"):
            plan = {tp: decide(stored.get(tp, one.from_), one).outcome for tp, one in sorted(job.ranges.items())}
            done = [*filter(None, [endings[name]]), *(outcome.value for outcome in plan.values())]
            endings[name] = "OffsetGap" if Outcome.GAP in plan.values() else " ".join(done)
        elif step == "commit":
            stored |= {tp: max(stored.get(tp, 0), one.until) for tp, one in job.ranges.items()}
        elif step == "rollback" and job.ends == "rollback" and endings[name] not in REFUSED:
            endings[name] = "rolled back"
    return endings


@dataclass
class _Fleet:
    """Who took each partition last, and what each member has given back."""

    takers: dict[TopicPartition, str]
    released: set[tuple[str, TopicPartition]] = field(default_factory=set[tuple[str, TopicPartition]])


def _of_member(job: Job, step: str, fleet: _Fleet | None) -> str:
    """What a step of a member leads to, nothing if it is as for any job; without a fleet it was fenced."""
    taken = {(job.member, tp) for tp in job.takes}
    if fleet is None:
        return "StaleClaim" if step in {"assign's share group", "assign's insert", "lock"} else ""
    if step == "release":
        fleet.released |= taken
    elif step == "assign's commit":
        fleet.takers |= {tp: member for member, tp in taken}
        fleet.released -= taken
        return "took"
    elif step in {"begin", "lock"}:
        lost = {tp for tp in job.ranges if (job.member, tp) in fleet.released}
        lost |= {tp for tp in job.ranges if step == "lock" and fleet.takers[tp] != job.member}
        return "PartitionLost" if lost else ""
    return ""


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
        assert ending not in REFUSED or (name, "write") not in steps, f"{name} was let in"
