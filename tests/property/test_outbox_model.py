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

from offsetstore.errors import BrokerUnavailable, OffsetStoreError, RelayFenced
from offsetstore.protocol.outbox import (
    Ask,
    Check,
    Fence,
    Fetch,
    Look,
    OutboxRecord,
    OutboxRow,
    Position,
    Read,
    Record,
    Refusal,
    Rest,
    Send,
    Standing,
    Step,
    Take,
    relaying,
)

KEYS = ("a", "b", "c")
MOST = 4


@dataclass
class Relay:
    """One relay's process; ``producer`` is what Kafka gave it, ``step`` what its machine asks for."""

    token: UUID = field(default_factory=uuid4)
    producer: int = 0
    machine: Generator[Step, Any, Any] = field(init=False)
    step: Step = field(init=False)
    ahead: tuple[Sequence[int], Sequence[OutboxRow]] | None = None

    def __post_init__(self) -> None:
        self.begin(again=False)

    def begin(self, *, again: bool = True) -> None:
        self.machine = relaying(again=again, most=MOST)
        self.step = next(self.machine)
        self.ahead = None


@dataclass
class World:
    """Both sides, as whoever does the steps sees them."""

    visible: dict[int, str] = field(default_factory=dict[int, str])
    aside: dict[int, str] = field(default_factory=dict[int, str])
    token: UUID | None = None
    standing: Standing = field(default_factory=lambda: Standing(None, (), None))
    producer: int = 0
    number: int | None = None
    log: list[int] = field(default_factory=list[int])
    bad: set[int] = field(default_factory=set[int])

    def look(self, most: int, without: Sequence[int]) -> list[OutboxRow]:
        return self.rows([id_ for id_ in sorted(self.visible) if id_ not in without][:most])

    def rows(self, ids: Sequence[int]) -> list[OutboxRow]:
        return [
            OutboxRow(id_, OutboxRecord("t", self.visible[id_].encode(), b"")) for id_ in ids if id_ in self.visible
        ]

    def do(self, relay: Relay, *, renew: bool = False) -> Any:  # noqa: C901, PLR0911 - one case for each step
        match relay.step:
            case Take():
                self.token = relay.token
            case Check():
                self.expect(relay)
            case Fence():
                self.producer += 1
                relay.producer = self.producer
            case Ask():
                return Position("cluster", self.number)
            case Read():
                self.expect(relay)
                return self.standing
            case Fetch(ids=ids):
                return self.rows(ids)
            case Look(most=most, without=without):
                if relay.ahead is not None and relay.ahead[0] == without:
                    return relay.ahead[1][:most]
                return self.look(most, without)
            case Record() as step:
                self.expect(relay)
                self.record(step)
            case Send(number=number, rows=rows):
                return self.send(relay, number, rows)
            case Rest():
                return renew
        return None

    def expect(self, relay: Relay) -> None:
        if self.token != relay.token:
            raise RelayFenced("another relay has taken over")

    def record(self, step: Record) -> None:
        self.standing = Standing(step.number, tuple(step.ids), step.cluster_id or self.standing.cluster_id)
        for id_ in step.done:
            self.visible.pop(id_, None)
        for id_ in step.refused:
            self.aside[id_] = self.visible.pop(id_)

    def send(self, relay: Relay, number: int, rows: Sequence[OutboxRow]) -> Refusal | None:
        if relay.producer != self.producer:
            raise BrokerUnavailable("Kafka ended the producer")
        ids = [row.id for row in rows]
        refused = self.bad.intersection(ids)
        if certain := {id_: "too large" for id_ in refused if id_ % 2}:
            return Refusal(certain=certain)
        if refused:
            near = {id_ for id_ in ids for one in refused if abs(id_ - one) <= 1}
            return Refusal(suspected=dict.fromkeys(near, "invalid"))
        self.log += ids
        self.number = number
        return None

    def step(self, relay: Relay, *, renew: bool = False) -> bool:
        """Let it do one step; return whether it goes on."""
        try:
            relay.step = relay.machine.send(self.do(relay, renew=renew))
        except RelayFenced:
            return False
        except BrokerUnavailable:
            relay.begin()
        return True

    def bring_out(self) -> None:
        """A relay that nobody disturbs does what is left."""
        last = Relay()
        for _ in range(1000):
            if isinstance(last.step, Rest):
                return
            assert self.step(last)
        raise AssertionError("it does not come to rest")

    def check(self, committed: Mapping[str, Sequence[int]]) -> None:
        """Each row is in Kafka at most once, in the order of the commits, and nothing has overtaken one of its key."""
        assert len(set(self.log)) == len(self.log)
        assert not self.aside.keys() & set(self.log)
        for ids in committed.values():
            sent = [id_ for id_ in self.log if id_ in ids]
            assert sent == sorted(sent)
            if sent:
                assert [id_ for id_ in ids if id_ <= sent[-1] and id_ not in self.aside] == sent

    def check_all(self, committed: Mapping[str, Sequence[int]]) -> None:
        """The same, and each is there."""
        self.check(committed)
        assert set(self.log) | self.aside.keys() == {id_ for ids in committed.values() for id_ in ids}
        assert not self.visible


