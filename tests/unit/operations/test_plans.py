"""Digests of plans; what is in which is the contract's."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest

from offsetstore import LetterFilter, TopicPartition
from offsetstore.errors import PlanChanged
from offsetstore.operations.operation import digest_of
from offsetstore.testing import InMemoryOffsetStore

AT = datetime(2025, 3, 1, 12, 0, 0, 1, tzinfo=UTC)


@pytest.mark.behaviour("OPS-10")
def test_a_time_is_the_same_in_all_zones_and_another_microsecond_is_another() -> None:
    """Two connections may read it in two zones: the one that shows a plan, and the one that carries it out."""
    digest = digest_of("pause", "billing", AT)
    assert digest == digest_of("pause", "billing", AT.astimezone(timezone(timedelta(hours=-7))))
    assert digest != digest_of("pause", "billing", AT + timedelta(microseconds=1))


@pytest.mark.behaviour("OPS-10")
def test_facts_are_told_apart() -> None:
    facts: list[list[object]] = [[], [None], ["None"], [["a", "b"]], [["a,b"]], ["a", "b"], [1], ["1"], [{"a": 1}]]
    digests = {digest_of("reset", "billing", *one) for one in facts}
    assert len({*digests, digest_of("reset", "billin", "g"), digest_of("resetbilling", "")}) == len(facts) + 2
    with pytest.raises(TypeError, match="not a fact of a plan: set"):
        digest_of("reset", "billing", {1})


@pytest.mark.behaviour("DLQ-18")
def test_the_error_takes_the_new_plan_along() -> None:
    with InMemoryOffsetStore() as store:
        store.claim("billing", topics=["payments"])
        with pytest.raises(PlanChanged) as caught:
            store.discard("billing", LetterFilter(), reason="ticket 17", if_plan="0" * 16)
        planned = store.discard("billing", LetterFilter(), reason="ticket 17", dry_run=True)
        assert not store.offsets("billing").keys() & {TopicPartition("payments", 0)}
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (error.plan, error.args, error.expected) == (planned, caught.value.args, "0" * 16)
