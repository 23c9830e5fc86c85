from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from offsetstore import Broker, OffsetStore, resolve_starting_offsets
from offsetstore.kafka.admin import delete_records
from offsetstore.local.kafka.server import KafkaBroker
from tests.integration.cli.conftest import Run


@pytest.mark.behaviour("START-23")
def test_it_says_for_each_partition_where_it_would_start_and_why_and_writes_nothing(
    run: Run, billing: str, payments: str, offsetstore_database: str, offsetstore_kafka: KafkaBroker
) -> None:
    servers = offsetstore_kafka.bootstrap_servers

    def everything() -> object:
        with OffsetStore.connect(offsetstore_database) as store:
            owner = store.owner(billing)
            kept = store.offsets(billing), store.history(billing), owner and (owner.token, owner.claimed_at)
        return kept, Broker({"bootstrap.servers": servers}).view(billing, [payments]).committed

    before = everything()
    arguments = ["resolve", "-g", billing, "-t", payments]
    read_only = f"{offsetstore_database}?options=-c%20default_transaction_read_only%3Don"
    result = run(*arguments, url=read_only, brokers=servers)
    assert result.exit_code == 0, result.output
    assert everything() == before
    partitions, meanings, summary = [part.splitlines() for part in result.stdout.split("\n\n")]
    assert [line.split() for line in partitions] == [
        ["partition", "start", "stored", "committed", "beginning", "end", "reason"],
        [f"{payments}-0", "4", "4", "2", "0", "10", "stored"],
        [f"{payments}-1", "8", "5", "8", "0", "10", "committed_is_larger"],
        [f"{payments}-2", "0", "0", "-", "0", "10", "only_stored"],
    ]
    assert [line.split(maxsplit=1)[0] for line in meanings] == [
        "reason",
        "stored",
        "only_stored",
        "committed_is_larger",
    ]
    assert summary == [
        f"Would skip 3 offsets that the store has not seen: {payments}-1 [5, 8).",
        f"{billing} would start with 18 offsets to read in 3 partitions.",
    ]

    result = run(*arguments, "--format", "spark", url=offsetstore_database, brokers=servers)
    with OffsetStore.connect(offsetstore_database) as store:
        broker = Broker({"bootstrap.servers": servers})
        expected = resolve_starting_offsets(broker, group=billing, topics=[payments], store=store).json()
    assert (result.stdout, result.stderr) == (f"{expected}\n", "")

    result = run(*arguments, "--format", "json", url=offsetstore_database, brokers=servers)
    found: dict[str, Any] = json.loads(result.stdout)
    assert found.keys() == {"group", "kafka_group", "records", "partitions", "vanished", "warning", "starting_offsets"}
    assert found["warning"] is None
    assert found["starting_offsets"] == {payments: {"0": 4, "1": 8, "2": 0}}
    assert found["records"] == 18
    assert found["partitions"][1] == {
        "topic": payments,
        "partition": 1,
        "start": 8,
        "reason": "committed_is_larger",
        "explanation": "committed in Kafka by another tool, larger than stored",
        "stored": 5,
        "committed": 8,
        "beginning": 0,
        "end": 10,
        "skips": {"from": 5, "until": 8},
    }


@pytest.mark.behaviour("START-23")
def test_the_policy_is_that_of_the_options(
    run: Run, billing: str, payments: str, offsetstore_database: str, offsetstore_kafka: KafkaBroker
) -> None:
    servers = offsetstore_kafka.bootstrap_servers

    def starts(*options: str, group: str = billing) -> dict[str, int]:
        arguments = ["resolve", "-g", group, "-t", payments, "--format", "spark", *options]
        result = run(*arguments, url=offsetstore_database, brokers=servers)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)[payments]

    assert starts("--prefer", "stored") == {"0": 4, "1": 5, "2": 0}
    assert starts("--auto-offset-reset", "latest", group="nobody") == {"0": 10, "1": 10, "2": 10}
    assert starts("--auto-offset-reset", "2020-01-01T00:00Z", group="nobody") == {"0": 0, "1": 0, "2": 0}
    assert starts("--kafka-group", billing, group="nobody") == {"0": 2, "1": 8, "2": 0}
    no_store = run("resolve", "-g", billing, "-t", payments, "--no-store", "--format", "spark", brokers=servers)
    assert json.loads(no_store.stdout) == {payments: {"0": 2, "1": 8, "2": 0}}


@pytest.mark.behaviour("MIRROR-7", "START-23")
def test_where_a_job_would_refuse_to_start_the_answer_is_no_with_the_option_that_shows_the_way(
    run: Run, billing: str, payments: str, offsetstore_database: str, offsetstore_kafka: KafkaBroker
) -> None:
    servers = offsetstore_kafka.bootstrap_servers
    agree = ["resolve", "-g", billing, "-t", payments, "--prefer", "agree"]
    result = run(*agree, url=offsetstore_database, brokers=servers)
    assert result.exit_code == 1
    assert "  found:     4 stored, 2 committed\n" in result.stderr

    delete_records(servers, payments, {2: 6})
    arguments = ["resolve", "-g", billing, "-t", payments, "--format", "spark"]
    refused = run(*arguments, url=offsetstore_database, brokers=servers)
    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert refused.stderr.startswith(f"Error: {payments}-2: the records [0, 6) are no longer in the log\n")
    assert "--on-data-loss earliest" in refused.stderr
    shown = run(*arguments, "--on-data-loss", "earliest", url=offsetstore_database, brokers=servers)
    assert json.loads(shown.stdout)[payments]["2"] == 6

    with psycopg.connect(offsetstore_database, autocommit=True) as connection:
        connection.execute("UPDATE kafka_partitions SET contested = true")
    arguments += ["--on-data-loss", "earliest"]
    refused = run(*arguments, url=offsetstore_database, brokers=servers)
    assert refused.exit_code == 1
    assert "  found:     2 committed, 4 stored\n" in refused.stderr
    assert "--prefer stored" in refused.stderr
    shown = run(*arguments, "--prefer", "stored", url=offsetstore_database, brokers=servers)
    assert json.loads(shown.stdout)[payments] == {"0": 4, "1": 5, "2": 6}
