"""A COMMIT whose answer is lost: by a proxy that swallows the one or the other."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from offsetstore import (
    Claim,
    LetterError,
    LetterFilter,
    OffsetRange,
    OffsetStore,
    Timeouts,
    TopicPartition,
    Transaction,
)
from offsetstore.errors import CommitUnknown, ConnectionLost, StaleClaim, TransactionLost
from offsetstore.local.postgres import PostgresServer
from offsetstore.protocol.letters import NewLetter, Payload
from tests.integration.conftest import Query
from tests.integration.store.committing import BOTH, MARK, QUERY, RECORDS, Job, started, write_marked
from tests.integration.store.meeting import P0, P1, broker
from tests.integration.store.meeting import P2 as NEW
from tests.support.proxy import CLAIM, Lost

NOT_TOLD = "group 'billing' has been renamed since, or deleted"


@pytest.mark.behaviour("TX-11")
@pytest.mark.parametrize("lost", Lost, ids=lambda lost: lost.name)
@pytest.mark.parametrize("partition", [P0, NEW])
def test_run_neither_duplicates_nor_loses(job: Job, query: Query, lost: Lost, partition: TopicPartition) -> None:
    """Also where the partition's row comes and goes with its first transaction, and is held by a server that waits."""
    with job.proxy.losing(lost):
        job.store.run(job.claim, job.work(partition))

    assert job.runs == (1 if lost is Lost.ANSWER else 2)
    assert query(RECORDS) == [(40, 40)]
    assert job.store.offsets("billing")[partition].next_offset == 40
    lines = [line for line in job.store.history("billing") if line.topic_partition == partition]
    assert [line.to_offset for line in lines] == [0]


@pytest.fixture
def other(offsetstore_database: str) -> Iterator[OffsetStore]:
    """Somebody else's store, with connections of its own."""
    with OffsetStore.connect(offsetstore_database) as connected:
        yield connected


def take_over(job: Job, other: OffsetStore) -> None:
    other.run(other.claim("billing", broker(2)), job.work(P0, until=60))


def kept_errors() -> int:
    return sum(isinstance(one, ConnectionLost) for one in gc.get_objects())


