"""How records become dead letters.

`Recovery` writes a batch that has records which can't be written. It computes a part carefully, so that the rows of
each record are known, and writes in one transaction the rows of the good records, the letters of the others, and the
offset. If the database refuses that, `discover` finds the bad records, by trial; they are tried again as often as
`DeadLetters` says, and then left out. The real transaction decides: if it refuses what discovery accepted, or if
discovery takes too long, the part is halved, and each half is written like a separate batch.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Never, cast

from offsetstore.errors import (
    ConfigurationError,
    FunctionFailed,
    RecordsRejected,
    RowsRefused,
    SinkError,
    TooManyLetters,
)
from offsetstore.offsets import OffsetRange, TopicPartition, count_offsets, describe
from offsetstore.processing.blame import (
    ALL_REFUSED,
    Found,
    Halve,
    TooManyFailed,
    cut,
    discover,
    now_and_then,
    speaks_for_itself,
)
from offsetstore.processing.dead_letters import (
    DeadLetter,
    DeadLetters,
    Failure,
    Retry,
    Skip,
    as_record,
    cause_of,
    described,
    name_of,
)
from offsetstore.processing.delivery import CarefulPart, Delivery
from offsetstore.processing.outputs import handler_failed
from offsetstore.processing.plan import BatchMetadata, DeliveryPlan, commit_plan, create_rows, read_unless_paused
from offsetstore.processing.unit import (
    Coordinates,
    Failures,
    NewLetters,
    Ranges,
    Stopwatch,
    Stored,
    Unit,
    Written,
    commit,
    only_locks,
    write_all,
)
from offsetstore.protocol.context import propagated
from offsetstore.protocol.events import LettersWritten
from offsetstore.protocol.letters import Cause, Failed, LetterError, NewLetter, Payload, rejected, trace_id
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import chain, dropped, without_frames
from offsetstore.store.claim import Claim
from offsetstore.store.term import may_have_letters
from offsetstore.text import counted

PART: Final = 500_000
"""Offsets of a part: its rows wait in the driver's memory."""

CAREFUL: Final = 20
"""After a bad record, this many batches are computed carefully from the start, so that bad ones don't cost twice."""

# A function that fails for other records each time would be called for ever, as each starts again after a success.
_MOST_RELAPSES: Final = 20

_TRACEBACK: Final = "Traceback (most recent call last):"
_OF_HANDLER: Final = (
    "Look for what they have in common: a changed table, a changed function, a service's new format. Correct the "
    "function, what it returns, or the handler's schema, and start the job again. If these records are bad, return no "
    "row for them."
)
_PLACE: Final = re.compile(r'  File "[^"]*", line \d+, in [\w.<>]+')

_WAITS: Final = LetterError("Sequence", "an earlier record of its key is a dead letter: it is replayed after that")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Dead:
    """A record that is passed over, with a letter; or without one, for the reason ``skipped``."""

    cause: Cause
    error: LetterError
    attempts: int = 0
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class _Ending:
    """The query ends at a record: the strategy stops, or the record may be innocent.

    :param why: what the error says about it.
    :param is_doubtful: whether no other record was accepted, so that the record may be innocent.
    :param decided: the verdicts on other records, including verdicts that only records after this one made possible.
    """

    why: str
    error: RowsRefused
    record: Coordinates
    is_doubtful: bool = False
    decided: Mapping[Coordinates, _Dead] = field(default_factory=dict["Coordinates", _Dead])


class _QueryStopped(Exception):
    """The query ends once everything before a record is written.

    :param before: that record, if it is not the ending's.
    """

    def __init__(self, ending: _Ending, before: Coordinates | None = None) -> None:
        super().__init__(ending.why)
        self.ending = ending
        self.before = before or ending.record


@dataclass(slots=True)
class _Run:
    """A batch that is being written, and what is stored of it, over all of its plans."""

    delivery: Delivery
    stored: Stored
    suspects: dict[Coordinates, FunctionFailed | None] = field(
        default_factory=dict["Coordinates", "FunctionFailed | None"]
    )
    failing: int = 0
    watch: Stopwatch = field(default_factory=Stopwatch)
    letters: int = 0
    ending: _Ending | None = None
    """Why the query ends, while everything before that is written: no new decisions are made there."""