class Relaying(RuleBasedStateMachine):
    """Jobs write, relays come, go and stand still; at the end one relay brings out what is left."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.ids = 0
        self.open: dict[str, list[int]] = {}
        self.committed: dict[str, list[int]] = {key: [] for key in KEYS}
        self.relays: list[Relay] = []

    @rule(key=st.sampled_from(KEYS), rows=st.integers(1, 3), bad=st.sets(st.integers(0, 2), max_size=1))
    def write(self, key: str, rows: int, bad: set[int]) -> None:
        """A job's transaction; of one key, they follow each other. Others' may be open."""
        for place in range(rows):
            self.ids += 1
            self.open.setdefault(key, []).append(self.ids)
            if place in bad:
                self.world.bad.add(self.ids)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commits=st.booleans())
    def end(self, data: st.DataObject, commits: bool) -> None:  # noqa: FBT001 - hypothesis fills it in
        key = data.draw(st.sampled_from(sorted(self.open)))
        ids = self.open.pop(key)
        if commits:
            self.committed[key] += ids
            self.world.visible |= dict.fromkeys(ids, key)

    @precondition(lambda self: self.world.bad)
    @rule(data=st.data())
    def mend(self, data: st.DataObject) -> None:
        """Kafka takes it now: its topic was created, say."""
        self.world.bad.discard(data.draw(st.sampled_from(sorted(self.world.bad))))

    @precondition(lambda self: len(self.relays) < 3)
    @rule()
    def start(self) -> None:
        self.relays.append(Relay())

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
            relay.ahead = sent, self.world.look(MOST, sent)

    @precondition(lambda self: self.relays)
    @rule(data=st.data(), how=st.sampled_from(["before", "answer lost", "killed", "killed after it", "timed out"]))
    def break_(self, data: st.DataObject, how: str) -> None:
        """A connection breaks, before a step or before its answer comes; or the process ends there; or Kafka ends a
        transaction that has taken too long.
        """
        relay = self.one(data)
        is_fenced = False
        if how == "timed out":
            self.world.producer += 1
            return
        if how in {"answer lost", "killed after it"}:
            try:
                self.world.do(relay)
            except OffsetStoreError as error:
                is_fenced = isinstance(error, RelayFenced)
        if how.startswith("killed") or is_fenced or isinstance(relay.step, Take):
            self.relays.remove(relay)
        else:
            relay.begin()

    @invariant()
    def each_row_is_in_kafka_at_most_once_and_in_order(self) -> None:
        self.world.check(self.committed)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.bring_out()
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
    committed = {"a": [1, 2, 3, 4, 5], "b": [6]}
    for first in range(32):
        for second in range(20):
            for more in (0,) if ends else (1, 2, 3, 5):
                world = World(bad=set(bad), visible={id_: key for key, ids in committed.items() for id_ in ids})
                relays = Relay(), Relay()
                for relay, steps in (relays[0], first), (relays[1], second), (relays[0], more):
                    if not all(world.step(relay) for _ in range(steps)):
                        break
                while not isinstance(relays[1].step, Rest) and world.step(relays[1]):
                    pass
                while not ends and not isinstance(relays[0].step, Rest) and world.step(relays[0]):
                    pass
                world.bring_out()
                world.check_all(committed)
