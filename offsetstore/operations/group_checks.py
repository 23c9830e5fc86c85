"""The checks of a group, each with its verdict and the command to run next. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from offsetstore.errors import StartError
from offsetstore.operations.group_state import GroupState
from offsetstore.operations.group_status import last_advance, moment, relay_in_words, standing
from offsetstore.protocol.database import GroupRow, HistoryEvent
from offsetstore.protocol.runs import Run, RunState
from offsetstore.text import command, counted, documentation, short

CheckVerdict: TypeAlias = Literal["ok", "attention", "bad"]
"""``bad``: results are late, records are lost, or the next start fails. ``attention``: it may come to that."""

CheckName: TypeAlias = Literal[
    "claim",
    "batch",
    "standing partitions",
    "copies in Kafka",
    "unread partitions",
    "headroom",
    "topics",
    "logs",
    "pause",
    "dead letters",
    "outbox",
    "pinned offsets",
]

LONG_BATCH: Final = timedelta(minutes=10)
"""A batch that is in flight for longer; the alert ``BatchTooLong`` fires for it, too."""

LONG_REQUEST: Final = timedelta(minutes=10)
"""A letter that is requested for longer is not replayed, or in vain: a job looks at least every five minutes."""

_LONG_START: Final = timedelta(minutes=10)
_NAMED: Final = 3
_KAFKA: Final = "-b HOST:PORT"
_KAFKA_SILENT: Final = "Not known: Kafka did not answer."
_ENDED: Final[dict[RunState, str]] = {
    "live": "was last seen",
    "silent": "fell silent",
    "ended": "ended cleanly",
    "failed": "failed",
    "fenced": "was fenced",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    :param text: the finding.
    :param at: since when, or when last, by the database's clock; the text's last words say which.
    :param next_step: the command that shows more or repairs it; empty if there is nothing to do.
    """

    name: CheckName
    verdict: CheckVerdict
    text: str
    at: datetime | None = None
    next_step: str = ""


def check_group(
    group: GroupState, run: Run | None, paused_by: HistoryEvent | None = None, *, schema: str | None = None
) -> list[Check]:
    """Check everything that can be wrong with a group.

    :param group: as `OffsetStore.lag` returns it.
    :param run: the group's last run, as `telling_run` chooses it; ``None`` if no run was recorded.
    :param paused_by: the last ``pause`` of the group's history.
    :param schema: of the tables, for the commands.
    """
    return list(_Checks(group, run, paused_by, schema).all())


