"""Records that the job can't digest, and the transform by which it can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from tests.faults.chaos.harness import landing
from tests.faults.chaos.harness.ledger import Entry, flush, producer
from tests.faults.chaos.harness.scene import Scene

SECRET = "4711-canary"
"""In each poisonous record, and in no error's text."""


@dataclass(frozen=True, slots=True)
class Poison:
    """One kind of it.

    :param change: what the record will be when it is digested, and what is sent.
    :param rule: what is done to the tables beforehand, so that they refuse it.
    :param cure: what is done to them later, so that they don't; without one, another transform is the cure.
    """

    change: Callable[[Entry], tuple[Entry, bytes]]
    rule: str = "SELECT 1"
    cure: str | None = None


def _broken(draft: Entry) -> tuple[Entry, bytes]:
    entry = replace(draft, key=f"k01 {SECRET}")
    return entry, entry.value.removesuffix(b"}")


def _with_nul(draft: Entry) -> tuple[Entry, bytes]:
    entry = replace(draft, key=f"k01 {SECRET}")
    return entry, replace(entry, key=f"k01\0 {SECRET}").value


def _long(draft: Entry) -> tuple[Entry, bytes]:
    entry = replace(draft, key=f"k01 {SECRET * 30}")
    return entry, entry.value


def _high(draft: Entry) -> tuple[Entry, bytes]:
    entry = replace(draft, amount=47_110_000_000)
    return entry, entry.value


def _unknown(draft: Entry) -> tuple[Entry, bytes]:
    entry = replace(draft, key=f"k77 {SECRET}")
    return entry, entry.value


KINDS: Mapping[str, Poison] = {
    # Spark makes NULLs of it, and the column seq has none.
    "broken-json": Poison(_broken),
    "nul": Poison(_with_nul),
    "oversize": Poison(
        _long, "ALTER TABLE landed ALTER key TYPE varchar(20)", "ALTER TABLE landed ALTER key TYPE text"
    ),
    "out-of-range": Poison(
        _high, "ALTER TABLE landed ALTER amount TYPE int", "ALTER TABLE landed ALTER amount TYPE bigint"
    ),
    "check": Poison(
        _high,
        "ALTER TABLE landed ADD CONSTRAINT low CHECK (amount < 1000)",
        "ALTER TABLE landed DROP CONSTRAINT low",
    ),
    "deferred": Poison(
        _unknown,
        "CREATE TABLE known (key text PRIMARY KEY);"
        "INSERT INTO known SELECT 'k' || lpad(n::text, 2, '0') FROM generate_series(0, 11) n;"
        "ALTER TABLE landed ADD CONSTRAINT is_known FOREIGN KEY (key) REFERENCES known DEFERRABLE INITIALLY DEFERRED",
        "ALTER TABLE landed DROP CONSTRAINT is_known",
    ),
}


DEADLY: Final = Poison(_unknown)
"""The tables take it; see `means.deadly`."""


def scatter(scene: Scene, poison: Poison, *, good: int, bad: int) -> set[str]:
    """Append records, so many of them poisonous and at places by chance; return where those are."""
    client = producer(scene.servers)
    places = set(scene.random.sample(range(good + bad), bad))
    sent: set[tuple[int, int]] = set()
    for number in range(good + bad):
        partition = scene.random.randrange(scene.partitions)
        change = poison.change if number in places else None
        entry = scene.ledger.send(client, scene.topic, partition, change=change)
        if number in places:
            sent.add((partition, entry.seq))
    flush(client)
    entered = scene.ledger.records
    return {
        f"{scene.topic}-{partition}@{entry.offset}"
        for partition, seq in sent
        for entry in entered[scene.topic, 0, partition]
        if entry.seq == seq
    }


def digested_rows(batch: DataFrame) -> DataFrame:
    """As `landing.rows`, of the records as they were meant."""
    text = F.replace(F.col("value").cast("string"), F.lit("\\u0000"), F.lit(""))
    return landing.rows(
        batch.withColumn("value", F.when(text.endswith("}"), text).otherwise(F.concat(text, F.lit("}"))))
    )


def digested_outputs(batch: DataFrame) -> dict[str, DataFrame]:
    """As `landing.outputs`, the same."""
    return landing.outputs_of(digested_rows(batch))
