"""What is promised about one group, in plain Python: the other half of `test_state_machine`.

Nothing of offsetstore is in here. A record that was processed is a pair in a list, and what is left of a range is
counted off, offset by offset. Claims and decisions are numbered in the order in which they are made; the number stands
for the token, the epoch and the stamp. What an operation leads to is ``DONE``, or the name of an error's class.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

DONE: Final = "done"
KEEP: Final = object()
"""As metadata: what the row has."""

Ranges: TypeAlias = dict[int, tuple[int, int]]
Event: TypeAlias = tuple[str, int | None, int | None, int | None]
"""What was decided: its name, the partition, from, to."""


@dataclass
class Row:
    """One partition's; ``claim`` may write it, ``writer`` is the transaction that advanced it last, 0 for none."""

    next_offset: int
    claim: int
    metadata: object = None
    writer: int = 0
    pinned: bool = False
    decided: int = 0


@dataclass(frozen=True)
class Copy:
    """What Kafka keeps for a partition; ``stamp`` is the claim that copied it, ``None`` for another tool's commit."""

    offset: int
    stamp: int | None


@dataclass(eq=False)
class Claim:
    number: int
    group: str
    sees_kafka: bool
    known: set[int]
    starts: dict[int, int] = field(default_factory=dict[int, int])
    left: bool = False
    fleet: int = 0
    """Of a member: the fleet's number. Its own is negative, and ``known`` are the partitions that it has."""

    @property
    def epoch(self) -> int:
        return self.fleet or self.number


@dataclass(eq=False)
class Work:
    """One open transaction. ``left`` is what its lock has left to be written; ``made`` are the rows that it creates.

    Of the partitions ``behind`` all is in the results already: what is noted with them is of an earlier offset.
    """

    number: int
    claim: Claim
    is_lost: bool = False
    shares_group: bool = False
    left: dict[int, list[int]] | None = None
    behind: set[int] = field(default_factory=set[int])
    before: dict[int, int] = field(default_factory=dict[int, int])
    made: dict[int, int] = field(default_factory=dict[int, int])
    adopted: list[tuple[int, Event]] = field(default_factory=list[tuple[int, Event]])
    is_written: bool = False
    advanced: dict[int, object] = field(default_factory=dict[int, object])

    @property
    def holds_locks(self) -> bool:
        return not self.is_lost and (self.shares_group or bool(self.left))

    @property
    def is_complete(self) -> bool:
        return all(partition in self.advanced for partition, left in (self.left or {}).items() if left)


