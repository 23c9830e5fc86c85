"""Every error that offsetstore raises on purpose.

::

    OffsetStoreError
     +-- ConfigurationError          an argument, option or URL is invalid
     |    +-- InvalidText            a name, a reason or another text that no database can store, or that is too long
     |    +-- UnknownGroup           the store has no offsets of the group
     |    +-- OffsetMoved            the stored offset does not match the reset's from_offset
     |    +-- UnsupportedQuery       Spark Connect, real-time mode, failOnDataLoss=false, ...
     |    +-- MissingDependency      an optional extra is not installed, or Java is missing
     +-- StoreUnavailable            the database can't be reached, or refuses the connection
     +-- MissingPrivilege            the database's role may not do that
     +-- PlanChanged                 a decision would no longer do what its plan has shown; nothing was done
     +-- SchemaError
     |    +-- SchemaMissing          our tables are not there
     |    +-- SchemaNotAtHead        they are there, but at a revision that this version does not run on
     +-- BrokerError
     |    +-- BrokerUnavailable      no answer from Kafka within the time allowed
     |    +-- BrokerRefused          Kafka refused the request: credentials, permissions
     |    |    +-- TlsFailed         no connection to Kafka: a certificate
     |    |    +-- GroupHasMembers   Kafka sets no offsets of a group that has members
     |    |    +-- MetadataRefused   Kafka can't take the text to be committed with an offset
     |    +-- TopicMissing           Kafka has no such topic
     +-- StartError                  where to start can't be decided safely
     |    +-- OffsetsDisagree        prefer="agree", but the two offsets differ
     |    +-- NoStartingOffset       auto_offset_reset="none", and neither has an offset
     |    +-- OffsetOutOfRange       the records to read next are not in the log
     |    |    +-- LogTruncated      the log lost records below the stored offset, and may have grown again
     |    +-- TopicRecreated         the log is not the one that the stored offset belongs to
     |    +-- WrongCluster           the broker belongs to another cluster
     |    +-- StoreRewound           Kafka has what we mirrored, and the database no longer has it
     |    +-- ForeignStore           Kafka has what another offsetstore mirrored
     |    +-- StoreMoved             the tables are in another database than before: moved, or a copy?
     |    +-- KafkaGroupShared       Kafka has what another group of this store mirrored
     |    +-- KafkaGroupContested    another application used the group in Kafka while the job ran
     |    +-- KafkaGroupInUse        on_members="refuse", and the group in Kafka has members
     |    +-- CheckpointAhead        a kept checkpoint is beyond the stored offset
     |    +-- CheckpointBehind       a kept checkpoint is below it, and the batch can't be cropped
     |    +-- UncertainBatch         the last batch of the checkpoint to adopt may or may not have been written
     |    +-- OutboxUncertain        the relay's last batch may or may not be in Kafka
     +-- ClaimError
     |    +-- StaleClaim             another claim took the group over; nothing was written
     |    |    +-- PartitionLost     another member of the fleet has the partition; nothing was written
     |    +-- GroupBusy              the group has a live owner, and takeover= does not allow fencing it
     |    +-- ClaimInUse             a second query on one claim
     |    +-- GroupRenamed           the group has another name now
     +-- RelayFenced                 another relay has taken the outbox over
     +-- TransactionError
     |    +-- OffsetGap              the range begins above the stored offset; nothing was written
     |    +-- LockTimeout            a partition's row is locked by another transaction
     |    +-- TransactionLost        the transaction did not happen
     |    |    +-- ConnectionLost    the connection to the database broke
     |    |    +-- TransactionConflict  a deadlock, or a serialization failure
     |    +-- CommitUnknown          COMMIT was sent, and its outcome can't be determined
     |    +-- ProtocolMisuse         the transaction was used in an order that would break the guarantee
     |         +-- NestedTransaction, LockFirst, LockedTwice, LockInSavepoint,
     |             Unadvanced, AdvanceMismatch, MarkBackwards, MarkBeyondDelivered,
     |             UnexpectedCommit
     +-- DeadLetterError             a dead letter can't be decided about like that; nothing was written
     |    +-- LettersOpen            a group with open letters is not deleted
     |    +-- UnknownLetter          the store has no such letter
     |    +-- LetterSettled          it was replayed, discarded or superseded
     |    +-- PayloadMissing         its record is not kept, so it can't be replayed
     +-- MetadataError               metadata can't be serialized or read back, or is too large
     +-- SinkError
          +-- ColumnMismatch         the DataFrame does not fit the table; nothing was written
          +-- UnsafeTarget           a target that a crash empties, or that commits separately; nothing was written
          +-- TargetRefused          the database lets no row into the target, whatever is in it
          +-- RowsRefused            a value or a row that the table can't hold
          |    +-- RecordsRejected   a function named records with work.dead_letter
          |    +-- FunctionFailed    a function, or Spark, can't compute a row
          +-- HandlerStuck           no call of a handler returns any more
          +-- TooManyLetters         a batch has more bad records than dead letters are for
          +-- KafkaColumnsMissing    the sink needs Kafka's coordinates, and the DataFrame has lost them
          +-- ExecutorEnvironment    Spark's executors lack the packages that write, or have other versions

Each carries what was found, what was expected and the next step, as attributes and in its text, and the partition if
it is about one. Each can be pickled, to cross a process boundary.

`Outage` is not one of them: it is yours to raise. Nor is `FunctionEnded`: its cause is what your function raised.

`exit_code` is the code with which a process ends after an error, a command's or a job's.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, Final, Literal, Self

from offsetstore.offsets import OffsetRange, TopicPartition


def _or_try(python: str, options: str) -> tuple[str, str]:
    """Word the next step of a refused start: a command can show what each answer would lead to."""
    return python, f"{python} (To see where the job would then start: {options}.)"


def _after_looking(skip: str, repeat: str) -> str:
    """Word the next step of a relay's refused start."""
    return (
        "Correct the address or the anchor if it is wrong. Otherwise look for these rows' records in their topics, and "
        f"start once with {skip} if they are there, or {repeat} if they are not."
    )


