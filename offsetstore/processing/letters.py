"""How records become dead letters.

`Recovery` writes a batch that has records which can't be written. A part of it is computed carefully, so that the rows
of each record are known, and written in one transaction: the rows of the good records, the letters of the others, and
the offset. If the database refuses that, `discover` finds the bad records, by trial; they are tried again as often as
`DeadLetters` says, and then left out. The real transaction decides: if it refuses what discovery has accepted, or
discovery takes too long, the part is halved, and each half is written as if it were a batch of its own.
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
from offsetstore.processing.pause import read_unless_paused
from offsetstore.processing.plan import BatchMetadata, DeliveryPlan, commit_plan, create_rows
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
"""In offsets: the rows of a part wait in the driver's memory."""

CAREFUL: Final = 20
"""After a bad record, this many batches are computed carefully from the start, so that bad ones don't cost twice."""

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
    """A record that is passed over: with a letter, or, with ``skipped``, for that reason without one."""

    cause: Cause
    error: LetterError
    attempts: int = 0
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class _Ending:
    """The query ends at a record: the strategy stops, or the record may be innocent.

    :param why: what the error says of it.
    :param is_doubtful: whether no other record was accepted, so that it may be innocent.
    :param decided: what has become of others, also of those that were told apart only by records after this one.
    """

    why: str
    error: RowsRefused
    record: Coordinates
    is_doubtful: bool = False
    decided: Mapping[Coordinates, _Dead] = field(default_factory=dict["Coordinates", _Dead])


class _QueryStopped(Exception):
    """The query ends once what comes before a record is written.

    :param before: the record, if not that of the ending.
    """

    def __init__(self, ending: _Ending, before: Coordinates | None = None) -> None:
        super().__init__(ending.why)
        self.ending = ending
        self.before = before or ending.record


