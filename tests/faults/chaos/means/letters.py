"""Records that become dead letters, and dead letters that are put back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from offsetstore import LetterFilter, OffsetStore
from tests.faults.chaos.harness.ledger import Entry, flush, producer
from tests.faults.chaos.harness.scene import RECOVERY, Scene, Violation
from tests.faults.chaos.means.poison import KINDS, SECRET, Poison
from tests.support.waiting import wait_until


def _below_zero(draft: Entry) -> tuple[Entry, bytes]:
    entry = replace(draft, amount=-4711)
    return entry, entry.value


REJECTED: Final = "rejected"
"""By the transform, for its amount; see `landing.rows_or_rejects`."""

CURABLE: Final[tuple[str, ...]] = ("oversize", "check", "deferred", REJECTED)
"""Those that the tables take after their `Poison.cure`, and the transform of `mended`."""

BAD: Final[Mapping[str, Poison]] = {
    "broken-json": KINDS["broken-json"],
    "nul": KINDS["nul"],
    "oversize": KINDS["oversize"],
    "check": KINDS["check"],
    "deferred": KINDS["deferred"],
    REJECTED: Poison(_below_zero),
}


def prepare(scene: Scene) -> dict[str, Any]:
    """Make the tables refuse what is bad, and look at letters; return settings of jobs.

    Each record is tried once or twice, and the attempts are those of each record, or of its partition.
    """
    scene.observer.looks_at_letters = True
    for kind in BAD.values():
        scene.database.execute(kind.rule)
    letters = {"max_retries": scene.random.randint(0, 2), "independent": scene.random.random() < 0.5}
    return {"dead_letters": letters}


def scatter_bad(scene: Scene, *, good: int, bad: int, kinds: Sequence[str] = tuple(BAD)) -> None:
    """Append records, so many of them bad, of any of these kinds, and at places by chance."""
    client = producer(scene.servers)
    places = set(scene.random.sample(range(good + bad), bad))
    for number in range(good + bad):
        change = BAD[scene.random.choice(kinds)].change if number in places else None
        partition = scene.random.randrange(scene.partitions)
        scene.ledger.send(client, scene.topic, partition, change=change, bad=number in places)
    flush(client)


def scatter_changed(scene: Scene, *, good: int, bad: int, amount: int) -> set[tuple[str, int, int]]:
    """Append records, so many of them with this amount, for which there have to be letters; return where those are."""
    client = producer(scene.servers)
    places = set(scene.random.sample(range(good + bad), bad))

    def change(draft: Entry) -> tuple[Entry, bytes]:
        entry = replace(draft, amount=amount)
        return entry, entry.value

    for number in range(good + bad):
        is_bad = number in places
        partition = scene.random.randrange(scene.partitions)
        scene.ledger.send(client, scene.topic, partition, change=change if is_bad else None, bad=is_bad)
    flush(client)
    return {(topic, partition, at) for (topic, _, partition), found in scene.ledger.bad.items() for at in found}


def cure(scene: Scene, *kinds: str) -> None:
    """Let the tables take what was bad."""
    for kind in kinds:
        scene.database.execute(BAD[kind].cure or "SELECT 1")


def mended(scene: Scene) -> str:
    """The transform that rejects nothing."""
    return f"tests.faults.chaos.harness.landing:{'rows' if scene.way == 'partition' else 'outputs_by_record'}"


def request(scene: Scene, *, limit: int = 10_000, which: LetterFilter | None = None) -> int:
    """Request the replay of all that are dead, or of so many; return how many these are."""
    with OffsetStore.connect(scene.url) as store:
        found = store.request_replay(scene.group, which or LetterFilter(), reason="they are cured", limit=limit)
    return len(found.letters)


def states(scene: Scene) -> dict[str, int]:
    """How many letters there are of each state."""
    return dict(scene.database.rows("SELECT state, count(*) FROM dead_letters GROUP BY 1"))


def wait_for_states(scene: Scene, wanted: Mapping[str, int], timeout: float = RECOVERY) -> None:
    """Wait until the letters are in these states (I8)."""
    begin = time.monotonic()
    try:
        wait_until(lambda: states(scene) == wanted, timeout=timeout)
    except AssertionError:
        last = scene.jobs[-1].process.end_of_log[-1500:]
        raise Violation(f"I8: letters are {states(scene)} and not {wanted} after {timeout:.0f} s\n{last}") from None
    scene.recovery = max(scene.recovery or 0.0, time.monotonic() - begin)


def check_letters(scene: Scene, *, replays: int = 0) -> None:
    """What a letter tells beside its record: no value, and not more attempts than there were.

    :param replays: how often those that are dead again were put back.
    """
    texts = scene.database.one(f"SELECT count(*) FROM dead_letters WHERE error_text LIKE '%{SECRET}%'")
    assert texts == 0, f"{texts} letters' errors tell what is in the record"
    for job in scene.jobs:
        assert SECRET not in job.process.end_of_log, f"the log {job.process.log} tells what is in a record"
    settings = next((job.work.dead_letters for job in scene.jobs if job.work.dead_letters), None) or {}
    if settings["independent"]:
        most = scene.database.one("SELECT coalesce(max(attempts), 0) FROM dead_letters WHERE state = 'dead'")
        assert most <= 1 + settings["max_retries"] + replays, f"{most} attempts, with {settings}"