class NextStep(StrEnum):
    """A next step that is worded differently in Python, at the command line and on a page of the dashboard.

    As a text it is Python's; ``command`` and ``page`` are the others. `step_for` also takes a step with one wording for
    all.
    """

    command: str
    page: str

    def __new__(cls, python: str, command: str | None = None, page: str | None = None) -> Self:
        """Without words of their own, the command line and the page show Python's."""
        made = str.__new__(cls, python)
        made._value_ = python
        made.command, made.page = command or python, page or python
        return made

    CONNECT = (
        "Check OFFSETSTORE_URL, that the server runs, and that the role may connect.",
        "Check --url or OFFSETSTORE_URL, that the server runs, and that the role may connect.",
        "Check that the server runs, and that the role may connect.",
    )
    LOOK_AGAIN = (
        "Look at the new plan; to carry it out, pass its digest.",
        "Look at the new plan, printed above; to carry it out, pass its digest.",
    )
    STOP_OR_FENCE = (
        'Stop it first, or fence it with takeover="fence".',
        "Stop it first, or fence it with --force.",
        "Stop it first, or tick “Fence the live job”.",
    )
    NAME_OFFSET = (
        "Name an offset that the log holds, or reset to the earliest or the latest.",
        "Name an offset that the log holds, or use --to-earliest or --to-latest.",
    )
    SHIFT_LESS = (
        "Shift by less, or reset to the earliest.",
        "Shift by less, or use --to-earliest.",
    )
    NAME_BROKERS = ("Pass broker=Broker(...).", "Name its brokers with --bootstrap-servers.")
    SETTLE_LETTERS = (
        "Replay or discard them first; or delete them with the group: discard_letters=True.",
        "Replay or discard them first; or delete them with the group: --discard-letters.",
    )
    DISCARD_LETTERS = (
        "Only a job that reads the topic can replay them. Discard them, or delete them with it: discard_letters=True.",
        "Only a job that reads the topic can replay them. Discard them, or delete them with it: --discard-letters.",
    )
    PREFER_ONE = _or_try(
        'Find out who moved one of them, then start with prefer="larger" or prefer="stored".',
        "--prefer larger or --prefer stored",
    )
    SET_RESET = _or_try(
        'Set StartPolicy(auto_offset_reset="earliest"), or give a timestamp.', "--auto-offset-reset earliest"
    )
    ACCEPT_LOSS = _or_try(
        'Restore the records, or accept the loss with StartPolicy(on_data_loss="earliest"); the history records it.',
        "--on-data-loss earliest",
    )
    RESTART_TOPIC = _or_try(
        "If the topic was recreated on purpose, start once with "
        'StartPolicy(on_recreated="restart"); the history records it.',
        "--on-recreated restart",
    )
    JUDGE_REWIND = _or_try(
        "If it was restored or has lost rows: restore the newer database, or read the lost records again: "
        'StartPolicy(on_rewound="stored"). Only if their results are in this database, go on from Kafka\'s offset: '
        'on_rewound="kafka". If a copy of this database runs: give the copy an id (`offsetstore store new-id`) and a '
        'kafka_group= of its own, then start the original with on_rewound="stored", which loses nothing. Claim a '
        "renamed group by its new name.",
        "--on-rewound stored or --on-rewound kafka",
    )
    SEPARATE_GROUPS = _or_try(
        "If the other application is still needed, give this job a group of its own in Kafka (kafka_group=). If not, "
        'stop it, and start once with StartPolicy(prefer="stored"), which overwrites its offset. To go on from its '
        "offset instead, use `offsetstore reset`. The history says when it was seen.",
        "--prefer stored",
    )
    LOOK_FOR_RESULTS = _or_try(
        "Look in the results for records of that range. If they are there, claim with "
        'StartPolicy(on_uncertain="skip"), otherwise with on_uncertain="replay". The history records it.',
        "--on-uncertain skip or --on-uncertain replay",
    )
    LOOK_FOR_RECORDS = (
        _after_looking('on_uncertain="skip"', 'on_uncertain="repeat"'),
        _after_looking("--on-uncertain skip", "--on-uncertain repeat"),
    )


