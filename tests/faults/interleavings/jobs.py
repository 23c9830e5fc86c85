"""Jobs of one group as actors: what they do, how each must end, and what the database must hold afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast
from uuid import uuid4

import psycopg

from offsetstore import Claim, OffsetRange, OffsetStore, Outcome, TopicPartition
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.protocol.starting import StartPolicy
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import Member, join
from offsetstore.store.identity import ClaimInfo, TaskClaim, name_prefix
from offsetstore.testing import StaticBroker
from tests.faults.interleavings.endings import Found, check_database, check_refused, expected_endings
from tests.faults.interleavings.interleaving import Actor, Part, Played, every_order, play
from tests.faults.interleavings.stepped import SteppedDatabase
from tests.support.postgres import Database

P0, P1, P2, NEW = (TopicPartition("payments", number) for number in range(4))
"""The claims know the first three, each stored at 0."""
KNOWN_PARTITIONS: Final = (P0, P1, P2)
KAFKA_GROUP: Final = "in Kafka"

KNOWN: Final = ("lock", "compare", "write", "advance", "commit")
UNKNOWN: Final = ("share group", "insert", *KNOWN)
ASSIGN: Final = ("assign's share group", "assign's lock", "assign's write tokens", "assign's commit")
JOIN: Final = ("join's share group", "join's commit")
FOUND: Final = (*JOIN, "join's lock group", "join's lock", "join's write tokens", "join's commit")
CLAIM: Final = ("claim's lock group", "claim's lock", "claim's write tokens", "claim's commit")

TABLES = """
ALTER TABLE kafka_partitions SET (autovacuum_enabled = off);
INSERT INTO kafka_partitions (consumer_group, topic, partition, next_offset, epoch, claim_id)
SELECT 'large', 'payments', number, 0, 1, gen_random_uuid() FROM generate_series(1, 20000) AS number;
CREATE TABLE results (consumer_group text, topic text, partition integer, record bigint, writer text);
CREATE TABLE advances (number bigint GENERATED ALWAYS AS IDENTITY, consumer_group text, topic text, partition integer,
                       from_offset bigint, to_offset bigint, epoch bigint);
CREATE FUNCTION note_advance() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.next_offset IS DISTINCT FROM OLD.next_offset THEN
        INSERT INTO advances (consumer_group, topic, partition, from_offset, to_offset, epoch)
        VALUES (NEW.consumer_group, NEW.topic, NEW.partition, OLD.next_offset, NEW.next_offset, NEW.epoch);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_advance AFTER INSERT OR UPDATE ON kafka_partitions FOR EACH ROW EXECUTE FUNCTION note_advance();
"""
"""Results have no unique key, which would hide a duplicate; and every advance is noted by the database itself.

