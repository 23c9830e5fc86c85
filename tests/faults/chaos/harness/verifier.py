"""Holds what is in the database against the ledger: the invariants I1 to I8 of the fault list."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from offsetstore.testing.job_process import OutputLine
from tests.faults.chaos.harness.expected import HistoryBroken, Stretch, Totals, entries, stretches
from tests.faults.chaos.harness.ledger import Bad, Entry, Ledger
from tests.faults.chaos.harness.observer import Look
from tests.support.postgres import Database

_MOST = 3
"""Of one kind of violation so many are told."""


@dataclass(slots=True)
class Told:
    """What one job has told, and the group that it worked for."""

    group: str
    way: str
    events: Sequence[OutputLine]


@dataclass(slots=True)
class Verifier:
    """Of one run.

    :param allowed: the kinds of decisions that the run may leave in the history.
    :param before: what was written before the history began, if that was lost.
    :param lost_since: seconds of the shared clock; what was reported before may be gone: the database was restored.
    """

    ledger: Ledger
    database: Database
    looks: Sequence[Look]
    told: Sequence[Told]
    allowed: set[str]
    before: Sequence[Stretch] = ()
    lost_since: float = 0.0
    violations: list[str] = field(default_factory=list[str])
    _totals: Totals = field(init=False)

    def __post_init__(self) -> None:
        self._totals = Totals(self.ledger)

    def verify(self) -> list[str]:
        last = self.looks[-1]
        self._records(last)
        self._payloads()
        self._snapshots()
        self._moves(last)
        self._reports()
        self._decisions(last)
        return self.violations

    def _note(self, invariant: str, found: Iterable[object]) -> None:
        listed = [str(one) for one in found]
        if listed:
            more = f" and {len(listed) - _MOST} more" if len(listed) > _MOST else ""
            self.violations.append(f"{invariant}: {'; '.join(listed[:_MOST])}{more}")

    def _stretches(self, look: Look) -> list[Stretch]:
        stored = {(topic, partition): offset for (_, topic, partition), offset in look.stored.items()}
        return stretches(stored, look.history, self.ledger.generations, self.before)

    def _records(self, last: Look) -> None:
        """I1, I2 and I5, record by record."""
        try:
            expected = entries(self.ledger, self._stretches(last))
        except HistoryBroken as broken:
            self._note("I4", [broken])
            return
        expected -= Counter((*place, bad.entry) for place, bad in self._open(last))
        rows = self.database.rows('SELECT topic, partition, "offset", seq, key, amount FROM landed')
        landed = Counter((row[0], row[1], Entry(*row[2:])) for row in rows)
        self._note("I1", (f"missing {_named(one)}" for one in expected - landed))
        self._note("I2", (f"too often {_named(one)}" for one in landed - expected))
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for (_, _, entry), times in expected.items():
            sums[entry.key][0] += times
            sums[entry.key][1] += times * (entry.amount or 0)
        stored = {row[0]: [row[1], int(row[2] or 0)] for row in self.database.rows("SELECT * FROM sums")}
        self._note(
            "I5",
            (
                f"key {key}: {stored.get(key)} instead of {sums.get(key)}"
                for key in sorted(sums.keys() | stored.keys())
                if sums.get(key) != stored.get(key)
            ),
        )

    def _snapshots(self) -> None:
        """I3, with I1 and I2 of dead letters, and that each note is of its offset: every look."""
        self._note("I3", (found for look in self.looks if (found := self._differs(look))))
        self._note("letters", (found for look in self.looks for found in self._wrong_letters(look)))
        self._note("metadata", (note for look in self.looks for note in look.notes))

    def _differs(self, look: Look) -> str:
        try:
            found = self._stretches(look)
        except HistoryBroken as broken:
            return str(broken)
        wanted: dict[tuple[str, int], tuple[int, int]] = {}
        amounts = 0
        for one in found:
            count, seqs, amount = self._totals.of(one)
            before = wanted.get((one.topic, one.partition), (0, 0))
            if count:
                wanted[one.topic, one.partition] = (before[0] + count, before[1] + seqs)
            amounts += amount
        for place, bad in self._open(look):
            count, seqs = wanted.pop(place, (0, 0))
            if count != 1:
                wanted[place] = (count - 1, seqs - bad.entry.seq)
            amounts -= bad.entry.amount or 0
        if wanted != look.landed:
            return f"stored {look.stored} and records {look.landed}, instead of {wanted}"
        sums = (sum(count for count, _ in wanted.values()), amounts)
        return "" if sums == look.sums else f"stored {look.stored} and sums {look.sums}, instead of {sums}"

    def _bad(self, place: tuple[str, int]) -> dict[int, Bad]:
        topic, partition = place
        return self.ledger.bad.get((topic, self.ledger.generations[topic], partition), {})

    def _open(self, look: Look) -> Iterator[tuple[tuple[str, int], Bad]]:
        """The open letters of records that had to become letters; of others `_wrong_letters` tells."""
        for place, offsets in look.open.items():
            bad = self._bad(place)
            yield from ((place, bad[offset]) for offset in offsets if offset in bad)

    def _wrong_letters(self, look: Look) -> Iterator[str]:
        """The bad records below the stored offset have a letter each, and no others have one, or a failed attempt."""
        stored_at = {(topic, partition): at for (_, topic, partition), at in look.stored.items()}
        had_to = {(topic, partition) for topic, _, partition in self.ledger.bad}
        for place in had_to | look.open.keys() | look.closed.keys() | look.failures.keys():
            stored = stored_at.get(place, 0)
            bad = self._bad(place)
            letters = [*look.open.get(place, ()), *look.closed.get(place, ())]
            passed = sorted(offset for offset in bad if offset < stored)
            named = f"{place[0]}-{place[1]} at {stored}"
            if sorted(letters) != passed:
                missing, too_many = Counter(passed) - Counter(letters), Counter(letters) - Counter(passed)
                yield f"{named} lacks letters of {sorted(missing)}, and has unexpected ones of {sorted(too_many)}"
            failed = look.failures.get(place, ())
            if blamed := [offset for offset in failed if offset not in bad]:
                yield f"{named} has failed attempts at {blamed}, which are good"
            if left := [offset for offset in failed if offset < stored]:
                yield f"{named} has failed attempts at {left}, which it has passed"

    def _payloads(self) -> None:
        """Letters hold what was sent."""
        if not self.ledger.bad:
            return
        rows = self.database.rows("SELECT topic, partition, record_offset, payload, key, value FROM dead_letters")
        wrong: list[str] = []
        for topic, partition, offset, payload, key, value in rows:
            bad = self._bad((topic, partition)).get(offset)
            if bad is not None and (payload, bytes(key or b""), bytes(value or b"")) != ("kept", bad.key, bad.value):
                wrong.append(f"{topic}-{partition}@{offset}: {payload}, {key!r} and {value!r} instead of {bad}")
        self._note("letters", wrong)

    def _moves(self, last: Look) -> None:
        """I4: the trigger's log."""
        moves = self.database.rows(
            "SELECT consumer_group, topic, partition, kind, from_offset, to_offset, advanced, epoch "
            "FROM offset_moves ORDER BY id"
        )
        decided = {(one.group, one.topic, one.partition, one.before, one.after) for one in last.history}
        at: dict[tuple[str, str, int], int | None] = {}
        wrong: list[str] = []
        for group, topic, partition, kind, begin, end, advanced, epoch in moves:
            place = (group, topic, partition)
            told = f"{place} {kind} {begin} -> {end} by epoch {epoch}"
            if place in at and kind == "UPDATE" and at[place] != begin:
                wrong.append(f"{told}, though it was at {at[place]}")
            if kind == "UPDATE" and advanced and end < begin:
                wrong.append(f"{told} advances backwards")
            if not advanced and kind != "DELETE" and begin != end and (*place, begin, end) not in decided:
                wrong.append(f"{told} without a decision")
            at[place] = end
        wrong += [f"{place} is at {at.get(place)} in the log, {offset} in the table"
                  for place, offset in last.stored.items() if at.get(place) != offset]  # fmt: skip
        self._note("I4", wrong)

    def _reports(self) -> None:
        """I6: what jobs have reported committed or failed."""
        moves = self.database.rows(
            "SELECT topic || '-' || partition, from_offset, to_offset, claim_id::text FROM offset_moves WHERE advanced"
        )
        for job in self.told:
            claim_id = ""
            begun: dict[str, Any] = {}
            for event in job.events:
                if event.kind == "claimed":
                    claim_id = event.what["claim_id"]
                elif event.kind == "begun":
                    begun = event.what["ranges"]
                elif event.kind == "done" and event.at > self.lost_since:
                    begun = {}
                    self._note("I6", self._invisible(job.group, event))
                elif event.kind == "failed":
                    if event.what["class_name"] != "CommitUnknown":
                        by_claim = [move[:3] for move in moves if move[3] == claim_id]
                        self._note("I6", _differs_from_report(event, begun, by_claim, job.way))
                    begun = {}

    def _invisible(self, group: str, event: OutputLine) -> list[str]:
        """The ranges of a batch that was reported done, which the first look after that does not show."""
        after = next((look for look in self.looks if look.last > event.at), None)
        if after is None:
            return []
        found: list[str] = []
        for name, (_, until) in event.what["ranges"].items():
            topic, _, partition = name.rpartition("-")
            stored = after.stored.get((group, topic, int(partition)))
            moved = any((one.topic, one.partition) == (topic, int(partition)) and (one.before or 0) >= until
                        for one in after.history)  # fmt: skip
            if (stored is None or stored < until) and not moved:
                found.append(f"{name} was reported written up to {until}, and {stored} is stored")
        return found

    def _decisions(self, last: Look) -> None:
        """Only decisions that this fault may lead to."""
        self._note(
            "decisions",
            (
                f"{one.event} of {one.topic}-{one.partition} from {one.before} to {one.after}"
                for one in last.history
                if not (one.event == "adopt" and one.before is None) and one.event not in self.allowed
            ),
        )