def step_for(audience: Literal["command", "page"], step: str) -> str:
    """Word an error's next step for a reader who has not called Python."""
    return getattr(step, audience) if isinstance(step, NextStep) else step


class OffsetStoreError(Exception):
    """The base class of every error that is raised on purpose.

    ``what`` says what happened, ``found`` and ``expected`` are values that a program can look at, ``next_step`` tells a
    person what to do. ``topic_partition`` is ``None`` if the error is not about one partition; ``doing`` then says in
    which batch, with which ranges or in which claim it happened.
    """

    next_step: str = ""
    default_next_step: ClassVar[str] = ""

    def __init__(
        self,
        what: str,
        *,
        topic_partition: TopicPartition | None = None,
        found: object = None,
        expected: object = None,
        next_step: str | None = None,
        doing: str | None = None,
    ) -> None:
        self.what = what
        self.topic_partition = topic_partition
        self.found = found
        self.expected = expected
        self.doing = doing
        self.next_step = self.default_next_step if next_step is None else next_step
        super().__init__(self._text())

    def _text(self) -> str:
        text = self.what if self.topic_partition is None else f"{self.topic_partition}: {self.what}"
        if self.found is not None:
            text += f"; found {self.found}"
        if self.expected is not None:
            text += f"; expected {self.expected}"
        if self.doing is not None:
            text += f"; {self.doing}"
        return f"{text}. {self.next_step}" if self.next_step else f"{text}."

    def while_(self, doing: str) -> None:
        """Say what was being done, unless the error names a partition, or says it already."""
        if self.topic_partition is None and self.doing is None:
            self.doing = f"while {doing}"
            self.args = (self._text(),)

    def locate(self, topic_partition: TopicPartition) -> None:
        """Say which partition the error is about, unless it says so already."""
        if self.topic_partition is None:
            self.topic_partition = topic_partition
            self.args = (self._text(),)

    def __reduce__(self) -> tuple[Callable[..., OffsetStoreError], tuple[Any, ...]]:
        """Pickle by the fields, since ``Exception`` would hand the finished text to ``__init__``."""
        fields = {name: getattr(self, name) for name in ("topic_partition", "found", "expected", "next_step", "doing")}
        return _rebuild, (type(self), self.what, fields)


def _rebuild(cls: type[OffsetStoreError], what: str, fields: dict[str, Any]) -> OffsetStoreError:
    return cls(what, **fields)


class ConfigurationError(OffsetStoreError):
    """An argument, option or URL is invalid.

    What to do: correct what the message names. A restart alone meets the same error.
    """


class InvalidText(ConfigurationError, ValueError):
    """A name, a reason, an actor or another text has a character that PostgreSQL can't store, or is too long."""

    default_next_step = "Correct the text; nothing was written."


class UnknownGroup(ConfigurationError):
    """The store has no offsets of the group."""

    default_next_step = "Correct the name; a group's rows are made by its first claim."


class OffsetMoved(ConfigurationError):
    """The stored offset does not match the reset's ``from_offset``; nothing was written."""

    default_next_step = "Find out what moved it (the group's history, a job that ran since), and whether to reset."


class UnsupportedQuery(ConfigurationError):
    """Exactly-once is not possible with this kind of streaming query; nothing was written.

    What to do: change the query, or its option, as the message says.
    """


class MissingDependency(ConfigurationError):
    """An optional extra is not installed, or Java is missing or too old.

    What to do: install what the message names.
    """


class StoreUnavailable(OffsetStoreError):
    """The database could not be reached, or refused the connection."""

    default_next_step = NextStep.CONNECT


class MissingPrivilege(OffsetStoreError):
    """The role lacks a privilege in the database; nothing was written.

    ``grants`` are the arguments with which `offsetstore grants` prints it; the first two name the role. ``None`` if
    that command doesn't grant it.
    """

    grants: Sequence[str] | None = None

    default_next_step = "Connect as the owner of the tables, or as a role that is granted it."

    def granted_by(self, *grants: str) -> Self:
        """Say which arguments of `offsetstore grants` print what is missing; return the error."""
        self.grants = grants
        command = shlex.join(["offsetstore", "grants", *grants])
        is_of_job = grants[0] == "--role" and not {"--append", "--upsert"}.intersection(grants)
        reader = " For a role that only reads, write --dashboard-role in place of --role." if is_of_job else ""
        self.next_step = f"Run in psql, as the owner of the tables, what this prints: `{command}`.{reader}"
        self.args = (self._text(),)
        return self

    def granted_as(self, option: str) -> Self:
        """Say that the role is not a job's, and that this option grants its privileges; return the error."""
        return self if self.grants is None else self.granted_by(option, *self.grants[1:])


