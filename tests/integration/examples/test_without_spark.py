from __future__ import annotations

import json
from pathlib import Path

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from tests.support.examples import EXAMPLES, Examples
from tests.support.postgres import Database

P0 = TopicPartition("payments", 0)


@pytest.mark.behaviour("START-23")
def test_the_resolver_alone_gives_json_and_reasons_and_changes_nothing(examples: Examples) -> None:
    examples.produce("payments", ("ada", "1.50"), ("bob", "2.25"), ("cleo", "3.00"))
    with OffsetStore.connect(examples.url) as store:
        with store.transaction(store.claim("invoices", topics=["payments"])) as tx:
            tx.advance({P0: tx.lock({P0: OffsetRange(0, 2)})[P0].remaining})
        before = store.offsets("invoices"), store.history("invoices")

        found = examples.run("resolver_alone.py", "invoices", "payments", "refunds")

        assert json.loads(found.stdout) == {"payments": {"0": 2}, "refunds": {"0": 0}}
        assert "payments-0  starts at 2: stored; nothing is committed in Kafka" in found.stderr
        assert (store.offsets("invoices"), store.history("invoices")) == before


@pytest.mark.behaviour("CONS-1", "CONS-8")
def test_the_consumer_writes_payments_and_keeps_what_is_none_as_a_letter(
    examples: Examples, database: Database
) -> None:
    database.execute("CREATE TABLE payments (payer text, amount numeric(12, 2))")
    examples.produce("payments", ("ada", "1.50"), ("bob", "a lot"), ("cleo", "3.00"))
    with OffsetStore.connect(examples.url) as store:

        def is_stored() -> bool:
            found = store.offsets("billing").get(P0)
            return found is not None and found.next_offset == 3

        examples.without("pyspark").stop("payments_consumer.py", is_stored)
        assert database.rows("SELECT payer, amount::text FROM payments ORDER BY payer") == [
            ("ada", "1.50"),
            ("cleo", "3.00"),
        ]
        assert [(one.topic_partition, one.offset, one.cause) for one in store.letters("billing").letters] == [
            (P0, 1, "raised")
        ]


@pytest.mark.behaviour("OPS-9")
def test_one_upgrade_of_the_application_brings_its_tables_and_ours(
    installed_wheel: Path, offsetstore_empty_database: str, tmp_path: Path
) -> None:
    alembic = ("-m", "alembic", "-c", EXAMPLES / "application" / "alembic.ini")
    application = Examples(installed_wheel, tmp_path, offsetstore_empty_database)

    application.python(*alembic, "upgrade", "head")
    application.python(*alembic, "upgrade", "head")  # the next deploy

    database = Database(offsetstore_empty_database)
    try:
        assert database.column("SELECT version_num FROM alembic_version") == ["0001"]
        assert database.column("SELECT * FROM payments") == []
    finally:
        database.close()
    with OffsetStore.connect(offsetstore_empty_database) as store:
        assert store.offsets("invoices") == {}
    assert "No new upgrade operations detected" in application.python(*alembic, "check").stdout
