"""A migration meets transactions that hold the tables' locks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Engine, text

from offsetstore.errors import LockTimeout
from offsetstore.postgres.migrate import current_revision, upgrade
from offsetstore.postgres.schema import HEAD
from tests.support.background import in_background
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("OPS-18")

BEFORE = "0007"
WAITING = """
SELECT 1 FROM pg_locks
WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture
def earlier(engine: Engine) -> Engine:
    """A database where a migration has something to do."""
    with engine.begin() as connection:
        upgrade(connection, revision=BEFORE)
    return engine


@pytest.fixture
def reader(earlier: Engine, offsetstore_empty_database: str) -> Iterator[psycopg.Connection]:
    """A long report, say, in a transaction that stays open."""
    with psycopg.connect(offsetstore_empty_database, application_name="a long report") as connection:
        connection.execute("SELECT 1 FROM store_identity")
        yield connection


def test_upgrade_gives_up_soon_and_names_who_was_in_its_way(earlier: Engine, reader: psycopg.Connection) -> None:
    with earlier.connect() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '7s'"))
        with pytest.raises(LockTimeout) as caught:
            upgrade(connection, lock_timeout=0.1)
        # The application's transaction goes on as it was.
        assert connection.execute(text("SELECT current_setting('lock_timeout')")).scalar_one() == "7s"
        assert current_revision(connection) == BEFORE
    pid = reader.info.backend_pid
    found = str(caught.value.found)
    assert found.startswith(f"pid {pid} (a long report, idle in transaction) for ")
    assert found.endswith(" s has locked store_identity")
    assert "pg_terminate_backend" in caught.value.next_step


def test_by_itself_it_holds_others_up_for_two_seconds_at_most(
    earlier: Engine, reader: psycopg.Connection, offsetstore_empty_database: str
) -> None:
    with (
        psycopg.connect(offsetstore_empty_database, autocommit=True) as job,
        earlier.connect() as connection,
    ):
        migrating = in_background(lambda: upgrade(connection))
        wait_until(lambda: job.execute(WAITING).fetchall())
        began = time.monotonic()
        job.execute("SELECT 1 FROM store_identity")
        assert 0.5 < time.monotonic() - began < 5
        with pytest.raises(LockTimeout):
            migrating.result(60)


def test_waiting_for_another_migration_takes_as_long_as_that_takes(
    earlier: Engine, offsetstore_empty_database: str
) -> None:
    """Nobody but migrations waits behind it."""
    with psycopg.connect(offsetstore_empty_database, autocommit=True) as looking, earlier.connect() as other:
        upgrade(other)
        with earlier.connect() as connection:
            waiting = in_background(lambda: upgrade(connection, lock_timeout=0.1))
            wait_until(lambda: looking.execute(WAITING).fetchall())
            time.sleep(0.3)
            other.commit()
            assert waiting.result(60) == HEAD


def test_a_deadlock_with_a_job_is_a_lock_that_was_not_to_be_had(
    engine: Engine, offsetstore_empty_database: str
) -> None:
    """A job writes letters before its history; revision 0006 changes the history before it adds the letters' index."""
    with engine.begin() as connection:
        upgrade(connection, revision="0005")
    with (
        psycopg.connect(offsetstore_empty_database) as job,
        psycopg.connect(offsetstore_empty_database, autocommit=True) as looking,
        engine.connect() as connection,
    ):
        job.execute("SET deadlock_timeout = '1h'")  # it never looks for one itself
        job.execute("LOCK TABLE dead_letters IN ROW EXCLUSIVE MODE")
        # It looks once, that long after it has begun to wait: the job must be waiting by then.
        connection.execute(text("SET LOCAL deadlock_timeout = '3s'"))
        began = time.monotonic()
        migrating = in_background(lambda: upgrade(connection, lock_timeout=60))
        wait_until(lambda: looking.execute(WAITING).fetchall())
        job.execute("LOCK TABLE offset_history IN ROW EXCLUSIVE MODE")
        with pytest.raises(LockTimeout):
            migrating.result(60)
        assert time.monotonic() - began < 60  # it was the deadlock, not the limit
        assert current_revision(connection) == "0005"