class PlanChanged(OffsetStoreError):
    """A decision would no longer do what its plan showed: something has changed since. Nothing was done.

    ``plan`` is what it would do now, as a dry run returns it.
    """

    default_next_step = NextStep.LOOK_AGAIN

    def __init__(self, what: str, *, plan: Any = None, **fields: Any) -> None:
        self.plan = plan
        super().__init__(what, **fields)

    def __reduce__(self) -> tuple[Callable[..., OffsetStoreError], tuple[Any, ...]]:
        rebuild, (cls, what, fields) = super().__reduce__()
        return rebuild, (cls, what, {**fields, "plan": self.plan})


class SchemaError(OffsetStoreError):
    """The schema does not match this version of offsetstore."""

    default_next_step = "Run `offsetstore migrate`, with the same --schema if one was given."


class SchemaMissing(SchemaError):
    """The tables are not there."""


class SchemaNotAtHead(SchemaError):
    """The tables exist, but at a revision that this version does not run on."""


class BrokerError(OffsetStoreError):
    """Kafka could not answer; no job was fenced.

    What to do: see which of its classes it is; each has a next step.
    """


class BrokerUnavailable(BrokerError):
    """No answer within the time allowed."""

    default_next_step = "Check bootstrap.servers and that the brokers run; nothing was changed."


class BrokerRefused(BrokerError):
    """Kafka refused the request: wrong credentials or missing permissions."""

    default_next_step = "Check security.protocol, sasl.* and the ACLs of this principal; nothing was changed."


class TlsFailed(BrokerRefused):
    """No TLS connection to Kafka: a certificate is not trusted, has expired, or is missing."""


class GroupHasMembers(BrokerRefused):
    """The group in Kafka has members: another application or tool has subscribed with it and owns its offsets."""

    default_next_step = (
        "Give this job a group of its own in Kafka (kafka_group=), or stop the other application; "
        "`kafka-consumer-groups --describe --members` shows its address."
    )


class MetadataRefused(BrokerRefused):
    """The text to be committed with an offset is too long for Kafka, or can't be sent; the offset was not committed."""

    default_next_step = "Shorten the text, or raise the broker's offset.metadata.max.bytes (4096 by default)."


class TopicMissing(BrokerError):
    """Kafka has no such topic."""

    default_next_step = "Create the topic or correct its name; nothing was changed."


class StartError(OffsetStoreError):
    """Where to start can't be decided without risk; no job was fenced.

    What to do: see which of its classes it is, and docs/starting.md.
    """


class OffsetsDisagree(StartError):
    """``prefer="agree"``: the store and Kafka hold different offsets."""

    default_next_step = NextStep.PREFER_ONE


class NoStartingOffset(StartError):
    """Neither the store nor Kafka has an offset, and the policy gives none."""

    default_next_step = NextStep.SET_RESET


class OffsetOutOfRange(StartError):
    """The records to read next are not in the log.

    Retention removed them, or the log ends below the offset although the topic is the same: an open transaction under
    ``read_committed``, an unclean truncation, an offset that was set too high.
    """

    default_next_step = NextStep.ACCEPT_LOSS


class LogTruncated(OffsetOutOfRange):
    """The log lost records below the stored offset, although the topic is the same; it may have grown again since.

    An unclean leader election does that, or a broker whose disk was restored. The results hold records that Kafka no
    longer has, and the records that took their offsets are not in the results.
    """

    default_next_step = (
        "Look for the lost records' results in the database, and decide: `offsetstore reset` of the partition to the "
        "offset where the logs part reads what took their place, a reset to the stored offset goes on without that."
    )


class TopicRecreated(StartError):
    """The log is not the one that the stored offset belongs to, or it ends below the offset and might be another."""

    default_next_step = NextStep.RESTART_TOPIC


class WrongCluster(StartError):
    """The broker belongs to another cluster than the stored offsets."""

    default_next_step = "Correct bootstrap.servers, or use another consumer group for this cluster."


class StoreRewound(StartError):
    """Kafka holds a copy of a stored offset, made by this store, that the database does not have.

    It was restored from a backup, or its tables were lost, or the group was renamed; or a copy of the database has
    claimed the group while no job of this one ran.
    """

    default_next_step = NextStep.JUDGE_REWIND