class Recovery:
    """Writes deliveries carefully; belongs to one `Runner`.

    :raises ConfigurationError: the job reads the topic that its letters are produced to.
    """

    def __init__(
        self, claim: Claim, settings: DeadLetters, metadata: BatchMetadata, propagate: Collection[str] = ()
    ) -> None:
        if settings.topic in claim.topics:
            raise ConfigurationError(
                "the job reads the topic that its dead letters are produced to, and would never end",
                found=f"topic {settings.topic}",
                expected="another topic",
            )
        self._claim = claim
        self._settings = settings
        self._metadata = metadata
        self._propagate = propagate
        self._careful = 0
        self._failures: dict[Coordinates, Failed] = {}
        self._has_read = False
        self._refused_in_a_row = 0
        self._open: set[bytes] | None = None
        self._terms = claim.terms
        self._run: _Run | None = None
        """The last batch, unless it has ended: it is being planned again, or has failed."""

    @property
    def has_sequences(self) -> bool:
        return self._settings.sequence is not None

    def is_careful(self, ranges: Ranges) -> bool:
        """Whether a batch may have records to leave out: a recent batch had some, or a record ahead has failed.

        With sequences, also while any record waits.
        """
        self._know_terms()
        terms = self._claim.terms
        has_failed = any(tp in terms and terms[tp].has_failure for tp in ranges)
        if has_failed or self._careful > 0 or self._run is not None or self._open_sequences():
            return True
        # Letters ahead, after a reset: only a careful batch knows whether Kafka has lost the record of one, which is
        # then all that is left of it (decision 0036).
        return bool(self._letters_in(ranges))

    def _know_terms(self) -> None:
        """Forget what was read in other terms: other members of the fleet may have written meanwhile."""
        if self._terms is not self._claim.terms:
            self._terms = self._claim.terms
            self.forget()

    def forget(self) -> None:
        """Forget what was read from the store: a new run of the query may follow a COMMIT whose outcome is unknown."""
        self._open = None
        self._failures, self._has_read = {}, False

    def write(self, delivery: Delivery, stored: Stored) -> Written | None:
        """Write what remains of a delivery; see the module.

        If it raises, the same delivery may be given again; what was ``stored`` of it then counts as written, too.

        :param stored: gets what is stored of the delivery.
        :return: ``None`` if all of it was in the results already.
        :raises TooManyLetters: see `DeadLetters`; the parts before are stored.
        :raises RowsRefused: discovery accepts a single record that the real transaction refuses, or the record may be
            refused for something that any record would meet, or the strategy stops at it. The records before that one
            are then stored.
        :raises PlanOutdated: the stored offsets have changed.
        """
        run, ranges = self._begin(delivery, stored), delivery.ranges
        # A person may have discarded letters meanwhile, so that nothing waits for them any more.
        if self._open:
            self._open = None
        size = count_offsets(ranges)
        try:
            for begin in range(0, size, PART):
                self._write_part(run, cut(ranges, begin, min(size, begin + PART)))
        except Exception as error:
            _hide_texts(error)
            raise
        self._run = None
        if run.failing:
            _log.warning(
                "batch %d: %s could not be computed, and to find each took several tries. It is faster if "
                "transform does not fail and rejects such records with _reject: in Spark by mode PERMISSIVE, try_cast "
                "and other try_ functions, in a consumer by checking values before they are converted",
                run.delivery.number,
                counted(run.failing, "record"),
            )
        return run.stored.written(run.watch.seconds)

    def _begin(self, delivery: Delivery, stored: Stored) -> _Run:
        """Begin a delivery, or go on with it if it is planned again."""
        before = self._run
        if before is None or before.delivery.number != delivery.number:
            self._careful = max(0, self._careful - 1)
            self._run = _Run(delivery, stored)
        else:
            watch, suspects = Stopwatch({**before.watch.seconds}), dict.fromkeys(before.suspects)
            self._run = replace(before, delivery=delivery, stored=stored, watch=watch, suspects=suspects, ending=None)
        return self._run

    def _write_part(self, run: _Run, ranges: Ranges) -> None:
        """Write a part, or its halves, in order."""
        # A stack, with the earlier half on top: halves are written in order.
        waiting = [ranges]
        while waiting:
            part = waiting.pop()
            if (place := self._write_or_cut(run, part)) is not None:
                waiting += [cut(part, place, count_offsets(part)), cut(part, 0, place)]

    def _write_or_cut(self, run: _Run, ranges: Ranges) -> int | None:
        """Write a part; if it can't be written as a whole, return where to cut it."""
        size = count_offsets(ranges)
        try:
            self._write_whole(run, ranges)
        except Halve as halve:
            # Whatever fails before a stop, the error is that of the record at which the query ends (decision 0047).
            if size == 1 and run.ending is not None:
                _end(run)
            if size == 1:
                error = halve.why
                if isinstance(error, RowsRefused):
                    place = f"the only record of {describe(ranges)}"
                    error = error.among(ranges, place, stored=run.stored.ranges, next_step=error.next_step)
                raise error from error.__cause__
            _log.warning("batch %d: %s is cut: %s", run.delivery.number, describe(ranges), without_frames(halve))
            run.suspects.update(halve.suspects)
            return halve.place or size // 2
        except _QueryStopped as stopped:
            run.ending = run.ending or without_frames(stopped).ending
            if before := _up_to(ranges, stopped.before):
                # The error is that of the record at which the query ends, even with too many letters before it.
                with dropped(TooManyLetters):
                    self._write_part(run, before)
            _end(run)
        return None

    def _write_whole(self, run: _Run, ranges: Ranges) -> None:
        plan = DeliveryPlan.of(self._claim, ranges, run.delivery.terms)
        run.watch.lap("plan")
        if not plan.is_worth_computing(self._claim):
            commit_plan(self._claim, plan, Unit(plan.decisions, None, terms=plan.terms), run.watch)
            return
        create_rows(self._claim, plan)
        remaining = plan.remaining()
        # A cut's place is counted in the ranges, so these must be what remains.
        if remaining != ranges:
            self._write_part(run, remaining)
            return
        has_sequences, seconds = self.has_sequences, self._settings.seconds
        dead: dict[int, _Dead] | None = None
        relapses = _Relapses()
        while dead is None:
            suspects = dict.fromkeys(self._known()) | run.suspects
            try:
                careful = run.delivery.careful(
                    remaining, suspects=suspects, has_sequences=has_sequences, seconds=seconds
                )
                with careful as part:
                    run.watch.lap("compute")
                    relapses.see(part)
                    dead = self._pass_uncomputable(run, plan, part)
                    if dead is not None:
                        self._write_without(run, plan, part, dead)
            except TooManyFailed as none:
                raise _too_many(none.error, str(none)) from none.error

    def _pass_uncomputable(self, run: _Run, plan: DeliveryPlan, part: CarefulPart) -> dict[int, _Dead] | None:
        """Pass over the records that can't be computed, after their retries.

        :return: ``None`` if one of them can be computed now, so that all must be computed again.
        """
        decided: Mapping[Coordinates, _Dead] = {} if run.ending is None else run.ending.decided
        dead = {n: decided[record] for n in part.numbers if decided and (record := part.record(n)) in decided}
        failed = {number: error for number, error in part.failed.items() if number not in dead}
        doubtful = [] if part.accepted else [n for n, error in failed.items() if not speaks_for_itself(error)]
        while failed and self._prepare_retry(run, plan, part, failed, dead, doubtful=doubtful):
            waiting = [number for number in failed if number not in dead]
            failed = part.fail_again(waiting)
            if len(failed) < len(waiting):
                return None
        run.failing += len(dead)
        return dead

    def _write_without(self, run: _Run, plan: DeliveryPlan, part: CarefulPart, dead: dict[int, _Dead]) -> None:
        """Write the part without the dead records; rejected and refused records are added to ``dead``."""
        dead |= {number: _Dead(reject.cause, reject.error, reject.attempts) for number, reject in part.rejected.items()}
        misfits = self._claim.read(lambda session: part.misfits(session.connection))
        dead |= {n: _Dead("refused", described(error), 1) for n, error in misfits.items() if n not in dead}
        payloads: dict[int, Payload] = {}
        open_ = self._letters_in(plan.remaining())
        there = set(map(part.record, part.numbers)) if open_ else set[Coordinates]()
        gone = {record: sequence for record, sequence in open_.items() if record not in there}
        is_searched = False
        while True:
            left_out = {**dead, **self._waiting(part, dead, gone)}
            self._check_count(run, part, left_out)
            if self._settings.keep == "all" or self._propagate:
                new = [n for n, record in sorted(left_out.items()) if n not in payloads and record.skipped is None]
                payloads |= part.payloads(new)
            try:
                self._commit(run, plan, part, left_out, payloads, gone=gone)
            except RecordsRejected as named:
                new = _named(part, left_out, without_frames(named))
                _end_before(run, part, new)
                dead |= new
                continue
            except RowsRefused as refused:
                # Discovery accepted these rows, and the real transaction decides (decision 0036).
                if is_searched:
                    raise Halve(refused) from None
                found = self._discover(run, plan, part, left_out, without_frames(refused))
            else:
                return
            is_searched = not self._prepare_retry(run, plan, part, found.dead, dead, doubtful=found.doubtful)

    def _commit(
        self,
        run: _Run,
        plan: DeliveryPlan,
        part: CarefulPart,
        dead: Mapping[int, _Dead],
        payloads: Mapping[int, Payload],
        *,
        gone: Mapping[Coordinates, bytes | None],
    ) -> None:
        """Write the rows of the good records, the letters of the others, and the offset."""
        rows = part.rows_of([number for number in part.numbers if number not in dead])
        remaining = plan.remaining()
        letters, skipped = self._letters(part, dead, payloads)
        texts = self._metadata.texts(run.delivery.number, remaining, rows)

        topic, group = self._settings.topic, self._claim.group
        records = [] if topic is None else [as_record(letter, topic, group) for letter in letters]
        along = [NewLetters(letters, skipped, records)] if dead else []
        unit = Unit(
            plan.decisions,
            rows,
            along,
            metadata=texts,
            terms=plan.terms,
            gone=gone,
            in_sequence=self.has_sequences,
        )
        written = commit_plan(self._claim, plan, unit, run.watch)
        if written is None:
            return
        run.stored.add(remaining, written.rows)
        # Their letters stay open, so later records of these keys wait (decision 0036).
        if waiting_behind := {sequence for sequence in gone.values() if sequence is not None}:
            self._open_sequences().update(waiting_behind)
        if dead:
            self._careful = CAREFUL
        self._refused_in_a_row = 0 if _has_accepted(part, dead) else self._refused_in_a_row + _blamed(dead)
        self._failures = {
            (tp, offset): failed
            for (tp, offset), failed in self._failures.items()
            if tp not in remaining or offset >= remaining[tp].until
        }
        if letters:
            run.letters += len(letters)
            self._open_sequences().update(letter.sequence for letter in letters if letter.sequence is not None)
            causes = Counter(letter.cause for letter in letters)
            self._claim.observers.on(
                LettersWritten(
                    group=self._claim.group, batch=run.delivery.number, ranges=remaining, letters=dict(causes)
                )
            )

    def _letters_in(self, ranges: Ranges) -> Mapping[Coordinates, bytes | None]:
        """The open letters of the ranges, with their sequences. Only a reset can put letters ahead of the job."""
        if not may_have_letters(self._claim.terms, ranges):
            return {}
        return self._claim.read(lambda session: session.letters_in(self._claim.group, ranges))

    def _letters(
        self, part: CarefulPart, dead: Mapping[int, _Dead], payloads: Mapping[int, Payload]
    ) -> tuple[list[NewLetter], dict[Coordinates, str]]:
        letters: list[NewLetter] = []
        skipped: dict[Coordinates, str] = {}
        for number, record in sorted(dead.items()):
            tp, offset = part.record(number)
            if record.skipped is not None:
                skipped[tp, offset] = record.skipped
                continue
            sequence = cast("bytes | None", part.keys.get(number)) if self.has_sequences else None
            payload = payloads.get(number)
            trace = trace_id(propagated(payload.headers, self._propagate)) if payload else None
            kept = payload if self._settings.keep == "all" else None
            letters.append(NewLetter(tp, offset, record.cause, record.error, record.attempts, sequence, kept, trace))
        return letters, skipped

    def _open_sequences(self) -> set[bytes]:
        """The keys with an open letter."""
        if not self.has_sequences:
            return set()
        # Read once for each `write`: only this claim adds to them in its terms, but a person may close some.
        self._know_terms()
        if self._open is None:
            self._open = set(self._claim.read(lambda session: session.open_sequences(self._claim.group)))
        return self._open

    def _waiting(
        self, part: CarefulPart, dead: Mapping[int, _Dead], gone: Mapping[Coordinates, bytes | None]
    ) -> dict[int, _Dead]:
        """The records that wait behind a dead one of their key, in this batch or in an earlier one."""
        if not self.has_sequences:
            return {}
        stopped: set[Hashable] = set(self._open_sequences())
        behind: dict[Hashable, int] = {key: offset for (_, offset), key in sorted(gone.items(), reverse=True)}
        waiting: dict[int, _Dead] = {}
        for number in part.numbers:
            key = part.keys.get(number)
            if key is None:
                continue
            if number in dead:
                if dead[number].skipped is None:
                    stopped.add(key)
            elif key in stopped or (key in behind and behind[key] < part.record(number)[1]):
                waiting[number] = _Dead("sequence", _WAITS)
        return waiting

    def _discover(
        self, run: _Run, plan: DeliveryPlan, part: CarefulPart, dead: Mapping[int, _Dead], refused: RowsRefused
    ) -> Found:
        """Find the bad records among the ones not known to be bad.

        :raises Halve: there was not enough time.
        """
        # A warning only once: a record is tried again several times, and the letters tell what a search has found.
        level = logging.INFO if "search" in run.watch.seconds else logging.WARNING
        _log.log(level, "batch %d: looking for the refused records: %s", run.delivery.number, refused.what)
        numbers = [number for number in part.with_rows if number not in dead]
        known = self._known()
        run.watch.lap("write")
        try:
            return discover(
                self._claim,
                plan.decisions,
                numbers,
                part.keys,
                lambda work, some: write_all(part.rows_of(some), work),
                refused=refused,
                seconds=self._settings.seconds,
                limit=self._settings.limit - run.letters - _count_letters(dead),
                suspects=[number for number in numbers if part.record(number) in known],
                check=now_and_then(lambda: run.delivery.sleep(0)),
                hint=part.hinted,
            )
        except TooManyFailed as why:
            raise _too_many(why.error, str(why), part) from None
        finally:
            run.watch.lap("search")

    def _prepare_retry(
        self,
        run: _Run,
        plan: DeliveryPlan,
        part: CarefulPart,
        found: Mapping[int, RowsRefused],
        dead: dict[int, _Dead],
        *,
        doubtful: Collection[int] = (),
    ) -> bool:
        """Decide about records that have failed; if any are to be tried again, store their attempts, and wait.

        :param dead: gets the records that are not tried again.
        :param doubtful: the records that become no letters: see `Found`.
        :return: whether any are to be tried again.
        :raises _QueryStopped: the query ends at one of the records.
        """
        _end_before(run, part, found)
        failed, waits, ending = self._decide(plan, part, found, dead, doubtful)
        if ending is None and not waits:
            return False
        self._store(plan, failed)
        if ending is not None:
            decided = {part.record(number): verdict for number, verdict in dead.items()}
            raise _QueryStopped(replace(ending, decided=decided))
        failpoints.reach("failures_written")
        run.suspects = dict.fromkeys(run.suspects)  # without their errors: after the wait they may not fail
        run.delivery.sleep(max(waits))
        run.watch.lap("wait")
        read_unless_paused(self._claim)  # raises if the group was paused meanwhile: then it waits, and is planned again
        return True

    def _decide(
        self,
        plan: DeliveryPlan,
        part: CarefulPart,
        found: Mapping[int, RowsRefused],
        dead: dict[int, _Dead],
        doubtful: Collection[int],
    ) -> tuple[dict[Coordinates, Failed], list[float], _Ending | None]:
        """Count an attempt at each record that has failed; add the records that are not tried again to ``dead``.

        :return: the attempts; the seconds to wait for each record that is tried again; and where the query ends, if it
            does.
        """
        before, highest = self._before(plan, {part.record(number) for number in dead})
        failed: dict[Coordinates, Failed] = {}
        waits: list[float] = []
        ending: _Ending | None = None
        for number, error in found.items():
            if isinstance(error, RecordsRejected):  # nothing to try again: a function has rejected the record
                dead |= _named(part, dead, error, only=number)
                continue
            tp, offset = record = part.record(number)
            mine = before.get(record, Failed(0, {}))
            # The partition's attempts add up: a try counts once for it, however many of its records failed.
            attempt = 1 + (mine.attempts if self._settings.independent else highest.get(tp, 0))
            errors = Counter(mine.errors) + Counter([name_of(error)])
            failed[record] = Failed(attempt, dict(errors))
            # A record that fails alone is bad if the process has made rows: with a bug it has not (decision 0099).
            is_doubtful = number in doubtful and not (len(found) == 1 and self._claim.has_made_rows)
            decision = self._settings.decide(Failure(tp, offset, attempt, dict(errors), error))
            match decision:
                case Retry():
                    waits.append(self._claim.retries.wait(attempt) if decision.after is None else decision.after)
                case DeadLetter() if number in doubtful:
                    why = "no other record was accepted after it; the batch is refused at record"
                    ending = ending or _Ending(why, error, record, is_doubtful=is_doubtful)
                case DeadLetter():
                    dead[number] = _Dead(cause_of(error), described(error), errors.total())
                case Skip():
                    dead[number] = _Dead(cause_of(error), described(error), errors.total(), decision.reason)
                case _:
                    ending = ending or _Ending("the strategy stops at record", error, record, is_doubtful=is_doubtful)
        if self._settings.independent:  # what was accepted this time starts again
            known = failed.keys() | {part.record(number) for number in dead}
            remaining = plan.remaining()
            failed |= {
                (tp, offset): Failed(0, earlier.errors)
                for (tp, offset), earlier in before.items()
                if (tp, offset) not in known and offset < remaining[tp].until
            }
        return failed, waits, ending

    def _before(
        self, plan: DeliveryPlan, dead: Collection[Coordinates]
    ) -> tuple[dict[Coordinates, Failed], dict[TopicPartition, int]]:
        """The attempts at records of the plan and beyond; and for each partition, the most at a record of the plan.

        :param dead: records with a verdict, whose attempts don't count for others.
        """
        remaining = plan.remaining()
        before = {
            (tp, offset): failed
            for (tp, offset), failed in self._known().items()
            if tp in remaining and offset >= remaining[tp].from_
        }
        highest: dict[TopicPartition, int] = {}
        for (tp, offset), failed in before.items():
            if offset < remaining[tp].until and (tp, offset) not in dead:
                highest[tp] = max(failed.attempts, highest.get(tp, 0))
        return before, highest

    def _known(self) -> dict[Coordinates, Failed]:
        """The attempts so far, of this run and of earlier ones."""
        self._know_terms()
        if not self._has_read:
            self._failures = self._claim.read(lambda session: session.failures(self._claim.group))
            self._has_read = True
        return self._failures

    def _store(self, plan: DeliveryPlan, failed: Mapping[Coordinates, Failed]) -> None:
        """Write the attempts in a separate transaction: that of the rows was rolled back."""
        at = only_locks({tp: plan.decisions[tp].stored for tp, _ in failed})
        commit(self._claim, Unit(at, along=[Failures(failed)], terms=plan.terms))
        self._failures |= failed

    def _check_count(self, run: _Run, part: CarefulPart, dead: Mapping[int, _Dead]) -> None:
        """Refuse to make letters if it looks like a bug or an outage.

        :raises TooManyLetters: there would be more than the limit, or nothing but letters.
        """
        letters = run.letters + _count_letters(dead)
        if letters > self._settings.limit:
            raise TooManyLetters(
                "a batch has more bad records than the limit",
                found=f"{letters} in batch {run.delivery.number}",
                expected=f"at most {self._settings.limit}",
                next_step=f"{_after_too_many(part)} Or raise limit in DeadLetters(...).",
            )
        # Over all batches: a slow topic would otherwise drain into the letters during an outage (decision 0036).
        in_a_row = self._refused_in_a_row + _blamed(dead)
        # Records without rows are neither accepted nor refused.
        has_accepted = run.ending is not None or _has_accepted(part, dead)
        if _blamed(dead) and in_a_row >= ALL_REFUSED and not has_accepted:
            why = next((reject for reject in part.rejected.values() if reject.cause == "raised"), None)
            failed = None if why is None else handler_failed(why).failed
            raise _too_many(failed, f"all of the last {in_a_row} records were refused", part) from failed