Another group is so large that rows are looked up one by one, and would be locked in the order in which a task names
them, were they not sorted.
"""

_WRITE = "INSERT INTO results SELECT %s, %s, %s, record, %s FROM generate_series(%s::bigint, %s - 1) AS record"
_STORED = "SELECT consumer_group, topic, partition, next_offset FROM kafka_partitions"
_ADVANCES = "SELECT consumer_group, topic, partition, from_offset, to_offset, epoch FROM advances"
_MODEL = "model"
_COPY = """
INSERT INTO consumer_groups (consumer_group, epoch, claim_id, owner)
SELECT '{group}', epoch, claim_id, owner FROM consumer_groups WHERE consumer_group = '{model}';
INSERT INTO kafka_partitions (consumer_group, topic, partition, next_offset, topic_id, cluster_id, epoch, claim_id)
SELECT '{group}', topic, partition, next_offset, topic_id, cluster_id, epoch, claim_id
FROM kafka_partitions WHERE consumer_group = '{model}'
"""
_BLOCKERS = "SELECT pid, pg_blocking_pids(pid) FROM unnest(%s::integer[]) AS pid"


class Stop(Exception):
    """An error of user code."""


@dataclass(frozen=True)
class Job:
    """One transaction, with or without a claim before it.

    ``token`` is the one that its group has (``held``), one that a claim has made worthless before all began
    (``stale``), or that of a claim which is the job's first part (``own``). Such a claim asks ``broker``, if there is
    one, and then writes the offsets that it has resolved.

    Or it is done by a ``member`` of the group's fleet, which first takes the partitions of ``takes``; ``a`` has all
    known ones. Or a process ``joins`` the fleet of this group in Kafka. One that ``may_be_lost`` has waited for its own
    member, which remembers what it took a moment after that is committed.
    """

    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict[TopicPartition, OffsetRange])
    token: Literal["held", "stale", "own"] = "held"
    ends: Literal["commit", "rollback"] = "commit"
    steps: tuple[str, ...] = KNOWN
    broker: StaticBroker | None = None
    member: str = ""
    takes: tuple[TopicPartition, ...] = ()
    joins: str = ""
    may_be_lost: bool = False


@dataclass(frozen=True)
class Run:
    """One order that was played, in a group of its own, and how each job ended."""

    group: str
    played: Played
    endings: dict[str, str]

    def __str__(self) -> str:
        steps = ", ".join(f"{name} {step}" for name, step in self.played.steps)
        return f"order {' '.join(turn.actor for turn in self.played.turns)}\nsteps {steps}\nended {self.endings}"


class Jobs:
    """Plays jobs against each other, on one database and with few connections, each order in a group of its own."""

    def __init__(self, inner: PostgresDatabase, database: Database) -> None:
        self._inner = inner
        self._database = database
        self._tokens = {"stale": self._claim(), "held": self._claim()}
        self._claims: list[Claim] = []
        self._members: dict[str, Member] = {}
        self._watch = psycopg.connect(database.url, autocommit=True)

    def explore(self, **jobs: Job) -> list[Run]:
        """Play the jobs' steps in every order, and check each; return those that come to something different.

        :raises AssertionError: naming the order.
        """
        name = uuid4().hex[:8]
        runs: list[Run] = []

        def play_next(order: Sequence[str]) -> Played:
            runs.append(run := self._play(f"{name}-{len(runs)}", jobs, order))
            return run.played

        for played in every_order(play_next):
            run = runs[-1]
            lost = {one for one, job in jobs.items() if job.may_be_lost and run.endings[one] == "PartitionLost"}
            expected = expected_endings(jobs, KNOWN_PARTITIONS, played.steps, lost)
            assert run.endings == expected, f"{run}\nexpected {expected}"
        self._check(name, runs)
        return runs

    def _play(self, group: str, jobs: Mapping[str, Job], order: Sequence[str]) -> Run:
        tokens = {} if any(job.member for job in jobs.values()) else self._new_group(group)
        if not tokens:
            self._new_fleet(group, {job.member for job in jobs.values() if job.member})
        parts = {name: self._part(job, group, tokens) for name, job in jobs.items()}
        try:
            played = play(parts, order, self._blockers)
        finally:
            # Not by the actors: to end its heartbeat, a job waits for a claim that is about to remove it.
            while self._claims:
                self._claims.pop().close()
        endings: dict[str, str] = {}
        for name, result in played.results.items():
            error = result.exception()
            endings[name] = str(result.result()) if error is None else _named(error)
        return Run(group, played, endings)

    def _claim(self) -> TaskClaim:
        with OffsetStore(self._inner).claim(_MODEL, _broker(), mirror_every=None) as claim:
            return TaskClaim.of(claim)

    def _new_group(self, group: str) -> dict[str, TaskClaim]:
        """Copy a group that was claimed twice, which is quicker than to claim another one twice."""
        self._database.execute(_COPY.format(model=_MODEL, group=group))
        return {name: replace(token, group=group, name=name_prefix(group)) for name, token in self._tokens.items()}

    def _new_fleet(self, group: str, names: AbstractSet[str]) -> None:
        """Found a fleet, whose member ``a`` has all partitions that it knows; another one is there since then."""
        broker = _broker()
        self._members = {
            name: join(OffsetStore(self._inner), _request(group, broker, KAFKA_GROUP)) for name in sorted(names | {"a"})
        }
        self._claims += self._members.values()
        self._members["a"].assign(KNOWN_PARTITIONS)
        broker.set_log(NEW, 0, 100)

    def _part(self, job: Job, group: str, tokens: Mapping[str, TaskClaim]) -> Part:
        def work(actor: Actor) -> str:
            store = OffsetStore(cast("PostgresDatabase", SteppedDatabase(self._inner, actor)))
            if job.joins:
                self._claims.append(join(store, _request(group, _broker(), job.joins)))
                return "joined"
            if job.member:
                return self._process_as_member(store, job, actor)
            if job.token != "own":
                return _process(store, TaskClaim.of(tokens[job.token]), job, actor)
            claim = store.claim(group, job.broker, topics=["payments"], mirror_every=None)
            self._claims.append(claim)
            if claim.starting is not None:
                stored = {tp: row.next_offset for tp, row in store.offsets(group).items()}
                assert claim.starting.offsets == stored, "the claim starts at what was no longer stored"
            return f"claimed {_process(store, claim, job, actor)}" if job.ranges else "claimed"

        rollbacks = ("rollback", *(f"{what}'s rollback" for what in ("claim", "join", "assign")))
        return Part(work, (*job.steps, *rollbacks))

    def _process_as_member(self, store: OffsetStore, job: Job, actor: Actor) -> str:
        member = self._members[job.member]
        if not job.takes:
            return _process(store, member, job, actor)
        member.database = store.database
        actor.pause("release")
        starts = member.assign(job.takes).offsets
        stored = {tp: row.next_offset for tp, row in store.offsets(member.group).items() if tp in starts}
        # Nobody but this member can have moved them since.
        assert starts == stored or not member.partitions >= starts.keys(), "it starts at what was no longer stored"
        return f"took {_process(store, member, job, actor)}" if job.ranges else "took"

    def _blockers(self, pids: Sequence[int]) -> dict[int, list[int]]:
        return dict(self._watch.execute(_BLOCKERS, (list(pids),)).fetchall())

    def _check(self, name: str, runs: list[Run]) -> None:
        where = f"WHERE consumer_group LIKE '{name}-%'"
        found = {run.group: Found(Counter()) for run in runs}
        for group, topic, partition, record, writer in self._database.rows(f"SELECT * FROM results {where}"):
            found[group].results[TopicPartition(topic, partition), record, writer] += 1
        for group, topic, partition, offset in self._database.rows(f"{_STORED} {where}"):
            found[group].stored[TopicPartition(topic, partition)] = offset
        for group, topic, partition, *move in self._database.rows(f"{_ADVANCES} {where} ORDER BY number"):
            moves = found[group].advances.setdefault(TopicPartition(topic, partition), [])
            moves.append((move[0], move[1], move[2]))
        for run in runs:
            try:
                check_refused(run.played.steps, run.endings)
                check_database(found[run.group], run.endings)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{run}") from None

    def close(self) -> None:
        self._watch.close()


def _broker() -> StaticBroker:
    return StaticBroker.with_topics({P0.topic: len(KNOWN_PARTITIONS)}, end=100)


def _request(group: str, broker: StaticBroker, kafka_group: str) -> ClaimRequest:
    return ClaimRequest(group, broker, (P0.topic,), StartPolicy(), "fence", 30.0, kafka_group)


def _process(store: OffsetStore, claim: ClaimInfo, job: Job, actor: Actor) -> str:
    with store.transaction(claim, lock_timeout=30) as tx:
        actor.pause("begin")
        plan = tx.lock(job.ranges)
        left = {tp: decision.remaining for tp, decision in plan.items() if decision.outcome is not Outcome.SKIP}
        if left:
            actor.pause("write")
            for tp, one in left.items():
                values = (claim.group, tp.topic, tp.partition, actor.name, one.from_, one.until)
                tx.connection.exec_driver_sql(_WRITE, values)
            tx.advance(left)
        if job.ends == "rollback":
            raise Stop
    return " ".join(decision.outcome.value for decision in plan.values())


def _named(error: BaseException) -> str:
    return "rolled back" if isinstance(error, Stop) else type(error).__name__