class ForeignStore(StartError):
    """Kafka holds a copy of an offset that another offsetstore made for this group.

    The other database is still used, and this job is another one of that name, or this database is a copy of it; or the
    other database was lost, and this one was made anew.
    """

    default_next_step = (
        "If the other database is used, connect to it, or give this job a kafka_group= of its own: two can't mirror to "
        "one group. If it was lost, and this one made anew in its place: delete the group's offsets in Kafka "
        "(kafka-consumer-groups --delete-offsets), and all records are read again; or, if their results were restored "
        "and end there, commit the offsets anew (--reset-offsets --to-current --execute). See "
        "the page 'A refused start' of the documentation."
    )


class StoreMoved(StartError):
    """The tables are in another database than the one whose offsets they hold; no job was fenced.

    This happens after CREATE DATABASE … TEMPLATE, a dump and its restore, ``pg_upgrade``, and logical replication. Only
    you know whether the database was moved, or copied while the original goes on.

    What to do: `offsetstore store moved` if no job runs on the other database any more; in a copy,
    `offsetstore store new-id`. See docs/starting.md.
    """


class KafkaGroupShared(StartError):
    """Kafka holds a copy of an offset that another group of this store made: both use one ``kafka_group``."""

    default_next_step = (
        "Give each group a kafka_group of its own (the default is the group's name). Claim a renamed group by its new "
        "name. If the other group is gone, delete the offsets in Kafka, or reset this group: "
        "`offsetstore reset` makes the stored offsets count."
    )


class KafkaGroupContested(StartError):
    """Another application used the group in Kafka while the job ran; its offsets are not adopted."""

    default_next_step = NextStep.SEPARATE_GROUPS


class KafkaGroupInUse(StartError):
    """``on_members="refuse"``: the group in Kafka has members, so another application uses it."""

    default_next_step = (
        "Give this job a group of its own in Kafka (kafka_group=), or stop the other application; "
        "`kafka-consumer-groups --describe --members` shows its address."
    )


class CheckpointAhead(StartError):
    """The kept checkpoint has committed batches beyond the stored offset; nothing was written."""

    default_next_step = "Restore the newer database, or move the checkpoint away to start with an empty state."


class CheckpointBehind(StartError):
    """The kept checkpoint replays records that are in the results, and its batches can't be cropped."""

    default_next_step = (
        "If the checkpoint is an older copy, restore the newer one. If the stored offset was moved (a reset, an offset "
        "adopted from Kafka), there is none: move the checkpoint away to start with an empty state."
    )


class UncertainBatch(StartError):
    """The last batch of the checkpoint to adopt has no commit: its results may or may not have been written."""

    default_next_step = NextStep.LOOK_FOR_RESULTS


class OutboxUncertain(StartError):
    """The number of the last batch in Kafka does not fit the one in the database; the relay has sent nothing."""

    default_next_step = NextStep.LOOK_FOR_RECORDS


class ClaimError(OffsetStoreError):
    """The claim does not allow this.

    What to do: see which of its classes it is; each has a next step.
    """


class StaleClaim(ClaimError):
    """Another claim has taken over the group, or it was reset or renamed. Nothing of this transaction was written."""

    default_next_step = "Another job now owns this group. Restart this one only if the other should not be running."


class PartitionLost(StaleClaim):
    """Another member of the fleet has taken the partition, or this one has given it back. Nothing was written.

    Except if the answer to COMMIT was lost and others have gone on since: then it may have been written, and they have
    begun behind it. The fleet still has the group. The member's claim no longer has the lost partitions, and keeps the
    rest.
    """

    default_next_step = "Leave the partition out, and write the rest again; take it again if Kafka assigns it."


class GroupBusy(ClaimError):
    """The group has a live owner, and ``takeover`` does not allow fencing it."""

    default_next_step = 'Stop the other job, wait longer (takeover_timeout=), or take over with takeover="fence".'


class ClaimInUse(ClaimError):
    """A claim serves one streaming query; a second query would skip what the first has written."""

    default_next_step = "Give each query a consumer group and a claim of its own."


class GroupRenamed(ClaimError):
    """The group has another name now, and its offsets are stored under it."""

    default_next_step = "Claim it by the new name; to start afresh, use a name that no group has had."


class RelayFenced(OffsetStoreError):
    """Another relay has taken the outbox over; this one sends nothing more. What it sent is not sent again."""

    default_next_step = "One relay serves a store. Start this one again only if the other should not be running."


class TransactionError(OffsetStoreError):
    """The transaction failed; with `CommitUnknown`, it may have been committed.

    What to do: see which of its classes it is; each has a next step.
    """


class OffsetGap(TransactionError):
    """The range begins above the stored offset: records in between would be lost. Nothing was written."""

    default_next_step = (
        "Start the job from the stored offset: give Spark a new claim's starting_offsets and a new checkpoint, "
        "claim.checkpoint(base). Another query's checkpoint would override it; adopt_checkpoint= takes one over."
    )


