"""Records that a job can't digest, the transform and the tables by which it can, and their dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import LetterFilter, OffsetStore
from tests.faults.chaos.harness import landing
from tests.faults.chaos.harness.ledger import Entry, flush, producer
from tests.faults.chaos.harness.scene import RECOVERY, Scene, Violation
from tests.support.waiting import wait_until

SECRET = "4711-canary"
"""In each bad record, and in no error's text."""


@dataclass(frozen=True, slots=True)
class Poison:
    """One kind of bad records.

    :param key: instead of the record's own, and ``amount``; so it will be when it is digested.
    :param sent: what is sent, made of that.
    :param rule: what is done to the tables beforehand, so that they refuse it.
    :param cure: what is done to them later, so that they don't; without one, another transform is the cure.
    """

    key: str | None = None
    amount: int | None = None
    sent: Callable[[Entry], bytes] = lambda entry: entry.value
    rule: str = "SELECT 1"
    cure: str | None = None

    def change(self, draft: Entry) -> tuple[Entry, bytes]:
        key = draft.key if self.key is None else self.key
        entry = replace(draft, key=key, amount=draft.amount if self.amount is None else self.amount)
        return entry, self.sent(entry)


_HIGH: Final = 47_110_000_000

KINDS: Final[Mapping[str, Poison]] = {
    # Spark makes NULLs of it, and the column seq has none.
    "broken-json": Poison(f"k01 {SECRET}", sent=lambda entry: entry.value.removesuffix(b"}")),
    "nul": Poison(f"k01 {SECRET}", sent=lambda entry: replace(entry, key=f"k01\0 {SECRET}").value),
    "oversize": Poison(
        f"k01 {SECRET * 30}",
        rule="ALTER TABLE landed ALTER key TYPE varchar(20)",
        cure="ALTER TABLE landed ALTER key TYPE text",
    ),
    "out-of-range": Poison(
        amount=_HIGH,
        rule="ALTER TABLE landed ALTER amount TYPE int",
        cure="ALTER TABLE landed ALTER amount TYPE bigint",
    ),
    "check": Poison(
        amount=_HIGH,
        rule="ALTER TABLE landed ADD CONSTRAINT low CHECK (amount < 1000)",
        cure="ALTER TABLE landed DROP CONSTRAINT low",
    ),
    "deferred": Poison(
        f"k77 {SECRET}",
        rule="CREATE TABLE known (key text PRIMARY KEY);"
        "INSERT INTO known SELECT 'k' || lpad(n::text, 2, '0') FROM generate_series(0, 11) n;"
        "ALTER TABLE landed ADD CONSTRAINT is_known FOREIGN KEY (key) REFERENCES known DEFERRABLE INITIALLY DEFERRED",
        cure="ALTER TABLE landed DROP CONSTRAINT is_known",
    ),
}

DEADLY: Final = Poison(f"k77 {SECRET}")
"""The tables take it; see `members.deadly`."""

REJECTED: Final = "rejected"
"""By the transform, for its amount; see `landing.rows_or_rejects`. That of `MENDED` rejects nothing."""

MENDED: Final = {"transform": f"{landing.__name__}:{landing.rows.__name__}"}
CURABLE: Final = ("oversize", "check", "deferred", REJECTED)
"""Those that the tables take after their `Poison.cure`, and the transform of `MENDED`."""

BAD: Final[Mapping[str, Poison]] = {
    **{name: kind for name, kind in KINDS.items() if name != "out-of-range"},
    REJECTED: Poison(amount=-4711),
}


def scatter(
    scene: Scene, kinds: Sequence[Poison], *, good: int, bad: int, letters: bool = False
) -> set[tuple[str, int, int]]:
    """Append records, so many of them bad, of any of these kinds, and at places by chance; return where those are.

    :param letters: whether the bad ones have to become dead letters.
    """
    client = producer(scene.servers)
    places = set(scene.random.sample(range(good + bad), bad))
    sent: set[int] = set()
    for number in range(good + bad):
        change = scene.random.choice(kinds).change if number in places else None
        partition = scene.random.randrange(scene.partitions)
        is_letter = letters and number in places
        entry = scene.ledger.send(client, scene.topic, partition, change=change, bad=is_letter)
        sent |= {entry.seq} if number in places else set()
    flush(client)
    return {
        (scene.topic, partition, entry.offset)
        for partition in range(scene.partitions)
        for entry in scene.ledger.records[scene.topic, 0, partition]
        if entry.seq in sent
    }


def scatter_bad(scene: Scene, *, good: int, bad: int, kinds: Sequence[str] = tuple(BAD)) -> None:
    """Append records, some of which have to become dead letters."""
    scatter(scene, [BAD[kind] for kind in kinds], good=good, bad=bad, letters=True)


def digested_rows(batch: DataFrame) -> DataFrame:
    """As `landing.rows`, of the records as they were meant."""
    text = F.replace(F.col("value").cast("string"), F.lit("\\u0000"), F.lit(""))
    return landing.rows(
        batch.withColumn("value", F.when(text.endswith("}"), text).otherwise(F.concat(text, F.lit("}"))))
    )


def prepare(scene: Scene) -> dict[str, Any]:
    """Make the tables refuse what is bad, and look at letters; return settings of jobs.

    Each record is tried once or twice, and the attempts are those of each record, or of its partition.
    """
    scene.observer.looks_at_letters = True
    for kind in BAD.values():
        scene.database.execute(kind.rule)
    letters = {"max_retries": scene.random.randint(0, 2), "independent": scene.random.random() < 0.5}
    return {"dead_letters": letters}


def cure(scene: Scene, *kinds: str) -> None:
    for kind in kinds:
        scene.database.execute(BAD[kind].cure or "SELECT 1")


def request(scene: Scene, *, limit: int = 10_000) -> int:
    """Request the replay of all that are dead, or of so many; return how many these are."""
    with OffsetStore.connect(scene.url) as store:
        found = store.request_replay(scene.group, LetterFilter(), reason="they are cured", limit=limit)
    return len(found.letters)


def states(scene: Scene) -> dict[str, int]:
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