def _too_many(refused: RowsRefused | None, found: str, part: CarefulPart | None = None) -> TooManyLetters:
    what = "so many records were refused that this looks like a bug or an outage, not bad data"
    return TooManyLetters(
        what if refused is None else f"{what}. {refused.what}", found=found, next_step=_after_too_many(part)
    )


def _after_too_many(part: CarefulPart | None) -> str:
    """The next step to show: a handler's function can't reject a record as a transform can."""
    return TooManyLetters.default_next_step if part is None or not part.is_handled else _OF_HANDLER


class _Relapses:
    """Counts how often a part failed because of records that could be computed the time before."""

    def __init__(self) -> None:
        self._before: set[Coordinates] | None = None
        self._count = 0

    def see(self, part: CarefulPart) -> None:
        """Count the records that fail this time.

        :raises SinkError: it was too often.
        """
        failing = {part.record(number) for number in part.failed}
        self._count += self._before is not None and not failing <= self._before
        self._before = failing
        if self._count > _MOST_RELAPSES:
            error = next(iter(part.failed.values()))
            raise SinkError(
                f"the function fails for other records each time, {_MOST_RELAPSES + 1} times so far",
                found=error.what,
                next_step="What it returns must depend on the record alone. If a service fails now and then, have the "
                "function try again itself, or raise Outage.",
            ) from error