class LockTimeout(TransactionError):
    """A partition's row, or what the results are written to, is locked by another transaction. Nothing was written.

    ``table`` is the table that could not be locked as a whole, quoted; ``None`` if it was something else.
    """

    table: str | None = None

    default_next_step = "See what the holder is doing (pg_stat_activity), or raise lock_timeout."

    def name_holder(self, holder: str) -> None:
        self.found = holder
        self.args = (self._text(),)


class TransactionLost(TransactionError):
    """The transaction was rolled back: the connection broke, or the database aborted it."""

    default_next_step = "Run it again, or use store.run, which does so by itself."


class ConnectionLost(TransactionLost):
    """The connection to the database broke: an open transaction did not happen."""


class TransactionConflict(TransactionLost):
    """The database aborted the transaction: a deadlock, or a serialization failure."""


class CommitUnknown(TransactionError):
    """COMMIT was sent, the answer was lost, and the rows no longer show whether it happened."""

    default_next_step = "Start the job again: it begins at the offsets that the database holds."


class ProtocolMisuse(TransactionError):
    """The transaction was used in an order that would break the guarantee.

    It was rolled back, unless the message says otherwise.

    What to do: correct the code that uses the transaction.
    """


class NestedTransaction(ProtocolMisuse):
    """A transaction inside a transaction of the same thread."""

    default_next_step = "Use the outer transaction, or finish it first."


class LockFirst(ProtocolMisuse):
    """``lock`` has to be called first: this is only safe under the partitions' locks."""

    default_next_step = "Call tx.lock(ranges) first; tx.lock({}) if there are no ranges."


class LockedTwice(ProtocolMisuse):
    """``lock`` can be called only once in a transaction: two calls could take locks out of order."""

    default_next_step = "Lock all partitions of the transaction in one call."


class LockInSavepoint(ProtocolMisuse):
    """``ROLLBACK TO`` would drop the locks."""

    default_next_step = "Call tx.lock before begin_nested()."


class Unadvanced(ProtocolMisuse):
    """A locked partition was not advanced: its results would be written again."""

    default_next_step = "Call tx.advance for every partition that is not SKIP, or raise to roll back."


class AdvanceMismatch(ProtocolMisuse):
    """``advance`` takes exactly the range that ``lock`` returned."""

    default_next_step = "Pass plan[topic_partition].remaining."


class MarkBackwards(ProtocolMisuse):
    """A mark at or below the stored offset, or below an earlier mark of the transaction."""

    default_next_step = (
        "A mark is one above the last offset that is done. To read records again, use offsetstore reset, which is "
        "kept in the history."
    )


class MarkBeyondDelivered(ProtocolMisuse):
    """A mark above what the job was given: the records in between would be lost."""

    default_next_step = (
        "Mark at most the end of the range, work.ranges[topic_partition].until; of a partition without new records, at "
        "most claim.delivered[topic_partition]."
    )


class UnexpectedCommit(ProtocolMisuse):
    """A COMMIT or ROLLBACK inside the block ended the transaction; results may be stored without their offset."""

    default_next_step = (
        "Remove the COMMIT or ROLLBACK from the code (or procedure) that runs inside the block. What was written "
        "before a COMMIT may be there without its offset: remove it before the job runs again."
    )


class DeadLetterError(OffsetStoreError):
    """A decision about a dead letter is not possible; nothing was written.

    What to do: see which of its classes it is; each has a next step.
    """


class LettersOpen(DeadLetterError):
    """The group has dead letters whose records are not in the results but may still get there; it was not deleted."""

    default_next_step = NextStep.SETTLE_LETTERS


class UnknownLetter(DeadLetterError):
    """The store has no such dead letter."""

    default_next_step = "Correct topic, partition and offset; `offsetstore dead-letters list` shows a group's letters."


class LetterSettled(DeadLetterError):
    """The letter was replayed, discarded or superseded."""

    default_next_step = (
        "To process its record again, produce it to the topic again, as `offsetstore dead-letters export` has it."
    )


class PayloadMissing(DeadLetterError):
    """The letter holds no record to replay: it was left out, or erased."""

    default_next_step = "If Kafka still has the record, read it again with `offsetstore reset`; or discard the letter."


class MetadataError(OffsetStoreError, ValueError):
    """Metadata can't be serialized, can't be read back, or is too large. Nothing was written.

    What to do: correct the value, or read it with the deserializer of the job that wrote it.
    """


class SinkError(OffsetStoreError):
    """The micro-batch can't be written; none of it was stored.

    What to do: see which of its classes it is; correct the transform or the table, and start the job again.
    """


class ColumnMismatch(SinkError):
    """The DataFrame's columns don't fit the table's. Nothing was written.

    What to do: change the transform or the table; docs/types.md has the types that fit, and how to convert.
    """


