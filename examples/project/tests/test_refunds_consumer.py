"""The consumer, without Kafka: crashes and bad records."""

from __future__ import annotations

from typing import Any

import pytest
from shop.refunds_consumer import GROUP, INTO, parse
from sqlalchemy import create_engine, text

from offsetstore import DeadLetters, OffsetStore, Record, TopicPartition
from offsetstore.testing import FailpointReached, deliver, failpoint, replay_twice

RECORDS = [Record("refunds", 0, n, f"payer {n}".encode(), f"{n + 1}.50".encode()) for n in range(4)]


def refunds(url: str) -> list[tuple[Any, ...]]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT payer, amount::text FROM refunds ORDER BY payer")).all()
    engine.dispose()
    return [tuple(row) for row in rows]


def test_the_transform_makes_the_same_rows_after_a_crash() -> None:
    replay_twice(parse, RECORDS)


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_a_refund_is_written_once_if_the_process_fails(
    point: str, store: OffsetStore, offsetstore_empty_database: str
) -> None:
    with failpoint(point), pytest.raises(FailpointReached):
        deliver(store.claim(GROUP, topics=["refunds"]), RECORDS[:2], parse, INTO)
    deliver(store.claim(GROUP, topics=["refunds"]), RECORDS, parse, INTO)

    assert refunds(offsetstore_empty_database) == [(f"payer {n}", f"{n + 1}.50") for n in range(4)]
    assert store.offsets(GROUP)[TopicPartition("refunds", 0)].next_offset == len(RECORDS)


@pytest.mark.parametrize("value", [b"many", b"-1.00"], ids=["no number", "refused by the table"])
def test_a_refund_that_can_t_be_written_is_set_aside(
    value: bytes, store: OffsetStore, offsetstore_empty_database: str
) -> None:
    records = [RECORDS[0], Record("refunds", 0, 1, b"bo", value), RECORDS[2]]
    claim = store.claim(GROUP, topics=["refunds"])

    deliver(claim, records, parse, INTO, dead_letters=DeadLetters(max_retries=0))

    assert [payer for payer, _ in refunds(offsetstore_empty_database)] == ["payer 0", "payer 2"]
    assert [letter.offset for letter in store.letters(GROUP).letters] == [1]
