"""The outbox goes to Kafka while relays die, are doubled or frozen, and Kafka and the database go away."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import RECOVERY, Scene, Violation
from tests.faults.chaos.means.breaking import MODES, drawn, stands
from tests.faults.chaos.means.kept import Kept
from tests.faults.chaos.means.relays import Relays, Writers, differences
from tests.support.outbox import by_key
from tests.support.waiting import wait_until

ROW: Final = "the outbox"
MUST: Final = (
    "each row once for `read_committed` readers, in the order of commits within a key, or set aside; no topic waits "
    "for another"
)

STEPS: Final = {
    "outbox_taken": 1,
    "outbox_fenced": 2,
    "outbox_recorded": 4,
    "outbox_produced": 4,
    "outbox_in_transaction": 4,
    "outbox_sent": 4,
    "outbox_aborted": 1,
}
"""The points, and up to how often a relay may reach one before it breaks there."""

_BEFORE_THE_TOKEN: Final = "outbox_fenced:1"
"""Who goes on from here takes the token last, whoever has come meanwhile."""

OUTAGES: Final = ("BrokerUnavailable", "StoreUnavailable", "TransactionLost")
"""What a relay may end with at its start, while Kafka or the database is away."""

AT_LENGTH: Final = "at-length"
_BATCH: Final = 50
"""Rows of one batch in a short run; ten times as many in a long one."""


@fault(row=ROW, must=MUST, ways=("batch",), partitions=3, seeds=12)
@fault(row=ROW, must=MUST, ways=("batch",), partitions=3, seeds=1, variants=(AT_LENGTH,))
def outbox_killed_at_random(scene: Scene) -> None:
    """Rows are put into the outbox, one in a hundred of which can't be sent, for one of three reasons; a relay gets
    SIGKILL at one of its steps or at a random moment, the broker gets SIGKILL, PostgreSQL is stopped, a second relay is
    started by accident, or the relay is frozen, replaced and thawed: 6 of these with 1,000 rows, or at length 50 with
    100,000."""
    is_long = scene.variant == AT_LENGTH
    rows, count = (100_000, 50) if is_long else (1_000, 6)
    with Writers(scene) as writers, Relays(scene, writers, most=10 * _BATCH if is_long else _BATCH) as relays:
        scene.topics.append(relays.anchor)  # it is deleted with the others
        relays.kept.begin()
        for number, event in enumerate(drawn(scene, _EVENTS, count), 1):
            writers.target = rows * number // count
            relays.wait_for_progress()
            done = event(scene, relays)
            scene.fired(f"{done}, {writers.written} rows written, {relays.sent} recorded as sent")
        relays.wait_for_progress()
        wait_until(lambda: writers.written >= rows, timeout=600)
        writers.end()
        begin = time.monotonic()
        wait_until(lambda: relays.left == 0, timeout=RECOVERY)
        scene.recovery = time.monotonic() - begin
        relays.kept.stop()
        expected = writers.expected()
        ends = relays.unexpected(("RelayFenced", *OUTAGES))
    scene.noted += [f"a relay has ended with {end}" for end in ends]
    refused = expected.pop("")
    for topic, rows_of_keys in expected.items():
        scene.noted += differences(by_key(scene.servers, topic), rows_of_keys)
    scene.noted += [f"set aside: {one}" for one in differences(writers.set_aside(), refused)]
    total = sum(len(numbers) for keys in (*expected.values(), refused) for numbers in keys.values())
    aside = sum(map(len, refused.values()))
    scene.fired(
        f"a read_committed reader was compared with {total} rows, {aside} of them set aside; "
        f"there were {len(relays.processes)} relays"
    )


def _at_a_step(scene: Scene, relays: Relays) -> str:
    point = scene.random.choice([*STEPS])
    nth = scene.random.randint(1, STEPS[point])
    victim = relays.kept.replace(failpoint=f"{point}:{nth}")
    wait_until(lambda: victim.exit_status is not None, timeout=120)
    return f"relay {victim.pid} got SIGKILL at {point}:{nth}"


def _at_random(scene: Scene, relays: Relays) -> str:
    time.sleep(scene.random.uniform(0, 1))
    return f"relay {relays.kept.kill()} got SIGKILL"


def _broker(scene: Scene, relays: Relays) -> str:
    time.sleep(scene.random.uniform(0, 1))
    pid = scene.kafka.pid
    scene.kafka.kill()
    done = f"broker {pid} got SIGKILL"
    time.sleep(scene.random.uniform(0, 2))
    if scene.random.random() < 0.5:
        done += f", then relay {relays.kept.kill()}"
    scene.kafka.start()
    return done


def _database(scene: Scene, relays: Relays) -> str:
    time.sleep(scene.random.uniform(0, 1))
    pid, mode = scene.postgres.pid, scene.random.choice(MODES)
    scene.postgres.stop(mode)
    done = f"PostgreSQL {pid} was stopped ({mode})"
    time.sleep(scene.random.uniform(0, 2))
    if scene.random.random() < 0.5:
        done += f", and relay {relays.kept.kill()} got SIGKILL"
    scene.postgres.start()
    return done


def _second(scene: Scene, relays: Relays) -> str:
    del scene
    first, second = relays.kept, relays.another()
    second.begin()
    return _only_one_stays(relays, f"a second relay was started beside {first.process.pid}", goes=first, stays=second)


def _frozen(scene: Scene, relays: Relays) -> str:
    first, second = relays.kept, relays.another()
    if scene.random.random() < 0.3:
        time.sleep(scene.random.uniform(0, 1))
        victim, where = first.wait_until_begun(), "a random moment"
        os.kill(victim.pid, signal.SIGSTOP)
    else:
        point = scene.random.choice([one for one in STEPS if one != "outbox_taken"])
        where = f"{point}:{scene.random.randint(1, STEPS[point])}"
        victim = first.replace(failpoint=f"{where}:stop")
    wait_until(lambda: stands(victim.pid), timeout=120)
    second.begin()
    relays.wait_for_progress()
    os.kill(victim.pid, signal.SIGCONT)
    told = f"relay {victim.pid} was frozen at {where}, replaced, and thawed"
    if where == _BEFORE_THE_TOKEN:
        return _only_one_stays(relays, told, goes=second, stays=first)
    return _only_one_stays(relays, told, goes=first, stays=second)


def _only_one_stays(relays: Relays, told: str, *, goes: Kept, stays: Kept) -> str:
    """See one end as it must, and the other go on."""
    goes.let_go()
    relays.kept, survivor = stays, stays.process
    wait_until(lambda: not goes.runs and goes.ends, timeout=120)
    if not goes.ends[-1].startswith("RelayFenced"):
        raise Violation(f"{told}; it ended with {goes.ends[-1]}")
    if survivor.exit_status is not None:
        raise Violation(f"{told}; the other one ended with {stays.ends}")
    return told


_EVENTS: Final = (*[_at_a_step] * 6, *[_at_random] * 2, _broker, _database, _second, *[_frozen] * 2)