def _named(found: tuple[str, int, Entry]) -> str:
    topic, partition, entry = found
    return f"{topic}-{partition}@{entry.offset} (record {entry.seq})"


def _differs_from_report(
    event: OutputLine, begun: dict[str, Any], moves: Sequence[tuple[str, int, int]], way: str
) -> Iterator[str]:
    """What a failed batch has advanced without saying so, and what it says it has stored, and has not.

    What was refused is written in halves: of a partition, several moves follow one another. Of single partitions, each
    in a transaction of its own, those that did not fail are advanced too.
    """
    stored = {tp: tuple(range_) for tp, range_ in event.what.get("stored", {}).items()}
    advanced: dict[str, tuple[int, int]] = {}
    for tp, begin, end in moves:
        if tp in begun and begun[tp][0] < end <= begun[tp][1]:
            advanced[tp] = (advanced.get(tp, (begin, end))[0], end)
    for tp, (begin, end) in advanced.items():
        if way != "partition" and stored.get(tp) != (begin, end):
            yield f"{tp} {begin} -> {end} was reported failed ({event.what['class_name']}), and advanced"
    for tp, (begin, end) in stored.items():
        if advanced.get(tp) != (begin, end):
            yield f"{tp} {begin} -> {end} was reported stored, and did not advance"