@dataclass(slots=True)
class _Run:
    """One batch on its way, and what of it is written, in all its plans."""

    delivery: Delivery
    stored: Stored
    suspects: dict[Coordinates, FunctionFailed | None] = field(
        default_factory=dict["Coordinates", "FunctionFailed | None"]
    )
    failing: int = 0
    watch: Stopwatch = field(default_factory=Stopwatch)
    letters: int = 0
    ending: _Ending | None = None
    """Why the query ends, while what comes before is written: nothing is decided there any more."""


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
        """The last batch, if it has not ended: it is planned again, or has failed."""

    @property
    def has_sequences(self) -> bool:
        """Whether later records of a dead one's key wait behind it."""
        return self._settings.sequence is not None

    def is_careful(self, ranges: Ranges) -> bool:
        """Whether a batch may have records to be left out: one of the last had some, or a record ahead has failed.

        With sequences also while any record waits. And if it has letters, after a reset: Kafka may have lost their
        records, and they are then all that is left of them.
        """
        self._know_terms()
        terms = self._claim.terms
        has_failed = any(tp in terms and terms[tp].has_failure for tp in ranges)
        if has_failed or self._careful > 0 or self._run is not None or self._open_sequences():
            return True
        return bool(self._letters_in(ranges))

    def _know_terms(self) -> None:
        """Forget what was read in other terms: other members of the fleet have written meanwhile."""
        if self._terms is not self._claim.terms:
            self._terms = self._claim.terms
            self.forget()

    def forget(self) -> None:
        """Read again what is stored: a new run of the query may follow a COMMIT whose outcome is unknown."""
        self._open = None
        self._failures, self._has_read = {}, False

    def write(self, delivery: Delivery, stored: Stored) -> Written | None:
        """Write what remains of a delivery; see the module.

        If it raises, the same delivery may be given again; what was ``stored`` of it then counts as written too.

        :param stored: what is stored of it is added here.
        :return: ``None`` if all of it was in the results already.
        :raises TooManyLetters: see `DeadLetters`; parts before it are stored.
        :raises RowsRefused: of a single record that discovery accepts and the real transaction refuses, or that may be
            refused for what any record would meet, or because the strategy says so; the records before that one are
            then stored.
        :raises PlanOutdated: the stored offsets have changed.
        """
        run, ranges = self._begin(delivery, stored), delivery.ranges
        if self._open:
            self._open = None  # letters may have been discarded meanwhile
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
        """Begin a delivery, or go on with it."""
        before = self._run
        if before is None or before.delivery.number != delivery.number:
            self._careful = max(0, self._careful - 1)
            self._run = _Run(delivery, stored)
        else:
            watch, suspects = Stopwatch(before.watch.seconds), dict.fromkeys(before.suspects)
            self._run = replace(before, delivery=delivery, stored=stored, watch=watch, suspects=suspects, ending=None)
        return self._run

    def _write_part(self, run: _Run, ranges: Ranges) -> None:
        """Write a part, or its halves, in order."""
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
            if size == 1 and run.ending is not None:
                _end(run)
            if size == 1:
                error = _of_record(halve.why, ranges, run)
                raise error from error.__cause__
            _log.warning("batch %d: %s is cut: %s", run.delivery.number, describe(ranges), without_frames(halve))
            run.suspects.update(halve.suspects)
            return halve.place or size // 2
        except _QueryStopped as stopped:
            run.ending = run.ending or without_frames(stopped).ending
            if before := _up_to(ranges, stopped.before):
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
        if remaining != ranges:  # so that places are those of the ranges
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

        :return: ``None`` if one of them can be now: all are to be computed again.
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
        """Write the part without the dead records, to which are added those that are rejected, or refused."""
        dead |= {number: _Dead(one.cause, one.error, one.attempts) for number, one in part.rejected.items()}
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
                new = [n for n, one in sorted(left_out.items()) if n not in payloads and one.skipped is None]
                payloads |= part.payloads(new)
            try:
                self._commit(run, plan, part, left_out, payloads, gone=gone)
            except RecordsRejected as named:
                new = _named(part, left_out, without_frames(named))
                _end_before(run, part, new)
                dead |= new
                continue
            except RowsRefused as refused:
                if is_searched:  # discovery has accepted these rows
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
        if waiting_behind := {one for one in gone.values() if one is not None}:
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
        """The open letters of the ranges, which only a reset can put ahead."""
        if not may_have_letters(self._claim.terms, ranges):
            return {}
        return self._claim.read(lambda session: session.letters_in(self._claim.group, ranges))

    def _letters(
        self, part: CarefulPart, dead: Mapping[int, _Dead], payloads: Mapping[int, Payload]
    ) -> tuple[list[NewLetter], dict[Coordinates, str]]:
        letters: list[NewLetter] = []
        skipped: dict[Coordinates, str] = {}
        for number, one in sorted(dead.items()):
            tp, offset = part.record(number)
            if one.skipped is not None:
                skipped[tp, offset] = one.skipped
                continue
            sequence = cast("bytes | None", part.keys.get(number)) if self.has_sequences else None
            payload = payloads.get(number)
            trace = trace_id(propagated(payload.headers, self._propagate)) if payload else None
            kept = payload if self._settings.keep == "all" else None
            letters.append(NewLetter(tp, offset, one.cause, one.error, one.attempts, sequence, kept, trace))
        return letters, skipped

    def _open_sequences(self) -> set[bytes]:
        """The keys with an open letter. Only this claim adds to them in its terms; a person may close one."""
        if not self.has_sequences:
            return set()
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
        """Find the bad records among those that are not known to be.

        :raises Halve: there was not enough time.
        """
        # Once: a record is tried again several times, and what a search has found is told with the letters.
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
        """Decide about records that have failed, and wait for those that are to be tried again.

        :param dead: gets the records that are not.
        :param doubtful: the records that become no letters: see `Found`.
        :return: whether any are to be tried again; their attempts are stored.
        :raises _Stopped: the query ends at one of the records.
        """
        _end_before(run, part, found)
        failed, waits, ending = self._decide(plan, part, found, dead, doubtful)
        if ending is None and not waits:
            return False
        self._store(plan, failed)
        if ending is not None:
            raise _QueryStopped(replace(ending, decided={part.record(number): one for number, one in dead.items()}))
        failpoints.reach("failures_written")
        run.suspects = dict.fromkeys(run.suspects)  # after the wait they may not fail
        run.delivery.sleep(max(waits))
        run.watch.lap("wait")
        read_unless_paused(self._claim)  # a group that was paused meanwhile waits, and is planned again
        return True

    def _decide(
        self,
        plan: DeliveryPlan,
        part: CarefulPart,
        found: Mapping[int, RowsRefused],
        dead: dict[int, _Dead],
        doubtful: Collection[int],
    ) -> tuple[dict[Coordinates, Failed], list[float], _Ending | None]:
        """Count an attempt at each record that has failed, and add those to ``dead`` that are not tried again.

        :return: the attempts; the seconds to wait for each record that is tried again; and where the query ends, if so.
        """
        before, highest = self._before(plan, {part.record(number) for number in dead})
        failed: dict[Coordinates, Failed] = {}
        waits: list[float] = []
        ending: _Ending | None = None
        for number, error in found.items():
            if isinstance(error, RecordsRejected):  # nothing to try: a function has said so
                dead |= _named(part, dead, error, only=number)
                continue
            tp, offset = record = part.record(number)
            mine = before.get(record, Failed(0, {}))
            # The partition's attempts add up: a try counts once for it, however many of its records failed.
            attempt = 1 + (mine.attempts if self._settings.independent else highest.get(tp, 0))
            errors = Counter(mine.errors) + Counter([name_of(error)])
            failed[record] = Failed(attempt, dict(errors))
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
                (tp, offset): Failed(0, one.errors)
                for (tp, offset), one in before.items()
                if (tp, offset) not in known and offset < remaining[tp].until
            }
        return failed, waits, ending

    def _before(
        self, plan: DeliveryPlan, dead: Collection[Coordinates]
    ) -> tuple[dict[Coordinates, Failed], dict[TopicPartition, int]]:
        """The attempts at the records from the plan's on, and the most at those of the plan, by partition.

        :param dead: those that are decided about, whose attempts are no others'.
        """
        remaining = plan.remaining()
        before = {
            (tp, offset): one
            for (tp, offset), one in self._known().items()
            if tp in remaining and offset >= remaining[tp].from_
        }
        highest: dict[TopicPartition, int] = {}
        for (tp, offset), one in before.items():
            if offset < remaining[tp].until and (tp, offset) not in dead:
                highest[tp] = max(one.attempts, highest.get(tp, 0))
        return before, highest

    def _known(self) -> dict[Coordinates, Failed]:
        """The attempts so far, of this run and of earlier ones."""
        self._know_terms()
        if not self._has_read:
            self._failures = self._claim.read(lambda session: session.failures(self._claim.group))
            self._has_read = True
        return self._failures

    def _store(self, plan: DeliveryPlan, failed: Mapping[Coordinates, Failed]) -> None:
        """Write the attempts, in a transaction of their own: that of the rows was rolled back."""
        at = only_locks({tp: plan.decisions[tp].stored for tp, _ in failed})
        commit(self._claim, Unit(at, along=[Failures(failed)], terms=plan.terms))
        self._failures |= failed

    def _check_count(self, run: _Run, part: CarefulPart, dead: Mapping[int, _Dead]) -> None:
        """Refuse to make letters of what is a bug or an outage.

        :raises TooManyLetters: there would be more than the limit, or nothing else.
        """
        letters = run.letters + _count_letters(dead)
        if letters > self._settings.limit:
            raise TooManyLetters(
                "a batch has more bad records than the limit",
                found=f"{letters} in batch {run.delivery.number}",
                expected=f"at most {self._settings.limit}",
                next_step=f"{_after_too_many(part)} Or raise limit in DeadLetters(...).",
            )
        in_a_row = self._refused_in_a_row + _blamed(dead)
        # Records without rows are neither accepted nor refused.
        has_accepted = run.ending is not None or _has_accepted(part, dead)
        if _blamed(dead) and in_a_row >= ALL_REFUSED and not has_accepted:
            why = next((one for one in part.rejected.values() if one.cause == "raised"), None)
            failed = None if why is None else handler_failed(why).failed
            raise _too_many(failed, f"all of the last {in_a_row} records were refused", part) from failed


