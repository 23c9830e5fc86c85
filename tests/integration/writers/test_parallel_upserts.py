"""Two jobs that upsert the same keys at once, in opposite order: no deadlock, no lost sum."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from offsetstore.writers import Upsert
from tests.integration.writers.writing import Database, batch

KEYS = 2_000
ROUNDS = 10


def test_upserts_in_opposite_order_neither_deadlock_nor_lose(database: Database) -> None:
    database.run("CREATE TABLE t (a int, b int, n bigint, PRIMARY KEY (b, a))")
    forwards = list(range(KEYS))
    together = Barrier(2)

    def job(numbers: list[int], key: list[str]) -> None:
        written = batch({"a": [n % 7 for n in numbers], "b": numbers, "n": [1] * KEYS})
        for _ in range(ROUNDS):
            together.wait(timeout=60)
            database.write(Upsert("t", key=key, add=["n"]), written)

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(job, forwards, ["a", "b"]), pool.submit(job, forwards[::-1], ["b", "a"])]
        for each in jobs:
            each.result(timeout=120)
    assert database.rows("SELECT count(*), min(n), max(n) FROM t") == [(KEYS, 2 * ROUNDS, 2 * ROUNDS)]