def _has_accepted(part: CarefulPart, dead: Collection[int]) -> bool:
    return any(number not in dead for number in part.accepted)


def _count_letters(dead: Mapping[int, _Dead]) -> int:
    return sum(record.skipped is None for record in dead.values())


def _blamed(dead: Mapping[int, _Dead]) -> int:
    """How many records the database refused, or a function failed for. If all were, none of them is to blame."""
    # Rejects don't count: the transform has said what they are (decision 0036).
    return sum(record.cause in {"refused", "raised"} for record in dead.values())


def _named(
    part: CarefulPart, dead: Mapping[int, _Dead], named: RecordsRejected, *, only: int | None = None
) -> dict[int, _Dead]:
    """The records that a function names as dead letters.

    :param only: the only record that the function was given; by default it was given all that are not dead.
    :raises SinkError: the function was not given one of them.
    """
    numbers = [number for number in part.numbers if number not in dead] if only is None else [only]
    by_record = {part.record(number): number for number in numbers}
    for tp, offset in named.reasons.keys() - by_record.keys():
        raise SinkError(
            "work.dead_letter names a record that the function was not given; nothing was written",
            topic_partition=tp,
            found=f"offset {offset}",
            expected="the record of a row",
        )
    return {
        by_record[record]: _Dead("rejected", rejected(reason, named.codes.get(record)))
        for record, reason in named.reasons.items()
    }


