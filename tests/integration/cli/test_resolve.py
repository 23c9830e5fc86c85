from __future__ import annotations

import json

import psycopg
import pytest

from offsetstore import Broker, OffsetStore, resolve_starting_offsets
from offsetstore.kafka.admin import delete_records
from tests.integration.cli.conftest import Here


@pytest.mark.behaviour("START-23")
def test_it_says_for_each_partition_where_it_would_start_and_why(
    here: Here, billing: str, payments: str, offsetstore_database: str, servers: str
) -> None:
    resolve = ("resolve", "-g", billing, "-t", payments)
    parts = here(*resolve, brokers=servers).split("\n\n")
    partitions, meanings, summary = [part.splitlines() for part in parts]
    assert [line.split() for line in partitions] == [
        ["partition", "start", "stored", "committed", "beginning", "end", "reason"],
        [f"{payments}-0", "4", "4", "2", "0", "10", "stored"],
        [f"{payments}-1", "8", "5", "8", "0", "10", "committed_is_larger"],
        [f"{payments}-2", "0", "0", "-", "0", "10", "only_stored"],
    ]
    meant = ["reason", "stored", "only_stored", "committed_is_larger"]
    assert [line.split(maxsplit=1)[0] for line in meanings] == meant
    assert summary == [
        f"Would skip 3 offsets that the store has not seen: {payments}-1 [5, 8).",
        f"{billing} would start with 18 offsets to read in 3 partitions.",
    ]

    with OffsetStore.connect(offsetstore_database) as store:
        broker = Broker({"bootstrap.servers": servers})
        expected = resolve_starting_offsets(broker, group=billing, topics=[payments], store=store).json()
    assert here(*resolve, "--format", "spark", brokers=servers) == f"{expected}\n"

    found = here.json(*resolve, brokers=servers)
    assert found.keys() == {"group", "kafka_group", "records", "partitions", "vanished", "warning", "starting_offsets"}
    assert (found["records"], found["warning"]) == (18, None)
    assert found["starting_offsets"] == {payments: {"0": 4, "1": 8, "2": 0}}
    where = {"topic": payments, "partition": 1, "beginning": 0, "end": 10, "stored": 5, "committed": 8, "start": 8}
    why = {"reason": "committed_is_larger", "explanation": "committed in Kafka by another tool, larger than stored"}
    assert found["partitions"][1] == {**where, **why, "skips": {"from": 5, "until": 8}}


@pytest.mark.behaviour("MIRROR-7", "START-23")
def test_the_policy_is_that_of_the_options_and_where_a_job_would_refuse_to_start_the_answer_is_no(
    here: Here, billing: str, payments: str, offsetstore_database: str, servers: str
) -> None:
    def starts(*options: str, group: str = billing) -> dict[str, int]:
        resolve = ("resolve", "-g", group, "-t", payments, "--format", "spark")
        return json.loads(here(*resolve, *options, brokers=servers))[payments]

    def refused(*options: str) -> str:
        return here.fail(1, "resolve", "-g", billing, "-t", payments, "--format", "spark", *options, brokers=servers)

    assert starts("--prefer", "stored") == {"0": 4, "1": 5, "2": 0}
    assert starts("--auto-offset-reset", "latest", group="nobody") == {"0": 10, "1": 10, "2": 10}
    assert starts("--auto-offset-reset", "2020-01-01T00:00Z", group="nobody") == {"0": 0, "1": 0, "2": 0}
    assert starts("--kafka-group", billing, group="nobody") == {"0": 2, "1": 8, "2": 0}
    assert starts("--no-store") == {"0": 2, "1": 8, "2": 0}
    assert "  found:     4 stored, 2 committed\n" in refused("--prefer", "agree")

    delete_records(servers, payments, {2: 6})
    told = refused()
    assert told.startswith(f"Error: {payments}-2: the records [0, 6) are no longer in the log\n")
    assert "--on-data-loss earliest" in told
    earliest = ("--on-data-loss", "earliest")
    assert starts(*earliest)["2"] == 6

    with psycopg.connect(offsetstore_database, autocommit=True) as connection:
        connection.execute("UPDATE kafka_partitions SET contested = true")
    told = refused(*earliest)
    assert "  found:     2 committed, 4 stored\n" in told
    assert "--prefer stored" in told
    assert starts(*earliest, "--prefer", "stored") == {"0": 4, "1": 5, "2": 6}
