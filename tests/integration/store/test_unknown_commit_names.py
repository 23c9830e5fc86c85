"""A COMMIT whose answer is lost, and the group's name is another group's before it is looked for."""

from __future__ import annotations

import pytest

from offsetstore import OffsetStore
from offsetstore.errors import CommitUnknown
from tests.integration.conftest import Query
from tests.integration.store.committing import BOTH, MARK, NEW, P0, Job, broker, write_marked
from tests.support.proxy import Lost

NOT_TOLD = "group 'billing' has been renamed since, or deleted"


def swap(other: OffsetStore) -> None:
    """Give the name to a group that was never advanced."""
    other.claim("accounting", broker())
    other.rename_group("billing", "old", reason="a merger")
    other.rename_group("accounting", "billing", reason="a merger")


@pytest.mark.behaviour("TX-11")
@BOTH
def test_another_group_s_row_without_an_id_tells_nothing(job: Job, offsetstore_database: str, lost: Lost) -> None:
    with (
        OffsetStore.connect(offsetstore_database) as other,
        job.proxy.losing(lost, then=lambda: swap(other)),
        pytest.raises(CommitUnknown, match=f"^payments-0: .*{NOT_TOLD}"),
    ):
        job.store.run(job.claim, job.work(P0))
    assert job.runs == 1


@pytest.mark.behaviour("TX-11")
def test_a_row_that_another_group_does_not_have_tells_nothing(
    job: Job, offsetstore_database: str, query: Query
) -> None:
    with OffsetStore.connect(offsetstore_database) as other:

        def swap_and_claim() -> None:
            swap(other)
            other.claim("billing", broker())  # so that the renaming is not the last that happened

        with (
            job.proxy.losing(Lost.ANSWER, then=swap_and_claim),
            pytest.raises(CommitUnknown, match=f"^payments-2: .*{NOT_TOLD}"),
        ):
            job.store.run(job.claim, job.work(NEW))

    assert job.runs == 1
    assert query("SELECT consumer_group, next_offset FROM kafka_partitions WHERE partition = 2") == [("old", 40)]


@pytest.mark.behaviour("TX-11", "SINK-6")
def test_another_group_s_mark_tells_nothing(job: Job, offsetstore_database: str, query: Query) -> None:
    with OffsetStore.connect(offsetstore_database) as other:

        def swap_and_claim() -> None:
            swap(other)
            other.claim("billing", broker())

        with (
            job.proxy.losing(Lost.ANSWER, after=MARK, then=swap_and_claim),
            pytest.raises(CommitUnknown, match=NOT_TOLD),
        ):
            job.store.run(job.claim, lambda tx: write_marked(tx, 0))

    assert query("SELECT count(*) FROM results") == [(1,)]


@pytest.mark.behaviour("TX-11")
def test_a_group_that_was_removed_and_made_again_tells_nothing(
    job: Job, offsetstore_database: str, query: Query
) -> None:
    claim = job.store.claim("billing", broker())

    with OffsetStore.connect(offsetstore_database) as other:

        def make_again() -> None:
            query("DELETE FROM kafka_partitions")
            query("DELETE FROM consumer_groups")
            other.claim("billing", broker())

        with job.proxy.losing(Lost.ANSWER, then=make_again), pytest.raises(CommitUnknown, match=NOT_TOLD):
            job.store.run(claim, job.work(P0))
    assert job.runs == 1