class Model:
    """One group, under one name after the other, and the log of its topic, which begins at 0 and never ends."""

    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.names = [name]
        self.partitions = partitions
        self.rows: dict[int, Row] = {}
        self.results: list[tuple[int, int]] = []
        self.history: dict[str, list[tuple[int, Event]]] = {name: []}
        self.kafka: dict[tuple[str, int], Copy] = {}
        self.open: list[Work] = []
        self._deleted: dict[str, int] = {}
        self._holders: dict[str, int] = {}
        self._claims: dict[int, Claim] = {}
        self._fleets: dict[int, str] = {}
        self._members: list[Claim] = []
        self._decided = self._begun = self._told = 0

    def rows_of(self, name: str) -> dict[int, Row]:
        return self.rows if name == self.name else {}

    def events(self, name: str) -> list[Event]:
        return [event for _, event in self.history[name]]

    # -- job start and end

    def claim(self, name: str, *, sees_kafka: bool, politely: bool = False) -> Claim | str:
        if politely and (self._is_live(name) or self._has_live_members(name)):
            return "GroupBusy"
        starts = self._starts(name, name, range(self.partitions)) if sees_kafka else {}
        if isinstance(starts, str):
            return starts
        if name != self.name:
            return "GroupRenamed"
        number = self._take(name, starts)
        claim = self._claims[number] = Claim(number, name, sees_kafka, set(self.rows))
        claim.starts = starts
        return claim

    def join(self, name: str, kafka_group: str, *, politely: bool) -> Claim | str:
        if politely and self._is_live(name):
            return "GroupBusy"
        starts = self._starts(name, kafka_group, range(self.partitions))
        if isinstance(starts, str):
            return starts
        if name != self.name:
            return "GroupRenamed"
        fleet = self._holders.get(name, 0)
        if self._fleets.get(fleet) != kafka_group or not self._has_live_members(name):
            fleet = self._take(name, starts)
            self._fleets[fleet] = kafka_group
        self._members.append(member := Claim(-1 - len(self._members), name, sees_kafka=False, known=set(), fleet=fleet))
        return member

    def assign(self, member: Claim, partitions: set[int]) -> dict[int, int] | str:
        member.known -= partitions
        starts = self._starts(member.group, self._fleets[member.fleet], partitions)
        if isinstance(starts, str):
            return starts
        if self.is_stale(member):
            return "StaleClaim"
        self._end_open(partitions)
        for partition, offset in starts.items():
            self._begin_at(member.group, partition, offset, member)
        member.known |= partitions
        return starts

    def release(self, member: Claim, partitions: set[int]) -> None:
        """Give partitions back, which nobody else notices."""
        member.known -= partitions

    def has_fleet(self) -> bool:
        return self._holders.get(self.name, 0) in self._fleets

    def _is_live(self, name: str) -> bool:
        owner = self._claims.get(self._holders.get(name, 0))
        return owner is not None and not owner.left

    def _has_live_members(self, name: str) -> bool:
        return any(one.fleet == self._holders.get(name, 0) and not one.left for one in self._members)

    def _take(self, name: str, starts: dict[int, int]) -> int:
        number = self._decide(name)
        self._tell(name, ("claim", None, None, None))
        for partition, offset in starts.items():
            self._begin_at(name, partition, offset, Claim(number, name, sees_kafka=True, known=set()))
        return number

    def _begin_at(self, name: str, partition: int, offset: int, claim: Claim) -> None:
        row = self.rows.get(partition)
        if row is None or row.next_offset != offset:
            self._tell(name, ("adopt", partition, row.next_offset if row else None, offset))
        row = self.rows.setdefault(partition, Row(offset, claim.number))
        row.claim = claim.number
        row.metadata = row.metadata if row.next_offset == offset else None
        row.next_offset = offset
        if row.pinned:
            row.decided = max(row.decided, claim.epoch)

    def _starts(self, name: str, kafka_group: str, partitions: Iterable[int]) -> dict[int, int] | str:
        starts: dict[int, int] = {}
        for partition in sorted(partitions):
            start = self._start(name, kafka_group, partition)
            if start is None:
                return "StoreRewound"
            starts[partition] = start
        return starts

    def _start(self, name: str, kafka_group: str, partition: int) -> int | None:
        """Where the partition starts; ``None`` if Kafka has a copy of what the database does not have."""
        row, copy = self.rows_of(name).get(partition), self.kafka.get((kafka_group, partition))
        if copy is not None and copy.stamp is not None and copy.stamp <= self._deleted.get(name, 0):
            copy = None
        if copy is None or (row is not None and row.pinned):
            return row.next_offset if row else 0
        if copy.stamp is None:
            return max(copy.offset, row.next_offset if row else 0)
        if row is not None and (copy.offset <= row.next_offset or copy.stamp < row.decided):
            return row.next_offset
        return None

    def is_stale(self, claim: Claim) -> bool:
        return self._holders[claim.group] != claim.epoch

    def leave(self, claim: Claim) -> None:
        """End well: what is stored is copied to Kafka, if it is still this claim's."""
        rows = self.rows_of(claim.group)
        if not claim.left and claim.sees_kafka and all(row.claim == claim.number for row in rows.values()):
            for partition, row in rows.items():
                self.kafka[claim.group, partition] = Copy(row.next_offset, claim.number)
                row.pinned = False
        claim.left = True

    # -- the transaction

    def begin(self, claim: Claim) -> Work:
        self._begun += 1
        self.open.append(work := Work(self._begun, claim))
        return work

    def lock(self, work: Work, ranges: Ranges) -> dict[int, str] | str:
        claim, rows = work.claim, self.rows_of(work.claim.group)
        if work.is_lost:
            return "TransactionLost"
        others = [
            other for other in self.open if other is not work and not other.is_lost and other.claim.group == claim.group
        ]
        unknown = ranges.keys() - claim.known
        if (unknown or not ranges) and (refused := self._refused(claim, unknown)):
            return refused
        work.shares_group = work.shares_group or bool(unknown) or not ranges
        if any(other.made.keys() & unknown or (other.left or {}).keys() & ranges.keys() for other in others):
            return "LockTimeout"
        taken = {tp for tp in ranges if (rows[tp].claim != claim.number if tp in rows else tp not in unknown)}
        if taken:
            return self._refused(claim, taken) or "StaleClaim"
        work.made = {tp: ranges[tp][0] for tp in sorted(unknown - rows.keys())}
        work.adopted = [(self._next_line(), ("adopt", tp, None, offset)) for tp, offset in work.made.items()]
        stored = {tp: rows[tp].next_offset if tp in rows else work.made[tp] for tp in ranges}
        if any(stored[tp] < first for tp, (first, _) in ranges.items()):
            return "OffsetGap"
        work.before = {tp: rows[tp].writer if tp in rows else 0 for tp in ranges}
        work.left = {tp: [offset for offset in range(*ranges[tp]) if offset >= stored[tp]] for tp in ranges}
        work.behind = {tp for tp, left in work.left.items() if not left and ranges[tp] != (stored[tp], stored[tp])}
        return {tp: _outcome(left, ranges[tp]) for tp, left in work.left.items()}

    def _refused(self, claim: Claim, partitions: set[int]) -> str:
        """What becomes of a claim that does not have these partitions, nothing if it may make them."""
        if self.is_stale(claim):
            return "StaleClaim"
        if claim.fleet and partitions:
            claim.known -= partitions
            return "PartitionLost"
        return ""

    def write(self, work: Work) -> str:
        work.is_written = True
        return "TransactionLost" if work.is_lost else DONE

    def advance(self, work: Work, partitions: set[int], metadata: object) -> str:
        work.advanced |= dict.fromkeys(partitions, metadata)
        return "TransactionLost" if work.is_lost else DONE

    def may_commit(self, work: Work) -> str:
        if work.is_lost:
            return "TransactionLost"
        return DONE if work.is_complete else "Unadvanced"

    def commit(self, work: Work) -> None:
        self.open.remove(work)
        left = work.left or {}
        for partition, offset in work.made.items():
            self.rows[partition] = Row(offset, work.claim.number)
        for line in work.adopted:
            insort(self.history[work.claim.group], line)
        if work.is_written:
            self.results += [(partition, offset) for partition, offsets in left.items() for offset in offsets]
        for partition, metadata in work.advanced.items():
            row = self.rows[partition]
            row.next_offset += len(left[partition])
            row.writer = work.number
            row.metadata = row.metadata if metadata is KEEP or partition in work.behind else metadata

    def learn(self, work: Work) -> None:
        """The job was told that it is committed."""
        if not work.claim.fleet:
            work.claim.known |= (work.left or {}).keys()

    def roll_back(self, work: Work) -> None:
        self.open.remove(work)

    def answers(self, work: Work, *, happened: bool) -> set[str]:
        """What may be said once the answer to COMMIT was lost: the truth, while any of the rows can tell it."""
        truth = DONE if happened else "TransactionLost"
        if work.claim.group != self.name or work.claim.epoch < self._deleted.get(self.name, 0):
            return {truth, "CommitUnknown"}
        writers = {tp: self.rows[tp].writer if tp in self.rows else 0 for tp in work.advanced}
        tell = any(writer == (work.number if happened else work.before[tp]) for tp, writer in writers.items())
        return {truth} if tell else {"PartitionLost" if self._have_others_gone_on(work) else "CommitUnknown"}

    def _have_others_gone_on(self, work: Work) -> bool:
        """Whether other members of its fleet have all that it has advanced."""
        claim = work.claim
        if not claim.fleet or self.is_stale(claim):
            return False
        return all(tp in self.rows and self.rows[tp].claim != claim.number for tp in work.advanced)

    def let_go(self, work: Work) -> None:
        """Its member knows that others have what it has advanced."""
        work.claim.known -= work.advanced.keys()

    # -- what an operator decides

    def reset(self, offsets: dict[int, int], *, happens: bool = True) -> str:
        if not offsets.keys() <= self.rows.keys():
            return "ConfigurationError" if self.rows else "UnknownGroup"
        self._end_open()
        if happens:
            number = self._decide(self.name)
            for partition, offset in sorted(offsets.items()):
                row = self.rows[partition]
                self._tell(self.name, ("reset", partition, row.next_offset, offset))
                row.metadata = row.metadata if row.next_offset == offset else None
                row.next_offset, row.pinned, row.decided = offset, True, number
        return DONE

    def rename(self, new: str, *, happens: bool = True) -> str:
        if not self.rows:
            return "UnknownGroup"
        self._end_open()
        if happens:
            number = self._decide(self.name)
            self._holders[new] = number
            self._tell(self.name, ("rename", None, None, None))
            self.name = new
            self.names = [*dict.fromkeys([*self.names, new])]
            self._tell(new, ("rename", None, None, None))
            for partition, row in sorted(self.rows.items()):
                self._tell(new, ("rename", partition, None, row.next_offset))
                row.pinned, row.decided = True, number
        return DONE

    def delete(self, *, happens: bool = True) -> str:
        if not self.rows and self._holders[self.name] == self._deleted.get(self.name):
            return "UnknownGroup"
        self._end_open()
        if happens:
            self._deleted[self.name] = self._decide(self.name)
            self._tell(self.name, ("delete", None, None, None))
            for partition, row in sorted(self.rows.items()):
                self._tell(self.name, ("delete", partition, row.next_offset, None))
            self.rows.clear()
        return DONE

    def _decide(self, name: str) -> int:
        """Give the group and all its rows to a new number."""
        self._end_open()
        self._decided += 1
        self._holders[name] = self._decided
        for row in self.rows.values():
            row.claim = self._decided
        return self._decided

    def _end_open(self, partitions: set[int] | None = None) -> None:
        """Open transactions in the way of a claim, a decision or, in these partitions, a member are terminated."""
        for work in self.open:
            is_in_the_way = partitions is None or not partitions.isdisjoint(work.left or {})
            work.is_lost = work.is_lost or (work.holds_locks and is_in_the_way)

    def _tell(self, name: str, event: Event) -> None:
        self.history.setdefault(name, []).append((self._next_line(), event))

    def _next_line(self) -> int:
        self._told += 1
        return self._told


def _outcome(left: list[int], asked: tuple[int, int]) -> str:
    if not left:
        return "skip"
    return "apply" if left == list(range(*asked)) else "crop"
