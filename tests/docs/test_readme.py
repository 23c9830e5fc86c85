"""README's first steps run as they are pasted, on a real Kafka, Spark and PostgreSQL; and how its job ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, MetaData, Table

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import ExitCode
from offsetstore.kafka import admin
from offsetstore.local import stack
from offsetstore.local.kafka import KafkaBroker
from offsetstore.testing.fixtures import NewTopic
from offsetstore.testing.job_process import JobProcess
from tests.support.examples import environment_of_spark
from tests.support.postgres import Database
from tests.support.readme import BLOCKS, FILES, README
from tests.support.shell import SECONDS, Shell, end_of
from tests.support.waiting import wait_until

PARTS = README.parent / "docs" / "parts.md"
P0 = TopicPartition("events", 0)
EVENTS = Table("events", MetaData(), Column("offset", BigInteger))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setattr(stack, "_home", lambda: tmp_path / ".stack")
    with Shell(tmp_path) as shell:
        yield shell
    stack.down(delete_data=True)


@pytest.mark.behaviour("CONS-1", "CONS-8")
def test_the_first_steps_run_as_they_are_pasted(shell: Shell) -> None:
    first, prepare, job, look, consumer, last = BLOCKS
    *install, up, migrate = first.splitlines()
    assert install == [
        "python3 -m venv build/first && . build/first/bin/activate",
        "pip install '.[local]'",
        "cd build/first",
    ]

    shell.paste(f"{up}\n{migrate}")
    shell.paste(prepare)
    database = Database(shell.url)
    assert shell.paste_and_interrupt(job, lambda job: landed(job, database, 2)) == ExitCode.INTERRUPTED
    rows, status = shell.paste(look).split("Group billing")
    assert sorted(rows.splitlines()) == ["('ana', Decimal('12.50'))", "('bo', Decimal('3.00'))"]
    assert "Lag 0 in 3 partitions." in status
    assert shell.paste_and_interrupt(consumer, lambda job: landed(job, database, 3)) == ExitCode.OK
    assert "('cleo', Decimal('7.25'))" in shell.paste(look)
    assert database.one("SELECT sum(amount) FROM payments") == Decimal("22.75")
    database.close()
    assert shell.paste(last) == "PostgreSQL stopped.\nKafka stopped.\n"


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


@pytest.mark.behaviour("DX-1")
def test_the_example_lands_what_kafka_has_and_a_record_that_cant_be_computed_ends_it_in_a_few_lines(
    offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, database: Database, tmp_path: Path
) -> None:
    """Spark computes the record in a task, which Java and Python log with all of their stacks."""
    database.execute("CREATE TABLE payments (payer text, amount numeric(12,2))")
    topic, servers = offsetstore_topic(1), offsetstore_kafka.bootstrap_servers
    admin.produce(servers, topic, [admin.NewRecord(b"1.50", key=b"ada"), admin.NewRecord(b"2.25", key=b"bob")])
    assert FILES["job.py"].count('"subscribe": "payments"') == 1
    code = FILES["job.py"].replace('"subscribe": "payments"', f'"subscribe": "{topic}"')
    (script := tmp_path / "job.py").write_text(code, encoding="utf-8")
    environment = {
        **addresses(database, servers),
        **environment_of_spark(),
        "CHECKPOINTS": str(tmp_path / "checkpoints"),
    }
    with JobProcess([script], tmp_path / "log", environment=environment, cwd=README.parent) as job:
        wait_until(lambda: landed(job, database, 2), timeout=SECONDS)
        admin.produce(servers, topic, [admin.NewRecord(b"3.00", key=b"cleo"), admin.NewRecord(b"a lot", key=b"dan")])
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
    blocks = re.findall(r"^```python\n(.*?)^```$", PARTS.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    [example] = [block for block in blocks if "def work(tx)" in block]
    database.execute('CREATE TABLE events ("offset" bigint NOT NULL)')
    with OffsetStore.connect(database.url) as store:
        earlier = store.claim("audit", topics=["events"])
        with store.transaction(earlier) as tx:  # an earlier run of the job got as far as 60
            tx.advance({P0: tx.lock({P0: OffsetRange(40, 60)})[P0].remaining})
        names = {"store": store, "events": EVENTS, "records": [{"offset": number} for number in range(40, 80)]}
        exec(compile(example, str(PARTS), "exec"), names)  # noqa: S102 - the page's own words
        assert database.column('SELECT "offset" FROM events ORDER BY 1') == list(range(60, 80))
        assert store.offsets("audit")[P0].next_offset == 80
        assert store.metadata("audit")[P0] == {"trace": "7f3a"}