class UnsafeTarget(SinkError):
    """The target, or a partition of it, could lose results that the stored offsets count. Nothing was written.

    It is UNLOGGED (a crash of the database empties it), temporary (it ends with its connection), or a foreign table
    (its server commits separately).

    What to do: write to an ordinary table of this database.
    """


class TargetRefused(SinkError):
    """The database lets no row into the target, whatever its values. Nothing was written.

    What to do: correct the table, or the trigger or policy that the message names, and start the job again.
    """


class RowsRefused(SinkError):
    """The table can't hold a value or a row. Of the batch, only the records in ``stored`` were written.

    ``table``, ``column``, ``constraint`` and ``sqlstate`` say which, as far as is known; ``output`` is the name of
    the sink's output. Values are never shown. ``offsets`` is the range of ``topic_partition`` that the row was made of:
    a single offset if that record is shown to be the cause. ``stored`` are the records before it, which were written,
    with their offsets, in separate transactions: a reset to the next offset skips only the refused record.

    ``row`` is only a hint for the search: the number of the row in its COPY, from 1, if the database named one.
    """

    row: int | None = None

    default_next_step = "Correct or filter such rows in the transform."

    _fields: ClassVar[tuple[str, ...]] = ("table", "column", "constraint", "sqlstate", "output", "offsets", "stored")

    def __init__(
        self,
        what: str,
        *,
        table: str | None = None,
        column: str | None = None,
        constraint: str | None = None,
        sqlstate: str | None = None,
        output: str | None = None,
        offsets: OffsetRange | None = None,
        stored: Mapping[TopicPartition, OffsetRange] | None = None,
        **fields: Any,
    ) -> None:
        self.table = table
        self.column = column
        self.constraint = constraint
        self.sqlstate = sqlstate
        self.output = output
        self.offsets = offsets
        self.stored = dict(stored or {})
        super().__init__(what, **fields)

    def because(self, why: str, next_step: str) -> Self:
        """Say more about the cause; return the error."""
        self.what = f"{self.what}, {why}"
        self.next_step = next_step
        self.args = (self._text(),)
        return self

    def among(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        place: str,
        *,
        stored: Mapping[TopicPartition, OffsetRange],
        next_step: str,
    ) -> RowsRefused:
        """Return the same error for these records, from which the refused row was made.

        :param place: a sentence that names them.
        :param stored: the records that were written all the same.
        """
        rebuilt = copy(self)
        rebuilt.topic_partition, rebuilt.offsets = next(iter(ranges.items())) if len(ranges) == 1 else (None, None)
        rebuilt.found = place if self.found is None else f"{self.found}; {place}"
        rebuilt.stored = dict(stored)
        rebuilt.next_step = next_step
        rebuilt.args = (rebuilt._text(),)  # noqa: SLF001 - it is the class's own
        rebuilt.__cause__ = self.__cause__
        return rebuilt

    def __reduce__(self) -> tuple[Callable[..., OffsetStoreError], tuple[Any, ...]]:
        rebuild, (cls, what, fields) = super().__reduce__()
        return rebuild, (cls, what, {**fields, **{name: getattr(self, name) for name in self._fields}})


class RecordsRejected(RowsRefused):
    """The function of an `Execute` named records with ``work.dead_letter``, and the sink keeps no dead letters.

    ``reasons`` has the function's text for each (partition, offset), and ``codes`` the code where it gave one.
    """

    default_next_step = (
        "Give the sink dead_letters=DeadLetters(), which needs automatic marking, or correct the records."
    )

    _fields = (*RowsRefused._fields, "reasons", "codes")

    def __init__(
        self,
        what: str,
        *,
        reasons: Mapping[tuple[TopicPartition, int], str] | None = None,
        codes: Mapping[tuple[TopicPartition, int], str] | None = None,
        **fields: Any,
    ) -> None:
        self.reasons = dict(reasons or {})
        self.codes = dict(codes or {})
        super().__init__(what, **fields)


class FunctionFailed(RowsRefused):
    """A function of the job raised an error, or Spark can't compute a row.

    ``error_class`` is the error's name. Its ``text`` and ``traceback`` may quote a record, and are not shown; the
    exception's cause is the error itself, in the process that raised it. If a job with dead letters ends with it, there
    is no text and no cause, and the traceback, like a note, has only the places. ``is_of_record``: a trial has shown
    that the record is at fault, since others can be computed; if there is no other to try, earlier deliveries decide.
    Otherwise it counts as a bug in the function. ``is_of_call``: a `Handler`'s call raised it, so the record is known.
    """

    default_next_step = "Correct the function, or have the transform reject such records."

    _fields = (*RowsRefused._fields, "error_class", "text", "traceback", "is_of_record", "is_of_call")

    def __init__(
        self,
        what: str,
        *,
        error_class: str = "",
        text: str = "",
        traceback: str | None = None,
        is_of_record: bool = False,
        is_of_call: bool = False,
        **fields: Any,
    ) -> None:
        self.error_class = error_class
        self.text = text
        self.traceback = traceback
        self.is_of_record = is_of_record
        self.is_of_call = is_of_call
        super().__init__(what, **fields)


