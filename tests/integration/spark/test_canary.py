"""Nothing that a job shows holds a record's value or a password: canaries are planted, and looked for everywhere.

Spark's own DEBUG logs are looked at too, with the executors' (they are in the driver's process here): what Spark says
of a batch's rows by itself, it says at TRACE.
"""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg.conninfo import conninfo_to_dict

from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from offsetstore.testing.fixtures import NewTopic
from tests.support import canary_job
from tests.support.postgres import Database
from tests.support.waiting import wait_until

# The consumer group, which says how it fails, and the class of the error.
EXPECTED = {
    "refused": "RowsRefused",
    "execute-cancelled": "StoreUnavailable",
    "careless-task": "SinkError",
    "lost": "TransactionLost",
    "letters-refused-task": "nothing",
    "letters-rejected": "nothing",
    "letters-raised": "nothing",
}
PLACES = {
    "driver.log": ["driver", "psycopg", "sqlalchemy", "py4j"],
    "spark.log": ["log4j", "worker"],
    "events": ["event"],
    "errors.txt": ["an error of the job's own,"],
    **{name: ["group"] for name in canary_job.SURFACES},
}


@pytest.mark.behaviour("OPS-7")
def test_no_value_and_no_password_is_in_anything_that_a_job_shows(
    offsetstore_database: str, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, tmp_path: Path
) -> None:
    canaries = {what: f"{what}{uuid4().hex}" for what in ("key", "value", "header", "password")}
    leak = f"leak{uuid4().hex}"
    topic = offsetstore_topic(1)
    headers = (("origin", canaries["header"].encode()),)
    record = admin.NewRecord(canaries["value"].encode(), key=canaries["key"].encode(), partition=0, headers=headers)
    fine = admin.NewRecord(canary_job.GOOD.encode(), key=None, partition=0)
    admin.produce(offsetstore_kafka.bootstrap_servers, topic, [record, fine])
    database = Database(offsetstore_database)
    database.execute(canary_job.TABLES)
    database.close()

    place = {name: str(value) for name, value in conninfo_to_dict(offsetstore_database).items()}
    url = f"postgresql://{place['user']}:{canaries['password']}@{place['host']}:{place['port']}/{place['dbname']}"
    canary_job.run(tmp_path, url=url, servers=offsetstore_kafka.bootstrap_servers, topic=topic, leak=leak)

    # Java copies what its Python workers write, and may outlive its driver's Python for a moment.
    wait_until(lambda: f"worker {leak}".encode() in _contents(tmp_path / "spark.log"))
    files = {name: _contents(tmp_path / name) for name in PLACES}
    for name, signs in PLACES.items():
        for sign in signs:
            assert f"{sign} {leak}".encode() in files[name], f"{name} would not show a leak by {sign}"
    assert b"DEBUG org.apache.spark" in files["spark.log"]
    found = [
        (name, what, _around(text, canary))
        for name, text in files.items()
        for what, canary in canaries.items()
        if canary.encode() in text or canary.encode().hex().encode() in text
    ]
    assert found == []
    failed = dict(re.findall(r"^== (\S+): (\w+)", files["errors.txt"].decode(), re.MULTILINE))
    assert failed == EXPECTED
    metrics, spans = files["metrics"].decode(), files["spans"].decode()
    counted = dict(re.findall(r'errors_total\{consumergroup="(\S+)",error="(\w+)"\}', metrics))
    assert counted == {group: error for group, error in EXPECTED.items() if error != "nothing"}
    causes = set(re.findall(r'dead_letters_total\{cause="(\w+)",consumergroup="\S+"\} 1.0', metrics))
    assert causes == {"refused", "rejected", "raised"}
    retried = set(re.findall(r'"name": "retried",.*?"error.type": "(\w+)"', spans, re.DOTALL))
    assert retried == {"TransactionLost", "StoreUnavailable"}


def _contents(path: Path) -> bytes:
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    return b"".join(one.read_bytes() for one in files)


def _around(text: bytes, canary: str) -> str:
    """The first lines that hold it, without the rest of a log of many megabytes."""
    lines = [line for line in text.splitlines() if canary.encode() in line]
    return b"\n".join(line[:400] for line in lines[:5]).decode(errors="replace")
