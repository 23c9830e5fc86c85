"""The jobs, on the Spark of the test run."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from unittest.mock import patch

import pytest

from examples.charging_service import ChargingService
from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.kafka import admin
from tests.support.background import serving
from tests.support.examples import Examples
from tests.support.postgres import Database

P0 = TopicPartition("payments", 0)
SECOND = 1000
NINE = 1_772_355_600_000  # 2026-03-01 09:00 UTC, in milliseconds
on_the_spark_of_the_test_run = pytest.mark.usefixtures("offsetstore_spark")
PAYMENTS = "SELECT payer, amount::text FROM payments ORDER BY payer, amount"


def leave(url: str, group: str, metadata: object) -> None:
    """Store two records of payments and metadata, as an earlier run of the job does."""
    with (
        OffsetStore.connect(url) as store,
        store.claim(group, topics=["payments"]) as claim,
        store.transaction(claim) as tx,
    ):
        tx.advance({P0: tx.lock({P0: OffsetRange(0, 2)})[P0].remaining}, metadata=metadata)


@pytest.mark.behaviour("SINK-11")
@on_the_spark_of_the_test_run
def test_the_cron_job_adds_in_each_run_what_has_come_since_the_last(examples: Examples, database: Database) -> None:
    database.execute("CREATE TABLE totals (payer text PRIMARY KEY, payments bigint, amount numeric(12,2))")
    examples.produce("payments", ("ada", "1.50"), ("bob", "2.25"), ("ada", "0.50"))
    examples.run_here("cron_job.py")
    totals = "SELECT payer, payments, amount::text FROM totals ORDER BY payer"
    assert database.rows(totals) == [("ada", 2, "2.00"), ("bob", 1, "2.25")]

    examples.produce("payments", ("ada", "10.00"))
    examples.run_here("cron_job.py")

    assert database.rows(totals) == [("ada", 3, "12.00"), ("bob", 1, "2.25")]


@pytest.mark.behaviour("SINK-16")
@on_the_spark_of_the_test_run
def test_the_sink_alone_keeps_ones_own_checkpoint_and_needs_no_kafka_client(
    examples: Examples, database: Database
) -> None:
    """Whatever loads the client anew finds none; that the sink is made without it, a process of its own proves."""
    database.execute("CREATE TABLE payments (payer text, amount numeric(12,2))")
    examples.produce("payments", ("ada", "1.50"), ("bob", "2.25"))
    with without_kafka_client(), pytest.raises(SystemExit, match=r"^70$"):
        examples.with_environment(OFFSETSTORE_FAILPOINT="after_sink:raise").run_here("sink_alone.py")
    checkpoint = examples.checkpoints / "ledger"
    identity = (checkpoint / "metadata").read_text(encoding="utf-8")
    assert not list(checkpoint.glob("commits/[0-9]*"))

    examples.produce("payments", ("cleo", "3.00"))
    with without_kafka_client():
        examples.run_here("sink_alone.py")

    assert database.rows(PAYMENTS) == [("ada", "1.50"), ("bob", "2.25"), ("cleo", "3.00")]
    assert (checkpoint / "metadata").read_text(encoding="utf-8") == identity
    assert sorted(file.name for file in checkpoint.glob("commits/[0-9]*")) == ["0", "1"]
    assert database.one("SELECT next_offset FROM kafka_partitions WHERE consumer_group = 'ledger'") == 3


@contextmanager
def without_kafka_client() -> Generator[None]:
    names = [name for name in sys.modules if name.startswith(("confluent_kafka", "offsetstore.kafka"))]
    with patch.dict(sys.modules, {"confluent_kafka": None}):
        for name in names:
            if name != "confluent_kafka":
                del sys.modules[name]
        yield


@pytest.mark.behaviour("SINK-6")
@on_the_spark_of_the_test_run
def test_the_windowed_job_writes_each_minute_once_it_is_over(examples: Examples, database: Database) -> None:
    database.execute("CREATE TABLE traffic (minute timestamptz, topic text, records bigint)")
    examples.produce("payments", ("ada", "1.50"), ("bob", "2.25"), timestamp_ms=NINE)
    examples.produce("refunds", ("ada", "1.50"), timestamp_ms=NINE + 59 * SECOND)
    examples.produce("payments", ("cleo", "3.00"), timestamp_ms=NINE + 120 * SECOND)
    examples.run_here("windowed_job.py")
    traffic = "SELECT to_char(minute AT TIME ZONE 'UTC', 'HH24:MI'), topic, records FROM traffic ORDER BY minute, topic"
    first_minute = [("09:00", "payments", 2), ("09:00", "refunds", 1)]
    assert database.rows(traffic) == first_minute

    examples.produce("refunds", ("cleo", "3.00"), timestamp_ms=NINE + 300 * SECOND)
    examples.run_here("windowed_job.py")
    assert database.rows(traffic) == [*first_minute, ("09:02", "payments", 1)]


@pytest.mark.behaviour("MARK-4")
@on_the_spark_of_the_test_run
def test_the_buffered_job_writes_at_a_stop_what_it_keeps(examples: Examples, database: Database) -> None:
    database.execute("CREATE TABLE payments (payer text, amount numeric(12,2))")
    examples.produce("payments", ("ada", "1.50"), ("bob", "2.25"))

    def kept() -> bool:
        assert database.rows(PAYMENTS) == []
        return any(examples.checkpoints.glob("buffered/*/commits/0"))

    examples.stop_here("buffered_job.py", kept)

    assert database.rows(PAYMENTS) == [("ada", "1.50"), ("bob", "2.25")]
    assert database.one("SELECT next_offset FROM kafka_partitions WHERE consumer_group = 'buffered'") == 2


@pytest.mark.behaviour("META-2", "META-3")
@on_the_spark_of_the_test_run
def test_a_day_that_an_earlier_run_left_half_done_is_gone_on_with(examples: Examples, database: Database) -> None:
    database.execute("CREATE TABLE days (payments bigint, amount numeric(12,2))")
    examples.produce("payments", ("ada", "1.50"), ("bob", "2.25"))
    leave(examples.url, "days", {"payments": 2, "amount": "3.75"})
    examples.produce("payments", ("close", ""), ("ada", "0.50"), ("cleo", "3.00"), ("close", ""), ("dan", "8.00"))

    examples.run_here("resumed_job.py")

    assert database.rows("SELECT payments, amount::text FROM days ORDER BY amount") == [(2, "3.50"), (2, "3.75")]
    kept = database.one("SELECT metadata::json FROM kafka_partitions WHERE consumer_group = 'days'")
    assert kept == {"payments": 1, "amount": "8.00"}


@pytest.mark.behaviour("META-2", "META-3")
@on_the_spark_of_the_test_run
def test_a_fee_is_charged_from_the_same_record_on_in_a_later_run_too(examples: Examples, database: Database) -> None:
    """In partition 0 an earlier run has met it, in partition 1 this one does."""
    database.execute("CREATE TABLE payments (payer text, amount numeric(12,2))")
    admin.create_partitions(examples.kafka_servers, "payments", total=2)
    examples.produce("payments", ("ada", "1"), ("fee", "0.1"))
    leave(examples.url, "charges", {"offset": 1, "rate": "0.1"})
    examples.produce("payments", ("dan", "4"), ("fee", "0.5"), ("eve", "5"))
    examples.produce("payments", ("bob", "2"), ("fee", "0.2"), ("cleo", "3"), partition=1)

    examples.run_here("cutover_job.py")

    charged = [("bob", "2.00"), ("cleo", "3.60"), ("dan", "4.40"), ("eve", "5.50")]
    assert database.rows(PAYMENTS) == charged
    kept = database.rows(
        "SELECT metadata::json FROM kafka_partitions WHERE consumer_group = 'charges' ORDER BY partition"
    )
    assert kept == [({"offset": 1, "rate": "0.1"},), ({"offset": 1, "rate": "0.2"},)]


@pytest.mark.behaviour("HAND-5", "HAND-3")
@on_the_spark_of_the_test_run
def test_each_payment_is_charged_once_under_its_record_s_id(examples: Examples, database: Database) -> None:
    database.execute("CREATE TABLE charges (payer text, amount numeric(12,2), charge bigint)")
    examples.produce("payments", ("ada", "1.50"), ("bob", "2.25"))
    with ChargingService() as service, serving(service):
        charging = examples.with_environment(CHARGING_SERVICE=f"127.0.0.1:{service.server_port}")
        charging.run_here("charging_job.py", "threads")
        charging.produce("payments", ("cleo", "3.00"), ("dan", "-1"))
        charging.run_here("charging_job.py", "async")

    topic_id = database.one("SELECT topic_id FROM kafka_partitions WHERE consumer_group = 'charging'")
    ids = [f"payments/{topic_id}/0/{offset}" for offset in range(3)]
    assert service.requests == dict.fromkeys(ids, 1)
    charged = zip(["ada", "bob", "cleo"], ["1.50", "2.25", "3.00"], [service.charges[one] for one in ids], strict=True)
    assert database.rows("SELECT payer, amount::text, charge FROM charges ORDER BY payer") == [*charged]
    assert database.rows("SELECT record_offset, cause, error_text FROM dead_letters") == [
        (3, "raised", "the service answers 422")
    ]


@pytest.mark.behaviour("DX-6")
@on_the_spark_of_the_test_run
def test_the_project_s_job_writes_payments_with_the_time_of_their_records(
    examples: Examples, database: Database
) -> None:
    database.execute("CREATE TABLE payments (payer text, amount numeric(12,2), paid_at timestamptz)")
    examples.produce("payments", ("ada", "1.50"), ("bob", "many"), timestamp_ms=NINE)

    rows = "SELECT payer, amount::text, paid_at AT TIME ZONE 'UTC' FROM payments"
    examples.stop_here("project/shop/payments_job.py", lambda: database.rows(rows))

    assert database.rows(rows) == [("ada", "1.50", datetime(2026, 3, 1, 9))]  # noqa: DTZ001 - in UTC, as was asked
    assert database.rows("SELECT consumer_group, record_offset FROM dead_letters") == [("shop-payments", 1)]