def _up_to(ranges: Ranges, record: Coordinates) -> Ranges:
    """What comes before the record, in the order in which records are written."""
    tp, offset = record
    before = {earlier: range_ for earlier, range_ in ranges.items() if earlier < tp}
    return before | ({tp: OffsetRange(ranges[tp].from_, offset)} if offset > ranges[tp].from_ else {})


def _hide_texts(error: Exception) -> None:
    """Keep only the class and the place of what a function raised: its text may quote a record, and logs print it."""
    for failed in [*chain(error)]:
        if isinstance(failed, FunctionFailed):
            failed.traceback = _places(failed.text if failed.traceback is None else failed.traceback)
            failed.text = ""
            failed.__cause__, failed.__suppress_context__ = None, True
            if failed.traceback is not None:
                failed.add_note(failed.traceback)


def _places(trace: str) -> str | None:
    """The files, lines and functions of a traceback; for chained errors, those of the first one."""
    header, *lines = trace.lstrip("\n").splitlines() or [""]
    # They stand before any text of the error. A SyntaxError quotes a line of source, which is a record's if a function
    # parses one, but only after a place without a function.
    places: list[str] = []
    for line in lines:
        is_place = _PLACE.fullmatch(line) is not None
        if not line.startswith(" ") or (line.startswith("  File ") and not is_place):
            break
        places += [line] if is_place else []
    return "\n".join([header, *places]) if header == _TRACEBACK and places else None


def _end_before(run: _Run, part: CarefulPart, new: Collection[int]) -> None:
    """If the query ends later in the batch, end it already before the first record that is refused only now."""
    # It may need a record after the ending, as a child needs its parent: so it gets no verdict (decision 0047).
    if run.ending is not None and new:
        raise _QueryStopped(run.ending, part.record(min(new)))


def _end(run: _Run) -> Never:
    """Raise the error of the record at which the query ends."""
    assert run.ending is not None
    error, (tp, offset) = run.ending.error, run.ending.record
    at = {tp: OffsetRange(offset, offset + 1)}
    place = f"{run.ending.why} {tp}@{offset}"
    ended = error.among(at, place, stored=run.stored.ranges, next_step=error.next_step)
    if isinstance(ended, FunctionFailed):
        ended.is_of_record = not run.ending.is_doubtful
    raise ended from error.__cause__
