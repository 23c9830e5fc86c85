"""``offsetstore store``, as docs/deploy.md tells it: what a database is that is another one than before."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import ForeignStore, StoreMoved
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.offsets import CommittedOffset
from offsetstore.protocol.stamp import Stamp
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import Run

PAGE = Path(__file__).parents[3] / "docs" / "deploy.md"
GROUP = "billing"
TP = TopicPartition("payments", 0)


def step(name: str) -> list[str]:
    """The page's command, without the prompt and the program."""
    [line] = re.findall(rf"^\$ offsetstore (store {name} .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return shlex.split(line)


def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 1}, end=100)


@pytest.fixture
def copy(offsetstore_postgres: PostgresServer, offsetstore_database: str) -> Iterator[str]:
    """Another database with the same tables, as a pg_upgrade or a restore leaves them; 40 is stored."""
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim(GROUP, broker(), mirror_every=None)
        with store.transaction(claim) as tx:
            tx.advance({TP: tx.lock({TP: OffsetRange(0, 40)})[TP].remaining})
    name = offsetstore_database.rpartition("/")[2]
    yield offsetstore_postgres.create_database(f"{name}_copy", template=name)
    offsetstore_postgres.drop_database(f"{name}_copy")


@pytest.mark.behaviour("START-27")
def test_the_step_after_a_pg_upgrade_or_a_switch_lets_the_jobs_go_on(run: Run, copy: str) -> None:
    status = run("status", "-g", GROUP, url=copy)
    assert "The store's tables are in another database than before: no job starts." in status.stdout
    assert json.loads(run("status", "-g", GROUP, "--format", "json", url=copy).stdout)["database"] == "moved"
    with OffsetStore.connect(copy) as store:
        with pytest.raises(StoreMoved):
            store.claim(GROUP, broker())
        store_id = store.identity().store_id

        plan = run(*step("moved")[:-1], url=copy)
        assert plan.stdout.startswith(f"Store {store_id} would move from database "), plan.output
        assert store.identity().is_elsewhere
        result = run(*step("moved"), url=copy)
        assert result.exit_code == 0, result.output
        assert result.stdout == f"Store {store_id} is at home in this database.\nStart its jobs.\n"
        claim = store.claim(GROUP, broker(), mirror_every=None)
        assert claim.starting is not None
        assert claim.starting.offsets == {TP: 40}
        again = run(*step("moved"), url=copy)
        assert again.stdout == f"Store {store_id} is at home in this database already; nothing was written.\n"
    assert "database" not in run("status", "-g", GROUP, url=copy).stdout
    assert json.loads(run("status", "-g", GROUP, "--format", "json", url=copy).stdout)["database"] == "home"
    assert "pg_upgrade to 18, ticket 17" in run("history", "-g", GROUP, "--event", "moved", url=copy).stdout


@pytest.mark.behaviour("START-27", "START-9")
def test_the_step_for_a_copy_makes_it_another_store_with_a_group_of_its_own_in_kafka(
    run: Run, copy: str, offsetstore_database: str
) -> None:
    kafka = broker()
    with OffsetStore.connect(offsetstore_database) as original:
        stamp = Stamp(original.identity().store_id, 1)
    kafka.commit(GROUP, {TP: CommittedOffset(60, stamp.text())})

    result = run(*step("new-id"), "--format", "json", url=copy)
    assert result.exit_code == 0, result.output
    with OffsetStore.connect(copy) as store:
        assert json.loads(result.stdout)["store_id"] == str(store.identity().store_id) != str(stamp.store_id)
        with pytest.raises(ForeignStore):
            store.claim(GROUP, kafka)
        status = run("status", "-g", GROUP, url=copy).stdout
        assert "given another store id by" in status
        kafka = broker()
        claim = store.claim(GROUP, kafka, kafka_group="billing-staging", mirror_every=None)
        assert claim.starting is not None
        assert claim.starting.offsets == {TP: 40}
    result = run(*step("new-id"), url=copy)
    assert result.stdout.splitlines()[1:] == [
        "Give each of its jobs a kafka_group= of its own.",
        "If the outbox has rows, the original sends them: empty it before a relay starts (docs/outbox.md).",
    ]
