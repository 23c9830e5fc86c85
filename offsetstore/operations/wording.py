"""Plans in words: what a decision would do, or has done, as the command line and the dashboard's pages print it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from offsetstore.errors import NextStep
from offsetstore.offsets import Suspect, TopicPartition
from offsetstore.operations.home import StoreDecided
from offsetstore.operations.letters import LettersDecided, LettersPruned
from offsetstore.operations.names import DeletedGroup, NewName
from offsetstore.operations.operation import OwnedPlan, Plan
from offsetstore.operations.outbox import RefusedDecided
from offsetstore.operations.pauses import PauseDecided
from offsetstore.operations.resets import Reset
from offsetstore.protocol.database import GroupRow
from offsetstore.text import counted, documentation, visible

_RESTART: Final = "its supervisor may not do so after a job was fenced"
_SHOWN: Final = 20  # letters, and partitions whose log lost records


@dataclass(frozen=True, slots=True)
class Note:
    """A remark on a plan; a warning is about results that can be lost or written twice."""

    text: str
    is_warning: bool = False


def _warning(text: str) -> Note:
    return Note(text, is_warning=True)


@dataclass(frozen=True, slots=True)
class PlanInWords:
    """A plan for people.

    :param outcome: what the plan would do, or has done, in one sentence.
    :param columns: of ``rows``; a column of numbers is ``#name``.
    :param left_out: how many more rows the plan has.
    :param step: what has to be done before the plan can be carried out.
    """

    outcome: str
    notes: Sequence[Note] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = field(default=(), repr=False)
    left_out: int = 0
    step: NextStep | None = None


def in_words(plan: Plan) -> PlanInWords:
    """Say what the plan would do, or has done."""
    match plan:
        case Reset():
            words = _reset(plan)
        case NewName():
            words = _new_name(plan)
        case DeletedGroup():
            words = _deleted(plan)
        case PauseDecided():
            words = PlanInWords(_resumed(plan) if plan.after is None else _paused(plan), [*_of_pause(plan)])
        case LettersDecided():
            words = _letters(plan)
        case LettersPruned():
            done = f"{counted(plan.count, 'dead letter')} {'deleted' if plan.executed else 'would be deleted'}."
            more = [Note("More letters match than the limit allows: repeat this for them.")] if plan.more else []
            words = PlanInWords("No dead letters match." if plan.is_empty else done, more)
        case RefusedDecided():
            words = _refused(plan)
        case StoreDecided():
            words = PlanInWords(_store(plan), [*_of_store(plan)])
        case _:
            # It would show only after the decision was carried out, so tests/contract/plans.py prints each plan.
            raise TypeError(f"no words for {type(plan).__name__}")
    return words


def _reset(plan: Reset) -> PlanInWords:
    again, over = plan.read_again, plan.passed_over
    parts = [f"read {counted(again, 'offset')} again"] if again else []
    parts += [f"pass over {over}" if again else f"pass over {counted(over, 'offset')}"] if over else []
    what = f"{plan.group} {'will' if plan.executed else 'would'} {' and '.join(parts)}"
    outcome = f"{what if parts else f'{plan.group} is already there'}, in {counted(len(plan.moves), 'partition')}."
    notes: list[Note] = []
    if not parts:
        accepts = ", and accepts the loss below" if plan.losses else ""
        notes.append(Note(f"A reset pins the offsets{accepts}: the next start begins at them, whatever Kafka has."))
    if again:
        notes.append(_warning("Remove their results before you start the job, or they will be stored twice."))
    if over and not plan.executed:
        notes.append(_warning("Records that are passed over will not be in the results."))
    if plan.replayed_letters:
        letters = counted(plan.replayed_letters, "replayed dead letter")
        written = "their rows are in the results and would be written twice"
        notes.append(_warning(f"{letters} in this range: {written}."))
    notes += _losses(plan.losses)
    if plan.losses:
        accepts = "accepted" if plan.executed else "would accept"
        notes.append(Note(f"The reset {accepts} this loss: starts are no longer refused because of it."))
    notes += _fencing(plan, f"See that it is started again: {_RESTART}", f"start it again, since {_RESTART}")
    if plan.met_live_owner and not plan.executed:
        notes.append(Note("Offsets that it stores before it is fenced are in what is done, not in this plan."))
    if plan.executed and not plan.met_live_owner:
        notes.append(Note("No job is known to be running: start one, or nothing is read."))
    rows = [
        (
            move.topic_partition,
            move.from_offset,
            move.to_offset,
            f"{move.shift:+d}",
            move.log.beginning if move.log else None,
            move.log.end if move.log else None,
        )
        for move in plan.moves
    ]
    columns = ("partition", "#stored", "#new", "#moves", "#beginning", "#end")
    return PlanInWords(f"Done: {outcome}" if plan.executed else outcome, notes, columns, rows, step=_step(plan))


def _new_name(plan: NewName) -> PlanInWords:
    offsets = f"The offsets of {counted(len(plan.offsets), 'partition')}"
    done = f"{'were' if plan.executed else 'would be'} {'copied' if plan.is_copy else 'renamed'}"
    notes: list[Note] = []
    if plan.open_letters and plan.is_copy:
        letters = counted(plan.open_letters, "open dead letter")
        notes.append(Note(f"{plan.group} keeps its {letters}: its job replays them."))
    return PlanInWords(
        f"{offsets} {done} from {plan.group} to {plan.new}.",
        notes
        if plan.is_copy
        else [*notes, *_fencing(plan, f"Start it under {plan.new}", f"start it under {plan.new}")],
        ("partition", "#stored"),
        [*plan.offsets.items()],
        step=None if plan.is_copy else _step(plan),
    )


def _deleted(plan: DeletedGroup) -> PlanInWords:
    count = plan.open_letters + plan.settled_letters
    letters = f" and {counted(count, 'dead letter')} ({plan.open_letters} open)" if count else ""
    offsets = f"the offsets of {counted(len(plan.offsets), 'partition')}{letters}"
    what = plan.group if plan.topics is None else f"What {plan.group} has of {', '.join(plan.topics)}"
    return PlanInWords(
        f"{what} {'was' if plan.executed else 'would be'} deleted: {offsets}.",
        [*_losses(plan.losses), *(_of_deleted_group(plan) if plan.topics is None else _of_deleted_topics(plan))],
        ("partition", "#stored"),
        [*plan.offsets.items()],
        step=_step(plan),
    )


def _of_deleted_group(plan: DeletedGroup) -> Iterator[Note]:
    if plan.contested:
        # The offsets in Kafka are that application's: no command that removes them.
        yield _warning("Another application uses this group in Kafka. A new job of this name begins at its offsets.")
    else:
        yield from _removal(plan, "--delete")
    yield from _fencing(plan)
    if plan.executed and not plan.contested:
        yield _warning("A job that starts under this name reads the topics anew, and writes the results again.")


def _of_deleted_topics(plan: DeletedGroup) -> Iterator[Note]:
    if plan.last_read:
        named = ", ".join(plan.last_read)
        anew = "started again unchanged, it begins there anew, and may write results again"
        yield _warning(f"The last job read {named}: {anew}.")
    if plan.contested:
        yield _warning(
            "Another application uses this group in Kafka. A job that reads the topic begins at its offsets."
        )
    else:
        options = (word for topic in plan.topics or () for word in ("--topic", topic))
        yield from _removal(plan, "--delete-offsets", *options)
    without = f"without the topic: {_RESTART}"
    yield from _fencing(plan, f"See that it is started again, {without}", f"start it again, {without}")
    if plan.executed and not plan.met_live_owner:
        yield Note("No job is known to be running: start one, without the topic.")


def _removal(plan: DeletedGroup, *options: str) -> Iterator[Note]:
    words = ["--bootstrap-server", "HOST:PORT", *map(visible, options), "--group", visible(plan.group)]
    yield Note("Kafka keeps the copy of the offsets, which no longer counts. This removes it:")
    yield Note(f"  kafka-consumer-groups.sh {shlex.join(words)}")


def _losses(losses: Mapping[TopicPartition, Suspect]) -> Iterator[Note]:
    for tp, suspect in [*losses.items()][:_SHOWN]:
        yield _warning(f"{tp}: the log lost records that had been read: {suspect.what}.")
    if len(losses) > _SHOWN:
        yield _warning(f"And {len(losses) - _SHOWN} more partitions.")


def _fencing(plan: OwnedPlan, done: str = "", planned: str = "") -> Iterator[Note]:
    """Say what becomes of the job that has the group.

    :param done: what to do about a live job that was fenced.
    :param planned: what to do about a live job if it is fenced.
    """
    owner = plan.owner
    if owner is None or owner.alive_for is None:
        return
    who = owner.in_words()
    match plan.executed, owner.is_live:
        case True, True:
            yield _warning(f"Fenced the live job: {who}.{f' {done}.' if done else ''}")
        case True, False:
            yield _warning(f"Fenced the silent job: {who}.")
        case False, True:
            fenced = "its next write fails with StaleClaim, and its batch is not stored"
            then = f"; {planned}" if planned else ""
            yield _warning(f"A job is live: {who}. If it is fenced, {fenced}{then}.")
        case _:
            yield Note(f"The last job is silent: {who}. If it still runs, its next write fails with StaleClaim.")


def _step(plan: OwnedPlan) -> NextStep | None:
    return NextStep.STOP_OR_FENCE if plan.met_live_owner and not plan.executed else None


def _paused(plan: PauseDecided) -> str:
    until = plan.after.until if plan.after else None
    end = "it is resumed" if until is None else f"{until.isoformat(timespec='seconds')}, by the database's clock"
    return f"{plan.group} {'is' if plan.executed else 'would be'} paused until {end}."


def _resumed(plan: PauseDecided) -> str:
    if plan.before is None:
        return f"{plan.group} was not paused; nothing was written."
    return f"{'Resumed' if plan.executed else 'Would resume'} {plan.group}, {plan.before}."


def _of_pause(plan: PauseDecided) -> Iterator[Note]:
    is_live = plan.owner.is_live
    who = f"A job is live: {plan.owner.in_words()}. It " if is_live else "No job is live"
    if plan.after is not None:
        if plan.before is not None:
            yield Note(f"That {'replaced' if plan.executed else 'replaces'} a pause: {plan.before}.")
        finishes = "finishes the batch that it is computing, and waits before the next one"
        waits = f"{finishes}; it keeps its claim and holds no locks" if is_live else ""
        yield Note(f"{who}{waits}." if is_live else f"{who}: one that starts waits before its first batch.")
    elif plan.before is not None:
        goes_on = "goes on within a second or two." if is_live else ": nothing is processed before one starts."
        yield Note(f"{who}{goes_on}")


def _letters(plan: LettersDecided) -> PlanInWords:
    if plan.is_empty:
        return PlanInWords("No dead letters match.", [*_unfit(plan)])
    verb = {"erase": "erased", "discard": "discarded", "replay": "replayed"}[plan.decision]
    done = ("requested" if verb == "replayed" else verb) if plan.executed else f"would be {verb}"
    notes = [*_unfit(plan)]
    if plan.is_forced:
        overtaken = f" A job has gone on without waiting for {counted(plan.overtaken, 'letter')} of these."
        newer = "Forced: rows of later records may be replaced by older ones."
        notes.append(_warning(f"{newer}{overtaken if plan.overtaken else ''}"))
    if plan.decision == "replay":
        notes.append(Note(_who_replays(plan.owner)))
    elif plan.decision == "erase":
        notes.append(_warning("Their keys, values, headers and error texts are deleted, for good."))
    else:
        notes.append(Note("Their records stay out of the results. A requested replay is withdrawn."))
    keys, outcome = plan.letters, f"{counted(len(plan.letters), 'dead letter')} {done}."
    return PlanInWords(outcome, notes, ("letter",), [(key,) for key in keys[:_SHOWN]], max(0, len(keys) - _SHOWN))


def _unfit(plan: LettersDecided) -> Iterator[Note]:
    if plan.more:
        yield Note("More letters match than the limit allows: repeat this for them.")
    if plan.without_payload:
        letters = counted(plan.without_payload, "letter")
        yield Note(f"{letters} can't be replayed: their records are not kept.")


def _refused(plan: RefusedDecided) -> PlanInWords:
    if plan.is_empty:
        return PlanInWords("No rows of the outbox match.")
    notes = [Note(f"The limit leaves {counted(plan.more, 'more row')}: repeat this, or raise it.")] if plan.more else []
    if plan.decision == "outbox-retry":
        done = "put back into the outbox"
        notes.append(Note("The relay sends them after all that is there; what Kafka refuses again is set aside again."))
    elif plan.decision == "outbox-set-aside":
        done = "set aside"
        notes.append(_warning("Rows of their keys that come after them are sent before them."))
    else:
        done = "discarded"
        notes.append(_warning("Their records never get into Kafka."))
    outcome = f"{counted(len(plan.rows), 'row')} {'' if plan.executed else 'would be '}{done}."
    rows = [(row.id, row.topic, row.error) for row in plan.rows[:_SHOWN]]
    return PlanInWords(outcome, notes, ("#row", "topic", "error"), rows, max(0, len(plan.rows) - _SHOWN))


def _who_replays(owner: GroupRow) -> str:
    if not owner.is_live:
        return "No job of the group is running: the next one replays them, or sink.drain(spark) in a program."
    if owner.pause is not None:
        return "The group is paused: they are replayed once it is resumed."
    return "The running job replays them within seconds, if it has dead_letters=; what fails again is dead again."


def _store(plan: StoreDecided) -> str:
    identity, groups = plan.identity, counted(len(plan.groups), "group")
    if plan.before.store_id != plan.after.store_id:
        if plan.executed:
            return f"This database is store {identity.store_id} now."
        return f"This database would no longer be store {identity.store_id}, but a store of its own, with {groups}."
    if plan.executed:
        return f"Store {identity.store_id} is at home in this database."
    if plan.is_empty:
        return f"Store {identity.store_id} is at home in this database already; nothing was written."
    home = f"from database {identity.home or 'unknown'} to this one, {identity.here}"
    return f"Store {identity.store_id} would move {home}, with {groups}."


def _of_store(plan: StoreDecided) -> Iterator[Note]:
    if plan.is_empty:
        return
    if plan.before.store_id == plan.after.store_id:
        others = "No job and no relay may run on the other database any more."
        yield Note("Start its jobs.") if plan.executed else _warning(others)
        return
    if plan.executed:
        yield Note("Give each of its jobs a kafka_group= of its own.")
        yield Note(
            "If the outbox has rows, the original sends them: empty it before a relay starts. See "
            f"{documentation('relay-recovery')}."
        )
        return
    yield _warning("This can't be taken back.")
    if live := [group for group, owner in plan.groups.items() if owner.is_live]:
        yield _warning(f"It fences the running jobs of {', '.join(live)}.")