@pytest.mark.behaviour("TX-11", "CONS-18")
@pytest.mark.usefixtures("uncollected")
def test_transaction_ends_well_where_only_the_answer_was_lost_and_keeps_no_error(
    job: Job, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    had = kept_errors()
    with job.proxy.losing(Lost.ANSWER):
        job.transaction(P0)

    assert kept_errors() == had
    assert "the rows show that it happened" in caplog.text
    assert query(RECORDS) == [(40, 40)]


@pytest.mark.behaviour("TX-11", "DLQ-7")
@BOTH
def test_a_replay_of_a_letter_which_advances_by_nothing_is_looked_up_too(job: Job, query: Query, lost: Lost) -> None:
    letter = NewLetter(P0, 5, "refused", LetterError("RowsRefused", "refused"), 1, None, Payload(None, b"5", (), 0, 0))
    with job.store.transaction(job.claim) as tx:
        tx.lock({P0: OffsetRange(0, 40)})
        tx.letters.write([letter])
        tx.advance({P0: OffsetRange(0, 40)})
    job.store.request_replay("billing", LetterFilter(), reason="mended")
    requested = job.claim.read(lambda one: one.requested_letters("billing", ["payments"], limit=9, max_bytes=9))

    def replay(tx: Transaction) -> None:
        job.runs += 1
        tx.lock({P0: OffsetRange(40, 40)})
        assert tx.letters.lock(requested)
        tx.connection.exec_driver_sql("INSERT INTO results VALUES (5)")
        tx.letters.settle(requested, {})
        tx.touch()

    with job.proxy.losing(lost):
        job.store.run(job.claim, replay)

    assert job.runs == (2 if lost is Lost.COMMIT else 1)
    assert query("SELECT record FROM results") == [(5,)]
    assert job.store.letter_counts("billing") == {"replayed": 1}


@pytest.mark.behaviour("TX-11", "MARK-1")
@BOTH
@pytest.mark.parametrize("mark", [None, 25])
def test_a_block_with_manual_marking_is_settled_with_and_without_a_mark(
    job: Job, query: Query, lost: Lost, mark: int | None
) -> None:
    def work(tx: Transaction) -> None:
        job.runs += 1
        tx.lock({P0: OffsetRange(0, 40)})
        tx.connection.exec_driver_sql(f"INSERT INTO results SELECT generate_series(0, {(mark or 1) - 1})")
        if mark is not None:
            tx.mark(P0, mark)

    with job.proxy.losing(lost):
        job.store.run(job.claim, work, marking="manual")

    assert job.runs == (2 if lost is Lost.COMMIT else 1)
    assert query(RECORDS) == [(mark or 1, mark or 1)]
    assert job.store.offsets("billing")[P0].next_offset == (mark or 0)
    assert job.claim.delivered == {P0: 40}


@pytest.mark.behaviour("TX-11")
@pytest.mark.parametrize(("lost", "partition"), [(Lost.COMMIT, P0), (Lost.ANSWER, P0), (Lost.COMMIT, NEW)])
def test_a_claim_in_between_does_not_hide_whether_it_happened(
    job: Job, other: OffsetStore, query: Query, lost: Lost, partition: TopicPartition
) -> None:
    claims: list[Claim] = []
    with job.proxy.losing(lost, then=lambda: claims.append(other.claim("billing", broker(2)))):
        if lost is Lost.ANSWER:
            job.transaction(partition)
        else:
            with pytest.raises(TransactionLost, match="rows show that nothing was committed"):
                job.transaction(partition)

    assert query(RECORDS) == ([(40, 40)] if lost is Lost.ANSWER else [(0, 0)])
    with pytest.raises(StaleClaim):
        job.store.run(job.claim, job.work(partition, until=50))
    other.run(claims[0], job.work(partition))
    assert query(RECORDS) == [(40, 40)]


@pytest.mark.behaviour("TX-11")
@BOTH
def test_rows_that_a_new_owner_has_moved_on_cant_tell(job: Job, other: OffsetStore, query: Query, lost: Lost) -> None:
    with (
        job.proxy.losing(lost, then=lambda: take_over(job, other)),
        pytest.raises(CommitUnknown, match="moved or removed since"),
    ):
        job.store.run(job.claim, job.work(P0))

    assert job.runs == 2  # ours, and the new owner's; never ours again
    assert query(RECORDS) == [(60, 60)]


@pytest.mark.behaviour("TX-11")
@BOTH
def test_one_row_that_was_not_moved_on_is_enough(job: Job, other: OffsetStore, lost: Lost) -> None:
    with job.proxy.losing(lost, then=lambda: take_over(job, other)):
        if lost is Lost.ANSWER:
            job.transaction(P0, P1)
        else:
            with pytest.raises(TransactionLost):
                job.transaction(P0, P1)


# -- the group's name is another group's, or nobody's, before it is looked for


def rename(other: OffsetStore, _: Query) -> None:
    other.rename_group("billing", "old", reason="a merger")


def swap(other: OffsetStore, query: Query) -> None:
    """Give the name to a group that was never advanced."""
    other.claim("accounting", broker(2))
    rename(other, query)
    other.rename_group("accounting", "billing", reason="a merger")


def swap_and_claim(other: OffsetStore, query: Query) -> None:
    """So that the renaming is not the last that happened."""
    swap(other, query)
    other.claim("billing", broker(2))


def remove(_: OffsetStore, query: Query) -> None:
    query("DELETE FROM kafka_partitions")
    query("DELETE FROM consumer_groups")


def remove_and_make_again(other: OffsetStore, query: Query) -> None:
    remove(other, query)
    other.claim("billing", broker(2))


@pytest.mark.behaviour("TX-11")
@pytest.mark.parametrize(
    ("lost", "meanwhile", "partition"),
    [
        (Lost.COMMIT, rename, P0),  # its first: the row holds no id from before
        (Lost.ANSWER, rename, P0),
        (Lost.COMMIT, swap, P0),
        (Lost.ANSWER, swap, P0),
        (Lost.ANSWER, swap_and_claim, NEW),
        (Lost.ANSWER, remove, NEW),
        (Lost.ANSWER, remove_and_make_again, P0),
    ],
)
def test_a_group_that_was_renamed_or_removed_since_cant_tell(
    job: Job,
    other: OffsetStore,
    query: Query,
    *,
    lost: Lost,
    meanwhile: Callable[[OffsetStore, Query], None],
    partition: TopicPartition,
) -> None:
    claim = job.store.claim("billing", broker(2))  # of a later epoch than a group that is made again
    with (
        job.proxy.losing(lost, then=lambda: meanwhile(other, query)),
        pytest.raises(CommitUnknown, match=f"^{partition}: .*{'' if meanwhile is remove else NOT_TOLD}"),
    ):
        job.store.run(claim, job.work(partition))
    assert job.runs == 1


@pytest.mark.behaviour("TX-11", "SINK-6")
def test_another_group_s_mark_tells_nothing(job: Job, other: OffsetStore, query: Query) -> None:
    with (
        job.proxy.losing(Lost.ANSWER, after=MARK, then=lambda: swap_and_claim(other, query)),
        pytest.raises(CommitUnknown, match=NOT_TOLD),
    ):
        job.store.run(job.claim, lambda tx: write_marked(tx, 0))

    assert query("SELECT count(*) FROM results") == [(1,)]


@pytest.mark.behaviour("TX-11")
def test_a_transaction_that_advanced_nothing_cant_tell(job: Job) -> None:
    with (
        job.proxy.losing(Lost.ANSWER, after=b"INSERT INTO results"),
        pytest.raises(CommitUnknown, match="no partition"),
    ):
        _write_without_offsets(job)


def _write_without_offsets(job: Job) -> None:
    with job.store.transaction(job.claim) as tx:
        tx.lock({})
        tx.connection.exec_driver_sql("INSERT INTO results VALUES (1)")


@pytest.mark.behaviour("TX-11", "SINK-6")
@BOTH
def test_a_batch_without_ranges_is_told_by_its_mark(job: Job, query: Query, lost: Lost) -> None:
    with job.proxy.losing(lost, after=MARK):
        written = job.store.run(job.claim, lambda tx: write_marked(tx, 0))

    assert written
    assert query("SELECT count(*) FROM results") == [(1,)]
    assert job.store.batch_mark("billing", QUERY) == 0


@pytest.mark.behaviour("TX-11", "SINK-6")
@BOTH
def test_a_claim_in_between_does_not_hide_the_mark(job: Job, other: OffsetStore, query: Query, lost: Lost) -> None:
    """With whose transaction the batch got into the results does not matter."""

    def repeat() -> None:
        other.run(other.claim("billing", broker(2)), lambda tx: write_marked(tx, 0))

    with job.proxy.losing(lost, after=MARK, then=repeat):
        job.store.run(job.claim, lambda tx: write_marked(tx, 0))

    assert query("SELECT count(*) FROM results") == [(1,)]


@pytest.mark.behaviour("TX-11", "SINK-6")
def test_a_batch_that_was_found_marked_is_told_by_its_mark_too(job: Job, query: Query) -> None:
    job.store.run(job.claim, lambda tx: write_marked(tx, 0))
    with job.proxy.losing(Lost.COMMIT, after=MARK):
        assert job.store.run(job.claim, lambda tx: write_marked(tx, 0)) is False
    assert query("SELECT count(*) FROM results") == [(1,)]


@pytest.mark.behaviour("TX-11")
def test_rows_that_somebody_holds_for_too_long_cant_tell(job: Job, offsetstore_database: str) -> None:
    job.store.timeouts = Timeouts(commit=1)
    with psycopg.connect(offsetstore_database) as holding:
        hold = "SELECT FROM kafka_partitions FOR UPDATE"
        began = time.monotonic()

        with (
            job.proxy.losing(Lost.ANSWER, then=lambda: holding.execute(hold)),
            pytest.raises(
                CommitUnknown, match=r"'billing' was lost.* within 1 s.*; in the look-up: payments-0 is held by pid"
            ),
        ):
            job.store.run(job.claim, job.work(P0))

        assert 1 <= time.monotonic() - began < 5
    assert job.runs == 1
    assert job.store.offsets("billing")[P0].next_offset == 40


@pytest.mark.behaviour("TX-11")
@BOTH
def test_a_database_that_is_down_during_the_look_up_is_waited_for(private_postgres: PostgresServer, lost: Lost) -> None:
    starting = threading.Timer(1, private_postgres.start)

    def crash() -> None:
        private_postgres.stop("immediate")
        starting.start()

    with psycopg.connect(private_postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE results (record bigint)")
    with started(private_postgres.url) as job:
        job.store.timeouts = Timeouts(commit=60)
        with job.proxy.losing(lost, then=crash):
            job.store.run(job.claim, job.work(P0))
        starting.join()

        assert job.runs == (2 if lost is Lost.COMMIT else 1)
        with psycopg.connect(private_postgres.url) as connection:
            assert connection.execute(RECORDS).fetchall() == [(40, 40)]


@pytest.mark.behaviour("TX-11")
def test_a_database_that_stays_down_ends_in_the_unknown(private_postgres: PostgresServer) -> None:
    with psycopg.connect(private_postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE results (record bigint)")
    with started(private_postgres.url) as job:
        job.store.timeouts = Timeouts(commit=1)
        with (
            job.proxy.losing(Lost.ANSWER, then=lambda: private_postgres.stop("immediate")),
            pytest.raises(CommitUnknown, match="no look-up succeeded within 1 s"),
        ):
            job.store.run(job.claim, job.work(P0))
        assert job.runs == 1


@BOTH
def test_a_claim_that_lost_its_commit_is_made_again(job: Job, offsetstore_database: str, lost: Lost) -> None:
    job.claim.close()

    with job.proxy.losing(lost, after=CLAIM):
        claim = job.store.claim("billing", broker(2), takeover="refuse")

    assert claim.token.epoch == (2 if lost is Lost.COMMIT else 3)
    job.store.run(claim, job.work(P0))
