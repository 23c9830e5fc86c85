from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from tests.support.examples import Examples

P0 = TopicPartition("payments", 0)


@pytest.fixture
def installed(examples: Examples, installed_wheel: Path) -> Examples:
    """The examples as processes of their own, which have offsetstore from the wheel."""
    return replace(examples, wheel=installed_wheel)


@pytest.mark.behaviour("START-23")
def test_the_resolver_alone_gives_json_and_reasons_and_changes_nothing(installed: Examples) -> None:
    installed.produce("payments", ("ada", "1.50"), ("bob", "2.25"), ("cleo", "3.00"))
    with OffsetStore.connect(installed.url) as store:
        with store.transaction(store.claim("invoices", topics=["payments"])) as tx:
            tx.advance({P0: tx.lock({P0: OffsetRange(0, 2)})[P0].remaining})
        before = store.offsets("invoices"), store.history("invoices")

        found = installed.run("resolver_alone.py", "invoices", "payments", "refunds")

        assert json.loads(found.stdout) == {"payments": {"0": 2}, "refunds": {"0": 0}}
        assert "payments-0  starts at 2: stored; nothing is committed in Kafka" in found.stderr
        assert (store.offsets("invoices"), store.history("invoices")) == before


# The job of sink_alone.py as far as it can be made without Spark's Java.
SINK = """
import offsetstore.spark
from offsetstore import Append, OffsetStore, TransactionalSink

with OffsetStore.connect() as store:
    TransactionalSink(store.claim("ledger", topics=["payments"]), lambda batch: batch, into=Append("payments"))
"""


@pytest.mark.behaviour("SINK-16")
def test_the_sink_is_made_where_no_kafka_client_is_installed(installed: Examples) -> None:
    alone = installed.without("confluent_kafka")
    with pytest.raises(AssertionError, match="No module named 'confluent_kafka'"):
        alone.python("-c", "import confluent_kafka")
    alone.python("-c", SINK)


@pytest.mark.behaviour("CONS-1", "CONS-11")
def test_payments_land_once_while_the_consumer_s_processes_are_killed(installed_wheel: Path, tmp_path: Path) -> None:
    """On servers of its own, which the command starts, and where no Spark is installed."""
    examples = Examples(tmp_path, wheel=installed_wheel).without("pyspark")

    found = examples.run("killed_consumer.py", "3")

    assert found.stdout.count("SIGKILL") == 1
    assert found.stdout.endswith("60,000 payments produced, 60,000 rows in the table, 60,000 of them different\n")
    assert found.stderr.count("has ended with SIGKILL") == 1
    assert found.stderr.endswith("offsetstore: ended with exit code 0\n")


@pytest.mark.behaviour("OUT-2")
def test_totals_are_in_kafka_once_and_in_order_while_the_relay_is_killed(installed_wheel: Path, tmp_path: Path) -> None:
    found = Examples(tmp_path, wheel=installed_wheel).without("pyspark").run("killed_relay.py")

    assert found.stdout.count("the relay has ended with exit status -9\n") == 2
    assert found.stdout.endswith("2,000 payments booked, 2,000 totals in Kafka, for 50 payers\n")