class _Checks:
    def __init__(self, group: GroupState, run: Run | None, paused_by: HistoryEvent | None, schema: str | None) -> None:
        self._group = group
        self._partitions = group.partitions
        self._run = run
        self._paused_by = paused_by
        self._schema = schema

    def all(self) -> Iterator[Check]:
        yield self._claim()
        yield self._batch()
        yield self._standing()
        yield self._copies()
        yield self._unread_partitions()
        yield self._headroom()
        yield self._topics()
        yield self._logs()
        yield self._pause()
        yield self._letters()
        yield self._outbox()
        yield self._pinned()

    def _claim(self) -> Check:
        owner = self._group.owner
        who = f"{owner.owner}, epoch {owner.token.epoch}"
        # A live job may have failed: it is started again and again (decision 0103).
        if owner.state == "failed" and (owner.is_live or owner.is_refused):
            return self._starts_fail(owner, who)
        if owner.is_live:
            return Check("claim", "ok", f"A job owns the group: {who}. Its last heartbeat:", self._seen_at(owner))
        if owner.state == "silent":
            text = (
                f"The job of {who}, was killed, hangs, or can't reach the database. If its process no longer runs "
                "there, start it again. Its last heartbeat:"
            )
            return Check("claim", "bad", text, self._seen_at(owner), self._command("runs", "-n 5"))
        run = self._run
        if run is None or not run.is_of(owner.token):
            text = f"No job is running; start one. Last claimed by {who}, at:"
            return Check("claim", "attention", text, owner.claimed_at, self._command("history", "-n 5"))
        # The owner of a fleet's row is its founder, who may not be the last member.
        who = f"{run.owner}, epoch {run.token.epoch}"
        text = f"No job owns the group. The last run, of {who}, {_ENDED[run.state]}:"
        if run.state in {"failed", "silent"}:
            return Check("claim", "bad", text, run.until, self._command("errors", "-n 5"))
        return Check("claim", "attention", text, run.until, self._command("runs", "-n 5"))

    def _starts_fail(self, owner: GroupRow, who: str) -> Check:
        if owner.is_refused:
            text = f"No job is running: the last start was refused. Last claimed by {who}, at:"
            return Check("claim", "bad", text, owner.claimed_at, self._command("errors", "--source start -n 5"))
        text = (
            f"{counted(owner.failures, 'run')} failed or fell silent in 15 minutes, and the job is started again "
            "and again: a good one counts as live a minute after its start. Its last heartbeat:"
        )
        return Check("claim", "bad", text, self._seen_at(owner), self._command("errors", "-n 5"))

    def _seen_at(self, owner: GroupRow) -> datetime | None:
        return None if owner.alive_for is None else _whole(self._group.read_at - owner.alive_for)

    def _batch(self) -> Check:
        run = self._run
        if run is None:
            return Check("batch", "ok", "No run was recorded.")
        batch = "The batch" if run.status.batch is None else f"Batch {run.status.batch}"
        since = _whole(run.read_at - timedelta(seconds=run.status.phase_age))
        if run.status.phase == "failed":
            what = "The job has failed:" if run.status.batch is None else f"{batch} has failed and ended the query:"
            return Check("batch", "bad", what, since, self._command("errors", "-n 5"))
        return (self._running if run.state == "live" else self._ended)(run, batch, since)

    def _running(self, run: Run, batch: str, since: datetime) -> Check:
        if run.status.phase == "batch":
            offsets = "" if run.status.batch_offsets is None else f" with {counted(run.status.batch_offsets, 'offset')}"
            text = f"{batch}{offsets} is in flight since:"
            if run.read_at - since > LONG_BATCH and self._group.pause is None:
                return Check("batch", "bad", text, since, self._command("errors", "--source retry -n 5"))
            return Check("batch", "ok", text, since)
        if run.status.phase == "starting":
            return self._starting(run, since)
        if run.status.phase == "paused":
            return Check("batch", "ok", "The job waits until the group is resumed, since:", since)
        return Check("batch", "ok", f"{batch} succeeded; waiting for records since:", since)

    def _ended(self, run: Run, batch: str, _since: datetime) -> Check:
        status = run.status
        if status.phase == "batch":
            text = f"{batch} was in flight when the last run ended: it is stored as a whole, or will be read again."
            return Check("batch", "attention", text, next_step=self._command("runs", "-n 5"))
        if status.batch is None or status.last_batch_age is None:
            return Check("batch", "ok", "The last run has reported no batch.")
        at = _whole(run.read_at - timedelta(seconds=status.last_batch_age))
        return Check("batch", "ok", f"{batch} was the last one, and ended well:", at)

    def _starting(self, run: Run, since: datetime) -> Check:
        advanced = last_advance(self._group)
        if advanced is not None and advanced > run.started_at:
            text = "The job reports no batches: it stores offsets in transactions of its own. Its last advance:"
            return Check("batch", "ok", text, _whole(advanced))
        text = "The job has had no batch yet; it claimed the group:"
        if run.read_at - since > _LONG_START and self._group.known_lag and self._group.pause is None:
            return Check("batch", "attention", text, since, self._command("errors", "-n 5"))
        return Check("batch", "ok", text, since)

    def _standing(self) -> Check:
        name = "standing partitions"
        if self._group.kafka is None:
            return Check(name, "attention", _KAFKA_SILENT)
        found = standing(self._group)
        if not found and self._group.broker_error is not None:
            return Check(name, "attention", "Kafka did not tell how old the unread records are.")
        if not found:
            return Check(name, "ok", "No partition with unread records has stood while others advanced.")
        tp, part = next(iter(found.items()))
        assert part.stored is not None
        assert part.stored.updated_at is not None
        assert part.log is not None
        section = "PartitionStands"
        if part.log.last_stable <= part.stored.next_offset:
            why, section = "What is unread is behind a producer's open transaction", "HangingTransaction"
        elif part.is_ahead:
            why = "Its first unread record has a timestamp ahead of the clock, for which a consumer's Delay waits"
        elif part.lag_seconds is None:
            why = "Its first unread record has no timestamp"
        else:
            why = f"Its first unread record is {short(timedelta(seconds=part.lag_seconds))} old"
        others = len(found) - 1
        more = f", and so {'has' if others == 1 else 'have'} {others} more" if others else ""
        text = (
            f"{tp} has stood at offset {part.stored.next_offset} while others advanced{more}. {why}. What to do: "
            f"{documentation('runbook', section)}. Its offset last changed:"
        )
        return Check(name, "bad", text, _whole(part.stored.updated_at), self._command("errors", "-n 5"))

    def _copies(self) -> Check:
        name, run = "copies in Kafka", self._run
        if run is not None and run.state == "live" and (reason := run.status.mirror_error) is not None:
            text = f"The stored offsets can't be copied to Kafka's group: {reason}"
            return Check(name, "attention", text, next_step=self._command("errors", "--source mirror -n 5"))
        if self._group.kafka is None:
            return Check(name, "attention", _KAFKA_SILENT)
        if (error := self._group.kafka.error) is not None:
            return Check(
                name, "attention", f"Kafka did not answer for its group: {error.what}", next_step=error.next_step
            )
        if (ahead := self._group.mirror_lead) and not self._group.is_live:
            text = (
                f"Kafka's copies are {counted(ahead, 'offset')} ahead of the store: the database is older, as after a "
                "restore, or another application or a copy of the database commits for the group. The next start may "
                "be refused. If the results are as old as the stored offsets, keep these: reset them to where they "
                "stand, which pins them."
            )
            return Check(name, "bad", text, next_step=self._resolve([*self._group.topics]))
        return self._copied(self._group.mirror_lag)

    def _copied(self, behind: int | None) -> Check:
        name = "copies in Kafka"
        if behind is None:
            return self._if_known(name, "Kafka has no copies of the stored offsets.")
        if behind == 0 and (ahead := self._group.pinned_lead):
            who = "The" if self._group.is_live else "The next"
            text = (
                f"Kafka's copies are {counted(ahead, 'offset')} ahead of offsets that a decision has set, which take "
                f"precedence. {who} job makes new copies."
            )
            return Check(name, "ok", text)
        if behind == 0:
            return self._if_known(name, "Kafka has the stored offsets.")
        text = f"Kafka's copies are {counted(behind, 'offset')} behind the store."
        if self._group.is_live:
            return Check(name, "ok", f"{text} The job makes new ones every few seconds.")
        return Check(name, "attention", f"{text} The next job makes new ones.")

    def _unread_partitions(self) -> Check:
        name = "unread partitions"
        if self._group.kafka is None:
            return Check(name, "attention", _KAFKA_SILENT)
        found = {topic: state.without_offset for topic, state in self._group.topics.items() if state.without_offset}
        if not found:
            if untold := [topic for topic, state in self._group.topics.items() if state.error is not None]:
                return Check(name, "attention", f"Not known of {_some(untold)}: see topics.")
            return self._if_known(name, "Every partition has a stored offset.")
        verb = "has" if sum(found.values()) == 1 else "have"
        text = (
            f"{counted(sum(found.values()), 'partition')} {verb} no stored offset, and no job of the group reads them: "
            f"{_some([f'{count} of {topic}' for topic, count in found.items()])}."
        )
        return Check(name, "attention", text, next_step=self._resolve([*found]))

    def _headroom(self) -> Check:
        if self._group.kafka is None:
            return Check("headroom", "attention", _KAFKA_SILENT)
        known = [(room, tp) for tp, part in self._partitions.items() if (room := part.headroom) is not None]
        if not known:
            return self._if_known("headroom", "Nothing unread is at risk from retention.")
        room, tp = min(known)
        if room < 0:
            lost = [partition for headroom, partition in known if headroom < 0]
            removed = -sum(headroom for headroom, _partition in known if headroom < 0)
            text = (
                f"Kafka has removed {counted(removed, 'offset')} unread: "
                f"{_some(list(map(str, lost)))}. A running job stops at them, and the next start is refused."
            )
            return Check("headroom", "bad", text, next_step=self._resolve(sorted({tp.topic for tp in lost})))
        # Retention has removed nothing yet from a log that begins at 0: a backlog from its start is no risk so far.
        if room == 0 and any(
            part.headroom == 0 and part.log and part.log.beginning for part in self._partitions.values()
        ):
            text = f"What retention removes next from {tp} is unread."
            return Check("headroom", "attention", text, next_step=self._command("lag", _KAFKA, "--partitions"))
        if room == 0:
            return self._if_known("headroom", f"The first record of {tp} is unread. Retention has removed none yet.")
        text = f"Retention has to remove {counted(room, 'offset')} from {tp} before it removes unread ones."
        return self._if_known("headroom", text)

    def _topics(self) -> Check:
        if (silence := self._group.broker_error) is not None:
            return Check("topics", "attention", silence.what, next_step=silence.next_step)
        errors = [error for topic in self._group.topics.values() if (error := topic.error) is not None]
        if not errors:
            return Check("topics", "ok", "Kafka has the topics that the stored offsets belong to.")
        # Only an error of a start refuses the next one; Kafka's own may pass.
        refused = [error for error in errors if isinstance(error, StartError)]
        worst = (refused or errors)[0]
        more = f" And {len(errors) - 1} more." if len(errors) > 1 else ""
        return Check("topics", "bad" if refused else "attention", f"{worst.what}.{more}", next_step=worst.next_step)

    def _logs(self) -> Check:
        # Evidence comes first: a log that lost records grows past the stored offset again in time (decision 0049).
        suspects = {tp: row.suspect for tp, row in self._group.rows.items() if row.suspect is not None}
        for tp, suspect in suspects.items():
            more = f" And {len(suspects) - 1} more." if len(suspects) > 1 else ""
            text = (
                f"{tp} lost records that had been read: {suspect.what}.{more} Each start is refused until a reset. "
                "Found:"
            )
            at = None if suspect.at is None else _whole(suspect.at)
            return Check("logs", "bad", text, at, self._command("history", "--event suspect -n 5"))
        if self._group.kafka is None:
            return Check("logs", "attention", _KAFKA_SILENT)
        if short := [tp for tp, part in self._partitions.items() if part.beyond_end]:
            text = (
                f"The stored offsets of {_some(list(map(str, short)))} are {counted(self._group.beyond_end, 'offset')} "
                "beyond the log's end: it lost records, or a reset went too far. The next start is refused."
            )
            return Check("logs", "bad", text, next_step=self._resolve(sorted({tp.topic for tp in short})))
        return self._if_known("logs", "No log ends before the stored offset, and none is known to have lost records.")

    def _if_known(self, name: CheckName, text: str) -> Check:
        """Return ``ok``, unless the log of a stored offset is not known."""
        unknown = [str(tp) for tp, part in self._partitions.items() if part.stored and part.log is None]
        if unknown:
            text = f"Not known of {_some(unknown)}: Kafka shows no log that the stored offset belongs to."
            return Check(name, "attention", text)
        return Check(name, "ok", text)

    def _pause(self) -> Check:
        pause = self._group.pause
        if pause is None:
            return Check("pause", "ok", "The group is not paused.")
        # Only the line that was written with this pause names its actor.
        by = self._paused_by
        who = "" if by is None or by.at is None or abs(by.at - pause.at) > timedelta(minutes=1) else f" by {by.actor}"
        end = "without an end" if pause.until is None else f"until {moment(pause.until)}"
        advanced = last_advance(self._group)
        if self._group.is_live and advanced is not None and advanced - pause.at > LONG_BATCH:
            text = (
                f"Paused{who} {end}: {pause.reason}. But the job goes on: transactions of its own do not wait for a "
                "pause. Its last advance:"
            )
            return Check("pause", "bad", text, _whole(advanced), self._command("runs", "-n 5"))
        text = f"Paused{who} {end}: {pause.reason}. Since:"
        return Check("pause", "attention", text, _whole(pause.at), self._command("resume", "--reason …"))

    def _letters(self) -> Check:
        letters = self._group.dead_letters
        dead, requested = letters.get("dead", 0), letters.get("requested", 0)
        if not dead and not requested:
            return Check("dead letters", "ok", "There are no open dead letters.")
        left = self._group.unreplayed or self._waits_long()
        waiting = f"{requested} to be replayed {left or 'by a job that has dead_letters='}" if requested else ""
        if not dead:
            is_well = self._group.is_live and left is None
            step = "" if is_well else self._command("dead-letters list", "--state requested")
            return Check("dead letters", "ok" if is_well else "attention", f"{waiting}.", next_step=step)
        verb = "waits" if dead == 1 else "wait"
        text = f"{counted(dead, 'dead letter')} {verb} for a decision{f', {waiting}' if waiting else ''}."
        return Check("dead letters", "attention", text, next_step=self._command("dead-letters list", "--by error"))

    def _waits_long(self) -> str | None:
        # Only time shows some causes, such as a table that no longer fits, or an earlier letter of the key, which the
        # dashboard's role may not read (decision 0104).
        requested = self._group.requested.values()
        since = min((letters.since for letters in requested if letters.since is not None), default=None)
        is_held = not self._group.is_live or self._group.pause is not None
        if since is None or is_held or self._group.read_at - since <= LONG_REQUEST:
            return None
        return f"by the job, which has not done so since {moment(since)}: its log says why"

    def _outbox(self) -> Check:
        found, relay = self._group.outbox, self._group.relay
        if found is None:
            return Check("outbox", "ok", "The group has no rows in the outbox.")
        is_late = found.is_late(self._group.read_at)
        is_sent = relay is not None and relay.is_live
        told: list[str] = []
        if found.refused:
            told.append(f"Kafka refuses {counted(found.refused, 'row')}, set aside until a person decides.")
        if found.rows:
            verb = "waits" if found.rows == 1 else "wait"
            told.append(f"{counted(found.rows, 'row')} {verb} to be sent to Kafka.")
            if is_late or not is_sent:
                told.append(f"{relay_in_words(relay)} See {documentation('runbook', 'OutboxStalled')}.")
            told.append(f"The first is row {found.row}, for topic {found.topic}. The oldest was written:")
        at = None if found.oldest is None else _whole(found.oldest)
        step = self._command("outbox list") if found.refused else ""
        is_well = not found.refused and (is_sent or not found.rows)
        return Check("outbox", "bad" if is_late else "ok" if is_well else "attention", " ".join(told), at, step)

    def _pinned(self) -> Check:
        rows = self._group.rows
        contested = [tp for tp, row in rows.items() if row.contested]
        pinned = [tp for tp, row in rows.items() if row.pinned]
        if contested:
            text = (
                "Another application, or a copy of the database, has used the group in Kafka, and the next start may "
                f"be refused until you choose an offset: {_some(list(map(str, contested)))}."
            )
            return Check(
                "pinned offsets", "attention", text, next_step=self._resolve(sorted({tp.topic for tp in contested}))
            )
        if pinned:
            text = (
                f"{counted(len(pinned), 'offset')} set by a decision take precedence over Kafka's until a job has "
                f"copied them there: {_some(list(map(str, pinned)))}."
            )
            return Check("pinned offsets", "ok", text, next_step=self._command("history", "--event reset -n 5"))
        return Check("pinned offsets", "ok", "No stored offset is pinned or contested.")

    def _resolve(self, topics: list[str]) -> str:
        return self._command("resolve", *(f"-t {shlex.quote(topic)}" for topic in topics[:_NAMED]), _KAFKA)

    def _command(self, name: str, *options: str) -> str:
        return " ".join((command(*name.split(), "-g", self._group.group, schema=self._schema), *options))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _whole(at: datetime) -> datetime:
    # Fractions would differ each time that an age is turned into a time.
    return at.replace(microsecond=0)
