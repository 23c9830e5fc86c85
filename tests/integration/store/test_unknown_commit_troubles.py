"""A COMMIT whose answer is lost, and a look-up that has troubles of its own: they are no answer."""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg
import pytest

from offsetstore import OffsetRange, Timeouts
from offsetstore.errors import CommitUnknown, TransactionLost
from tests.integration.conftest import Query
from tests.integration.store.committing import MARK, QUERY, RECORDS, Job
from tests.integration.store.meeting import P0
from tests.integration.store.meeting import P2 as NEW
from tests.support.proxy import Lost
from tests.support.waiting import wait_until

_TROUBLE = """
CREATE SEQUENCE looks;
CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('looks') <= {looks} THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER trouble BEFORE INSERT ON consumer_groups FOR EACH ROW EXECUTE FUNCTION trouble();
"""
"""The look-up of a transaction that makes a row asks for the group's row: that fails, as often as given."""

# A deadlock, a full disk, a statement_timeout.
troubles = pytest.mark.parametrize("state", ["40P01", "53100", "57014"])


@pytest.mark.behaviour("TX-11")
@troubles
def test_a_trouble_that_passes_is_waited_for(job: Job, query: Query, state: str) -> None:
    with job.proxy.losing(Lost.ANSWER, then=lambda: query(_TROUBLE.format(looks=2, state=state))):
        job.store.run(job.claim, job.work(NEW))

    assert job.runs == 1
    assert query("SELECT last_value FROM looks") == [(3,)]
    assert query(RECORDS) == [(40, 40)]


@pytest.mark.behaviour("TX-11")
@troubles
def test_a_trouble_that_stays_is_told_and_the_work_is_not_repeated(job: Job, query: Query, state: str) -> None:
    job.store.timeouts = Timeouts(commit=0.5)
    with (
        job.proxy.losing(Lost.ANSWER, then=lambda: query(_TROUBLE.format(looks=1000, state=state))),
        pytest.raises(
            CommitUnknown,
            match=r"^payments-2: .*'billing'.* within 0.5 s; .*in the look-up: .*\w+: raised by a function",
        ),
    ):
        job.store.run(job.claim, job.work(NEW))

    assert job.runs == 1


@pytest.mark.behaviour("TX-11")
def test_a_server_that_takes_no_writes_any_more_cant_tell(job: Job, query: Query) -> None:
    """As managed ones are while their disk is nearly full: no lock is had."""
    job.store.timeouts = Timeouts(commit=0.5)
    [[name]] = query("SELECT current_database()")

    with (
        job.proxy.losing(
            Lost.ANSWER, then=lambda: query(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        ),
        pytest.raises(CommitUnknown, match="in the look-up: SQLSTATE 25006, ReadOnlySqlTransaction"),
    ):
        job.transaction(P0)


@pytest.mark.behaviour("TX-11")
def test_a_deadlock_of_the_look_up_is_no_reason_to_repeat_the_work(
    job: Job, offsetstore_database: str, query: Query
) -> None:
    with psycopg.connect(offsetstore_database) as holding:

        def cross() -> None:
            waits = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            wait_until(lambda: query(waits) == [(1,)])
            with suppress(psycopg.errors.DeadlockDetected):  # on a slow machine it may be this one that is given up
                holding.execute("SELECT FROM consumer_groups FOR UPDATE")
            holding.rollback()

        crossing = threading.Thread(target=cross)

        def hold() -> None:
            holding.execute("SELECT FROM kafka_partitions FOR UPDATE")
            crossing.start()

        with job.proxy.losing(Lost.ANSWER, then=hold):
            job.store.run(job.claim, job.work(NEW))
        crossing.join()

    assert job.runs == 1
    wait_until(lambda: query("SELECT 1 FROM pg_stat_database WHERE datname = current_database() AND deadlocks > 0"))


@pytest.mark.behaviour("TX-11", "SINK-6")
def test_a_marked_batch_whose_ranges_were_all_done_is_not_lost_before_it_has_ended(job: Job, query: Query) -> None:
    """The server still waits for the COMMIT: that transaction has locked rows, not the group's, and advances none."""
    job.store.run(job.claim, job.work(P0))

    with job.proxy.losing(Lost.CONNECTION, after=MARK), pytest.raises(TransactionLost, match="batch 0 was not written"):
        _write_skipped(job)

    assert query("SELECT next_offset FROM kafka_partitions WHERE partition = 0 FOR UPDATE NOWAIT") == [(40,)]
    assert query(RECORDS) == [(40, 40)]


def _write_skipped(job: Job) -> None:
    with job.store.transaction(job.claim) as tx:
        tx.lock({P0: OffsetRange(0, 40)})
        assert tx.marks.mark_batch(QUERY, 0)
        tx.connection.exec_driver_sql("INSERT INTO results VALUES (1)")
