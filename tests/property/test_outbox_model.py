"""The relay's machine against a model of both sides: any steps of any relays in any order, and crashes between them."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from offsetstore.errors import BrokerUnavailable, OffsetStoreError, OutboxUncertain, RelayFenced
from offsetstore.protocol.outbox import (
    LOOKS,
    AskForMark,
    CheckToken,
    Fence,
    Fetch,
    KafkaMark,
    Mark,
    OutboxRow,
    Peek,
    Probe,
    Read,
    ReadRows,
    Refusal,
    Rest,
    Send,
    Standing,
    Step,
    Take,
    WaitForMark,
    WriteBatch,
    relaying,
)
from offsetstore.protocol.refusals import Topics

KEYS = ("a", "b", "c")
MOST = 4
TOPICS = {"a": "t", "b": "t", "c": "u", "d": "u"}
"""Of each key. Those of one topic may hold each other up, and others' may not."""


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a topic is blocked after two refusals in a row."""
    monkeypatch.setattr("offsetstore.protocol.refusals.MOST_IN_A_ROW", 2)


@dataclass
class Kafka:
    """What it has committed, whose producer may commit, which rows it refuses, and which topics it lacks.

    ``forgets``: how often it is asked for its mark in vain, after a restart.
    """

    producer: int = 0
    mark: Mark | None = None
    forgets: int = 0
    log: list[str] = field(default_factory=list[str])
    bad: set[str] = field(default_factory=set[str])
    missing: set[str] = field(default_factory=set[str])
    now: float = 0.0


@dataclass
class Relay:
    """One relay's process; ``producer`` is what Kafka gave it, ``step`` what its machine asks for."""

    world: World
    token: UUID = field(default_factory=uuid4)
    producer: int = 0
    has_taken: bool = False
    has_ended: bool = False
    machine: Generator[Step, Any, Any] = field(init=False)
    step: Step = field(init=False)
    topics: Topics = field(init=False)
    ahead: tuple[Sequence[int], Sequence[str], Sequence[OutboxRow]] | None = None

    def __post_init__(self) -> None:
        self.topics = Topics(MOST, lambda: self.world.kafka.now)
        self.begin()

    def begin(self) -> None:
        rows = len(self.step.rows) if self.has_taken and isinstance(self.step, Send) else 2 * MOST
        self.machine = relaying(again=self.has_taken, most=MOST, limit=max(1, rows // 2), topics=self.topics)
        self.step = next(self.machine)
        self.ahead = None


@dataclass
class World:
    """A database and Kafka, as whoever does the steps sees them. A row's value says which row it is.

    A copy of the database has the same Kafka, and may give its own rows the same ids.
    """

    kafka: Kafka = field(default_factory=Kafka)
    visible: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    aside: set[str] = field(default_factory=set[str])
    token: UUID | None = None
    standing: Standing = field(default_factory=Standing)
    gone: list[str] = field(default_factory=list[str])

    def copy(self) -> World:
        """What a replica has now, or a snapshot of the server's files."""
        return World(self.kafka, {**self.visible}, {*self.aside}, self.token, self.standing, [*self.gone])

    def look(self, most: int, without: Sequence[int], but: Collection[str] = (), only: str = "") -> list[OutboxRow]:
        rows = self.rows([id_ for id_ in sorted(self.visible) if id_ not in without])
        return [row for row in rows if row.topic not in but and row.topic == (only or row.topic)][:most]

    def rows(self, ids: Sequence[int]) -> list[OutboxRow]:
        return [
            OutboxRow(id_, TOPICS[key], key.encode(), name.encode(), wrong="no record" if self.is_wrong(name) else None)
            for id_ in ids
            if id_ in self.visible
            for key, name in [self.visible[id_]]
        ]

    def is_wrong(self, name: str) -> bool:
        """Some of what Kafka refuses is known without asking it."""
        return name in self.kafka.bad and name.isdigit() and int(name) % 5 == 4

    def do(self, relay: Relay, *, renew: bool = False) -> Any:  # noqa: C901, PLR0911, PLR0912 - one case for each step
        match relay.step:
            case Peek():
                return self.standing
            case Take():
                self.token = relay.token
                relay.has_taken = True
            case CheckToken():
                self.expect(relay)
            case Fence():
                self.kafka.producer += 1
                relay.producer = self.kafka.producer
            case AskForMark():
                if self.kafka.mark is not None and self.kafka.forgets:
                    self.kafka.forgets -= 1
                    return KafkaMark("cluster", None)
                return KafkaMark("cluster", *(self.kafka.mark or (None, None)))
            case Read():
                self.expect(relay)
                return self.standing
            case Fetch(ids=ids):
                return self.rows(ids)
            case ReadRows(most=most, without=without, only=only, but=but):
                if relay.ahead is not None and relay.ahead[:2] == (without, but) and only is None:
                    return relay.ahead[2][:most]
                return self.look(most, without, but, only or "")
            case Probe(topics=topics):
                return {topic: "no topic" for topic in topics if topic in self.kafka.missing}
            case WriteBatch() as step:
                self.expect(relay)
                self.record(step)
            case Send(mark=mark, rows=rows, kafka=kafka):
                if rows and relay.producer == self.kafka.producer:
                    assert kafka == self.kafka.mark  # else it could not set it again
                return self.send(relay, mark, rows)
            case Rest():
                return renew
            case WaitForMark():
                pass
        return None

    def expect(self, relay: Relay) -> None:
        if self.token != relay.token:
            raise RelayFenced("another relay has taken over")

    def record(self, step: WriteBatch) -> None:
        if step.cluster_id is None and not self.visible.keys() >= {*step.ids}:
            raise BrokerUnavailable("rows were taken out of the outbox")
        cluster = step.cluster_id or self.standing.cluster_id
        self.standing = Standing(step.mark.number, tuple(step.ids), cluster, step.mark.word, step.before)
        for id_ in step.done:
            if id_ in self.visible:
                self.gone.append(self.visible.pop(id_)[1])
        for id_ in step.refused:
            self.aside.add(self.visible.pop(id_)[1])

    def send(self, relay: Relay, mark: Mark, rows: Sequence[OutboxRow]) -> Refusal | None:
        if relay.producer != self.kafka.producer:
            raise BrokerUnavailable("Kafka ended the producer")
        refused = {row.id for row in rows if named(row) in self.kafka.bad}
        if any(row.topic in self.kafka.missing for row in rows):
            raise BrokerUnavailable("no answer")
        if by_client := {id_: "too large" for id_ in refused if id_ % 5 == 3}:
            return Refusal(certain=by_client)
        if refused:
            certain = {id_: "no key" for id_ in refused if id_ % 5 == 2}
            near = {row.id for row in rows for one in refused - certain.keys() if abs(row.id - one) <= 1}
            suspected = dict.fromkeys(sorted(near - certain.keys()), "invalid")
            return Refusal(certain, suspected, is_proven=bool(certain) or min(refused) % 2 == 0)
        self.kafka.log += map(named, rows)
        self.kafka.mark = mark
        return None

    def step(self, relay: Relay, *, renew: bool = False) -> bool:
        """Let it do one step, unless it has ended; return whether it goes on."""
        if relay.has_ended:
            return False
        try:
            relay.step = relay.machine.send(self.do(relay, renew=renew))
        except (RelayFenced, OutboxUncertain):
            relay.has_ended = True
            return False
        except BrokerUnavailable:
            relay.begin()
        return True

    def finish(self, relay: Relay) -> bool:
        """Nobody disturbs it until it has no more to do; return whether it came so far."""
        for _ in range(2000):
            if isinstance(relay.step, Rest) and not (relay.topics.has_trials or self.waits_for_a_trial(relay)):
                return True
            self.kafka.now += 3 if isinstance(relay.step, Rest) else 0.01
            if not self.step(relay):
                return False
        raise AssertionError("it does not come to rest")

    def waits_for_a_trial(self, relay: Relay) -> bool:
        """Whether a topic is still blocked that Kafka would take something of."""
        rows = {one.topic: self.look(1, (), only=one.topic) for one in relay.topics.blocked}
        return any(
            not found or (topic not in self.kafka.missing and named(found[0]) not in self.kafka.bad)
            for topic, found in rows.items()
        )

    def bring_out(self) -> bool:
        """Another relay does what is left, once Kafka has all topics, and takes what blocked one."""
        self.kafka.missing.clear()
        relay = Relay(self)
        while self.finish(relay):
            if not (blocked := relay.topics.blocked):
                return True
            self.kafka.bad -= {named(row) for one in blocked for row in self.look(1, (), only=one.topic)}
        return False

    def check(self, committed: Mapping[str, Sequence[str]], other: World | None = None) -> None:
        """Each row is in Kafka at most once, in the order of the commits, and nothing has overtaken one of its key.

        What is no more in the outbox is in Kafka, or set aside.

        :param other: the other database.
        """
        log = self.kafka.log
        assert len({*log}) == len(log)
        assert not self.aside & {*log}
        assert {*self.gone} <= {*log}
        for rows in committed.values():
            sent = [row for row in log if row in rows]
            last = rows.index(sent[-1]) + 1 if sent else 0
            aside = self.aside if other is None else self.aside | other.aside
            assert [row for row in rows[:last] if row not in aside] == sent

    def check_all(self, committed: Mapping[str, Sequence[str]]) -> None:
        """The same, and each is there."""
        self.check(committed)
        assert {*self.kafka.log} | self.aside == {row for rows in committed.values() for row in rows}
        assert not self.visible


def named(row: OutboxRow) -> str:
    """Which row of the model it is."""
    return (row.value or b"").decode()


class Relaying(RuleBasedStateMachine):
    """Jobs write, relays come, go and stand still; at the end one relay brings out what is left."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.ids = 0
        self.open: dict[str, list[int]] = {}
        self.committed: dict[str, list[str]] = {key: [] for key in KEYS}
        self.relays: list[Relay] = []

    @rule(key=st.sampled_from(KEYS), rows=st.integers(1, 3), bad=st.sets(st.integers(0, 2), max_size=1))
    def write(self, key: str, rows: int, bad: set[int]) -> None:
        """A job's transaction; of one key, they follow each other. Others' may be open."""
        for place in range(rows):
            self.ids += 1
            self.open.setdefault(key, []).append(self.ids)
            if place in bad:
                self.world.kafka.bad.add(str(self.ids))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commits=st.booleans())
    def end(self, data: st.DataObject, commits: bool) -> None:  # noqa: FBT001 - hypothesis fills it in
        key = data.draw(st.sampled_from(sorted(self.open)))
        ids = self.open.pop(key)
        if commits:
            self.committed[key] += map(str, ids)
            self.world.visible |= {id_: (key, str(id_)) for id_ in ids}

    @precondition(lambda self: self.world.kafka.bad)
    @rule(data=st.data())
    def mend(self, data: st.DataObject) -> None:
        """Kafka takes it now: its topic was created, say."""
        self.world.kafka.bad.discard(data.draw(st.sampled_from(sorted(self.world.kafka.bad))))

    @rule(topic=st.sampled_from("tu"))
    def miss(self, topic: str) -> None:
        """A topic is deleted, or made again."""
        self.world.kafka.missing ^= {topic}

    @precondition(lambda self: self.world.visible)
    @rule(data=st.data())
    def set_aside(self, data: st.DataObject) -> None:
        """A person takes a row out of the way, which no batch has."""
        id_ = data.draw(st.sampled_from(sorted(self.world.visible)))
        if id_ not in self.world.standing.ids:
            self.world.aside.add(self.world.visible.pop(id_)[1])

    @rule(seconds=st.integers(1, 20))
    def pass_time(self, seconds: int) -> None:
        self.world.kafka.now += seconds

    @rule(times=st.integers(1, LOOKS - 1))
    def restart_broker(self, times: int) -> None:
        """For a while it does not know its mark."""
        self.world.kafka.forgets = times

    @precondition(lambda self: len(self.relays) < 3)
    @rule()
    def start(self) -> None:
        self.relays.append(Relay(self.world))

    def one(self, data: st.DataObject) -> Relay:
        return self.relays[data.draw(st.integers(0, len(self.relays) - 1))]

    @precondition(lambda self: self.relays)
    @rule(data=st.data(), steps=st.integers(1, 24), renew=st.booleans())
    def go_on(self, data: st.DataObject, steps: int, renew: bool) -> None:  # noqa: FBT001 - as above
        relay = self.one(data)
        for _ in range(steps):
            if not self.world.step(relay, renew=renew):
                self.relays.remove(relay)
                return

    @precondition(lambda self: self.relays)
    @rule(data=st.data())
    def look_ahead(self, data: st.DataObject) -> None:
        """While a batch is being sent, the next one is looked for."""
        relay = self.one(data)
        if isinstance(relay.step, Send) and relay.step.rows:
            sent = [row.id for row in relay.step.rows]
            but = tuple(relay.topics.apart)
            relay.ahead = sent, but, self.world.look(MOST, sent, but)

    @precondition(lambda self: self.relays)
    @rule(data=st.data(), how=st.sampled_from(["before", "answer lost", "killed", "killed after it", "timed out"]))
    def break_(self, data: st.DataObject, how: str) -> None:
        """A connection breaks, before a step or before its answer comes; or the process ends there; or Kafka ends a
        transaction that has taken too long.
        """
        relay = self.one(data)
        is_fenced = False
        if how == "timed out":
            self.world.kafka.producer += 1
            return
        if how in {"answer lost", "killed after it"}:
            try:
                self.world.do(relay)
            except OffsetStoreError as error:
                is_fenced = isinstance(error, RelayFenced)
        if how.startswith("killed") or is_fenced or not relay.has_taken:
            self.relays.remove(relay)
        else:
            relay.begin()

    @invariant()
    def each_row_is_in_kafka_at_most_once_and_in_order(self) -> None:
        self.world.check(self.committed)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            assert self.world.bring_out()
            self.world.check_all(self.committed)


@pytest.mark.behaviour("OUT-2", "OUT-3", "OUT-4", "OUT-6")
class TestRelaying(Relaying.TestCase):
    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.behaviour("OUT-2", "OUT-3", "OUT-4", "OUT-6")
@pytest.mark.parametrize("bad", [(), (1,), (2,), (2, 4), (1, 2, 3, 4, 5, 6)], ids=str)
@pytest.mark.parametrize("ends", [False, True], ids=["it stands still", "it is killed"])
def test_one_relay_stands_still_or_ends_at_any_step_and_another_comes_at_any_step(
    bad: Collection[int], *, ends: bool
) -> None:
    """All interleavings in which the first pauses once, and the second once."""
    steps_ = steps_of(bad)
    for first in range(min(40, steps_)):
        for second in range(min(28, steps_)):
            for more in (0,) if ends else (1, 2, 3, 5):
                world = world_of(bad)
                relays = Relay(world), Relay(world)
                for relay, steps in (relays[0], first), (relays[1], second), (relays[0], more):
                    if not all(world.step(relay) for _ in range(steps)):
                        break
                world.finish(relays[1])
                if not ends:
                    world.finish(relays[0])
                assert world.bring_out()
                world.check_all(COMMITTED)


def steps_of(bad: Collection[int]) -> int:
    """How many steps a relay makes that nobody disturbs, and one more."""
    world = world_of(bad)
    relay, steps = Relay(world), 1
    while not isinstance(relay.step, Rest) and world.step(relay):
        steps += 1
    return steps


COMMITTED = {"a": ["1", "2", "3", "4", "5"], "b": ["6"], "c": ["7"]}


def world_of(bad: Collection[int]) -> World:
    """These rows, which have the same ids, of which Kafka refuses some."""
    rows = {int(row): (key, row) for key, rows in COMMITTED.items() for row in rows}
    return World(Kafka(bad={str(one) for one in bad}), visible=rows)


@pytest.mark.behaviour("OUT-2", "OUT-5")
@pytest.mark.parametrize("bad", [(), (2, 5)], ids=str)
@pytest.mark.parametrize("writes", ["neither", "both"])
def test_a_copy_of_the_database_and_the_original_never_take_one_another_s_batches_for_their_own(
    bad: Collection[int], writes: str
) -> None:
    """A replica that lags, or a snapshot of the files, whose relay reaches the same Kafka, at any step of the first's.

    Rows that both have are sent once; the one that finds another's mark is uncertain. What both write has the same ids.
    """
    for copied in range(min(32, steps_of(bad))):
        for first in (0, 1, 2, 3, 4, 5, 6, 8, 12, 16):
            for second in (1, 8, 12, 40):
                world = world_of(bad)
                relay = Relay(world)
                run(world, relay, copied)
                copy = world.copy()
                if writes == "both":
                    copy.visible[8] = ("c", "of the copy")
                    world.visible[8] = ("d", "of the original")
                run(world, relay, first)
                run(copy, Relay(copy), second)
                run(world, relay, 60)
                copy.bring_out()
                run(world, relay, 60)
                world.bring_out()
                committed = {**COMMITTED, "c": ["7", "of the copy"], "d": ["of the original"]}
                world.check(committed, copy)
                copy.check(committed, world)


def run(world: World, relay: Relay, steps: int) -> None:
    """Let it do some steps, or fewer if it ends."""
    for _ in range(steps):
        if isinstance(relay.step, Rest) or not world.step(relay):
            return