def _too_many(refused: RowsRefused | None, found: str, part: CarefulPart | None = None) -> TooManyLetters:
    what = "so many records were refused that this looks like a bug or an outage, not bad data"
    return TooManyLetters(
        what if refused is None else f"{what}. {refused.what}", found=found, next_step=_after_too_many(part)
    )


def _after_too_many(part: CarefulPart | None) -> str:
    """The next step. A handler's function can't reject a record."""
    return TooManyLetters.default_next_step if part is None or not part.is_handled else _OF_HANDLER


class _Relapses:
    """How often a part could not be computed because of records that could be the time before."""

    def __init__(self) -> None:
        self._before: set[Coordinates] | None = None
        self._count = 0

    def see(self, part: CarefulPart) -> None:
        """Take what fails this time.

        :raises SinkError: too often: if each record begins anew after a success, this need not come to an end.
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
    return sum(one.skipped is None for one in dead.values())


def _blamed(dead: Mapping[int, _Dead]) -> int:
    """How many the database refuses, or a function fails for: if all are, none of them is to blame."""
    return sum(one.cause in {"refused", "raised"} for one in dead.values())


def _named(
    part: CarefulPart, dead: Mapping[int, _Dead], named: RecordsRejected, *, only: int | None = None
) -> dict[int, _Dead]:
    """The records that a function names as dead letters.

    :param only: the one that it was given, if not all that are not dead.
    :raises SinkError: it was not given one of them.
    """
    numbers = [number for number in part.numbers if number not in dead] if only is None else [only]
    given = {part.record(number): number for number in numbers}
    for tp, offset in named.reasons.keys() - given.keys():
        raise SinkError(
            "work.dead_letter names a record that the function was not given; nothing was written",
            topic_partition=tp,
            found=f"offset {offset}",
            expected="the record of a row",
        )
    return {
        given[record]: _Dead("rejected", rejected(reason, named.codes.get(record)))
        for record, reason in named.reasons.items()
    }


def _up_to(ranges: Ranges, record: Coordinates) -> Ranges:
    """What comes before the record, in the order in which records are written."""
    tp, offset = record
    before = {one: range_ for one, range_ in ranges.items() if one < tp}
    return before | ({tp: OffsetRange(ranges[tp].from_, offset)} if offset > ranges[tp].from_ else {})


def _hide_texts(error: Exception) -> None:
    """Leave of what a function has raised its class and its place: its text may quote a record, and logs print it."""
    for one in [*chain(error)]:
        if isinstance(one, FunctionFailed):
            one.traceback = _places(one.text if one.traceback is None else one.traceback)
            one.text = ""
            one.__cause__, one.__suppress_context__ = None, True
            if one.traceback is not None:
                one.add_note(one.traceback)


def _places(told: str) -> str | None:
    """The files, lines and functions of a traceback; of chained errors those of the first.

    They stand before any text of the error. The line of source that a SyntaxError quotes is a record's where a function
    parses one, but that comes after a place without a function.
    """
    header, *lines = told.lstrip("\n").splitlines() or [""]
    places: list[str] = []
    for line in lines:
        is_place = _PLACE.fullmatch(line) is not None
        if not line.startswith(" ") or (line.startswith("  File ") and not is_place):
            break
        places += [line] if is_place else []
    return "\n".join([header, *places]) if header == _TRACEBACK and places else None


def _end_before(run: _Run, part: CarefulPart, new: Collection[int]) -> None:
    """Where the query ends later in the batch: end already before the first record that is refused only now.

    It may need what comes after the other one, as a child needs its parent.
    """
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


def _of_record(why: Exception, ranges: Ranges, run: _Run) -> Exception:
    """The error of the one record that is left."""
    if not isinstance(why, RowsRefused):
        return why
    return why.among(
        ranges, f"the only record of {describe(ranges)}", stored=run.stored.ranges, next_step=why.next_step
    )