class HandlerStuck(SinkError):
    """No call of a handler returns any more, so other records can't be handled; nothing of the batch was written."""

    default_next_step = (
        "Find out what the call waits for. Neither a thread nor blocking code in an async function can be ended: start "
        "the job again, and give the function's client a timeout of its own."
    )


class Outage(Exception):
    """Raise it in a function if a service that it needs is down: then no record is to blame."""


class FunctionEnded(Exception):
    """A function has raised its cause, which is no ``Exception``, such as `SystemExit`: it ends only the call."""


def as_raised(error: BaseException) -> BaseException:
    """Return what the function itself raised."""
    return (error.__cause__ or error) if isinstance(error, FunctionEnded) else error


class TooManyLetters(SinkError):
    """A batch has so many bad records that they look like a bug or an outage. Parts that were stored stay stored."""

    default_next_step = (
        "Look for what they have in common: a changed table, a changed transform, a producer's new format. Correct it, "
        "and start the job again. If these records are bad, have the transform reject them with _reject."
    )


class KafkaColumnsMissing(SinkError):
    """The sink needs Kafka's coordinates of each row, and the DataFrame has lost them.

    What to do: give foreachBatch the DataFrame that load() returned, and keep the column ``_kafka`` in the transform.
    """


class ExecutorEnvironment(SinkError):
    """Spark's executors lack the packages that write to the database, or have other versions than the driver."""

    default_next_step = (
        "Ship an environment: --archives environment.tar.gz#environment, PYSPARK_PYTHON=./environment/bin/python; or "
        "install offsetstore[executor] on the workers, in the driver's versions. See the page 'Prepare executors' of "
        "the documentation."
    )


class ExitCode(IntEnum):
    """What scripts and supervisors can rely on; `offsetstore --help` and docs/supervise.md say what each means."""

    OK = 0
    NO = 1
    USAGE = 2
    DATABASE = 3
    BROKER = 4
    OTHER = 5
    FENCED = 6
    BUG = 70
    DEAD = 75
    INTERRUPTED = 130
    UNREAD = 141


def next_step_after(name: str) -> str:
    """Return the usual next step after an error of the class with this name, ``""`` if there is none."""
    kind = globals().get(name)
    return kind.default_next_step if isinstance(kind, type) and issubclass(kind, OffsetStoreError) else ""


# The first that fits counts: `UnknownGroup` and `OffsetMoved` are configuration errors, too. A fenced job has its own
# code, since a supervisor that starts it again takes the group back (decision 0038).
_EXIT_CODES: Final[tuple[tuple[ExitCode, tuple[type[BaseException], ...]], ...]] = (
    (ExitCode.FENCED, (StaleClaim, RelayFenced)),
    (ExitCode.NO, (StartError, UnknownGroup, OffsetMoved, GroupBusy, GroupRenamed, DeadLetterError, PlanChanged)),
    (ExitCode.USAGE, (ConfigurationError,)),
    (ExitCode.DATABASE, (StoreUnavailable, MissingPrivilege, SchemaError, LockTimeout, TransactionLost)),
    (ExitCode.BROKER, (BrokerError,)),
    (ExitCode.OTHER, (OffsetStoreError,)),
    (ExitCode.INTERRUPTED, (KeyboardInterrupt,)),
)


_LASTING: Final = (
    ConfigurationError,
    MissingPrivilege,
    SchemaError,
    BrokerRefused,
    ColumnMismatch,
    UnsafeTarget,
    TargetRefused,
    KafkaColumnsMissing,
)


def is_lasting(error: BaseException) -> bool:
    """Whether a restart meets the same error again, until someone has corrected what it names."""
    # `TlsFailed` may pass: a proxy whose broker is down breaks the handshake off, too.
    return isinstance(error, _LASTING) and not isinstance(error, TlsFailed)


def exit_code(error: BaseException | None) -> ExitCode:
    """Return the exit code for an error: it says what to correct, or whether to start again.

    In a job: ``sys.exit(exit_code(sink.error or error))`` where ``error`` is what ``awaitTermination()`` raised.

    :param error: ``None`` for a good end.
    """
    if error is None:
        return ExitCode.OK
    # What fails for every record is a bug in the function, whatever it raises (decision 0099).
    if isinstance(error, FunctionFailed) and not error.is_of_record:
        return ExitCode.BUG
    return next((code for code, kinds in _EXIT_CODES if isinstance(error, kinds)), ExitCode.BUG)
