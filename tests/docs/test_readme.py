"""README's first example runs as it stands there, on a real Kafka, Spark and PostgreSQL; and how it ends."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, MetaData, Table

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from offsetstore.testing.fixtures import NewTopic
from offsetstore.testing.job_process import JobProcess
from tests.support.examples import environment_of_spark
from tests.support.postgres import Database
from tests.support.waiting import wait_until

README = Path(__file__).parents[2] / "README.md"
P0 = TopicPartition("events", 0)
EVENTS = Table("events", MetaData(), Column("offset", BigInteger))
SECONDS = 180  # the job starts a Spark of its own


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def of_topic(number: int, option: str, topic: str) -> str:
    """An example with another topic: nothing but this option of its reader is replaced."""
    example = examples()[number]
    assert example.count(f'{option}"payments"') == 1
    return example.replace(f'{option}"payments"', f'{option}"{topic}"')


@pytest.fixture
def database(offsetstore_database: str) -> Iterator[Database]:
    database = Database(offsetstore_database)
    yield database
    database.close()


def addresses(database: Database, servers: str) -> dict[str, str]:
    return {"OFFSETSTORE_URL": database.url, "OFFSETSTORE_BOOTSTRAP_SERVERS": servers}


def landed(job: JobProcess, database: Database, rows: int) -> bool:
    assert job.exit_status is None, job.end_of_log
    return database.one("SELECT count(*) FROM payments") == rows


@pytest.mark.behaviour("CONS-1", "CONS-8")
def test_the_example_without_spark_consumes_until_it_is_stopped(
    offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE payments (payer text, amount numeric(12,2))")
    topic, servers = offsetstore_topic(3), offsetstore_kafka.bootstrap_servers
    (tmp_path / "billing_app.py").write_text(of_topic(1, "topics=[", topic))
    admin.produce(servers, topic, [admin.NewRecord(b"1.50", b"ada"), admin.NewRecord(b"2.25", b"bob")])
    main = "from offsetstore.cli.main import main; main()"
    command = ["-c", main, "consume", "billing_app:consumer", "--processes", "2"]
    environment = {**os.environ, **addresses(database, servers)}
    with JobProcess(command, tmp_path / "log", environment=environment, cwd=tmp_path) as job:
        wait_until(lambda: landed(job, database, 2), timeout=SECONDS)
        admin.produce(servers, topic, [admin.NewRecord(b"3.00", b"cleo")])
        wait_until(lambda: landed(job, database, 3), timeout=SECONDS)
        os.kill(job.pid, signal.SIGTERM)
        assert end_of(job) == 0, job.end_of_log
    assert database.one("SELECT sum(amount) FROM payments") == Decimal("6.75")


def end_of(job: JobProcess) -> int:
    """Wait until it has ended, and return its exit status."""
    wait_until(lambda: job.exit_status is not None, timeout=SECONDS)
    job.finish_reading()
    assert job.exit_status is not None
    return job.exit_status


@pytest.mark.behaviour("DX-1")
def test_the_example_lands_what_kafka_has_and_a_record_that_cant_be_computed_ends_it_in_a_few_lines(
    offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, database: Database, tmp_path: Path
) -> None:
    """Spark computes the record in a task, which Java and Python log with all of their stacks."""
    database.execute("CREATE TABLE payments (payer text, amount numeric(12,2))")
    topic, servers = offsetstore_topic(1), offsetstore_kafka.bootstrap_servers
    admin.produce(servers, topic, [admin.NewRecord(b"1.50", b"ada"), admin.NewRecord(b"2.25", b"bob")])
    (script := tmp_path / "job.py").write_text(of_topic(0, '"subscribe": ', topic), encoding="utf-8")
    environment = {
        **addresses(database, servers),
        **environment_of_spark(),
        "CHECKPOINTS": str(tmp_path / "checkpoints"),
    }
    with JobProcess([script], tmp_path / "log", environment=environment, cwd=README.parent) as job:
        wait_until(lambda: landed(job, database, 2), timeout=SECONDS)
        admin.produce(servers, topic, [admin.NewRecord(b"3.00", b"cleo"), admin.NewRecord(b"a lot", b"dan")])
        assert end_of(job) == 5, job.end_of_log

    rows = database.rows("SELECT payer, amount::text FROM payments ORDER BY payer")
    assert rows == [("ada", "1.50"), ("bob", "2.25"), ("cleo", "3.00")]
    assert database.one("SELECT next_offset FROM kafka_partitions WHERE consumer_group = 'billing'") == 3
    said = job.log.read_text(encoding="utf-8")
    told = said[said.index("Error: ") :]
    assert told.startswith(f"Error: {topic}-0: ")
    assert "next step:" in told
    assert f"-t {topic}:0 --from-offset 3 --to-offset 4" in told
    assert len(said.splitlines()) <= 15, said
    assert "a lot" not in said  # whatever wrote it


@pytest.mark.behaviour("TX-5")
def test_the_transaction_without_spark_writes_what_a_replay_leaves_and_no_more(database: Database) -> None:
    [example] = [one for one in examples() if "def work(tx)" in one]
    database.execute('CREATE TABLE events ("offset" bigint NOT NULL)')
    with OffsetStore.connect(database.url) as store:
        earlier = store.claim("audit", topics=["events"])
        with store.transaction(earlier) as tx:  # an earlier run of the job got as far as 60
            tx.advance({P0: tx.lock({P0: OffsetRange(40, 60)})[P0].remaining})
        names = {"store": store, "events": EVENTS, "records": [{"offset": number} for number in range(40, 80)]}
        exec(compile(example, str(README), "exec"), names)  # noqa: S102 - README's own words
        assert database.column('SELECT "offset" FROM events ORDER BY 1') == list(range(60, 80))
        assert store.offsets("audit")[P0].next_offset == 80
        assert store.metadata("audit")[P0] == {"trace": "7f3a"}
