"""A mistyped command, option, group or topic: what is there with a similar name is suggested."""

from __future__ import annotations

import pytest

from offsetstore import Claim, OffsetStore
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.testing import StaticBroker
from tests.integration.commands.conftest import Run
from tests.integration.commands.test_all_groups import SET_ASIDE
from tests.integration.conftest import Query

REASON = ("--reason", "ticket 17")


@pytest.fixture(autouse=True)
def claim(store: OffsetStore, broker: StaticBroker, query: Query) -> Claim:
    """The group `billing`, which reads `payments`, and a row for `events` that Kafka refuses."""
    claim = store.claim("billing", broker, mirror_every=None)
    with store.transaction(claim) as tx:
        tx.lock({})
        tx.produce_all([OutboxRecord("events", b"key", b"1")])
    query(SET_ASIDE)
    return claim


@pytest.mark.behaviour("DX-1")
def test_a_similar_name_is_suggested_for_one_that_does_not_exist(run: Run) -> None:
    for arguments, code, near in (
        (("statuss",), 2, "status"),
        (("dead-letter", "list"), 2, "dead-letters"),
        (("dead-letters", "lst"), 2, "list"),
        (("outbox", "setaside"), 2, "set-aside"),
        (("status", "--fromat", "json"), 2, "--format"),
        *(
            ((*command, "-g", "biling"), 1, "billing")
            for command in (
                ("status",),
                ("runs",),
                ("errors",),
                ("history",),
                ("lag", "-b", "b:1"),
                ("health",),
                ("dead-letters", "list"),
                ("dead-letters", "show", "payments:0:1"),
                ("dead-letters", "export"),
                ("outbox", "list"),
                ("metadata", "get", "payments"),
                ("metadata", "set", "payments", "0", "1", *REASON),
                ("reset", "--all-topics", "--to-current", *REASON),
                ("pause", *REASON),
                ("resume", *REASON),
                ("groups", "copy", "--to", "x", *REASON),
                ("groups", "rename", "--to", "x", *REASON),
                ("groups", "delete", *REASON),
                ("dead-letters", "replay", "--all", *REASON),
                ("dead-letters", "discard", "--all", *REASON),
                ("dead-letters", "prune", "--older-than", "1d", *REASON),
                ("outbox", "retry", "--all", *REASON),
            )
        ),
        (("metadata", "get", "paymnts", "-g", "billing"), 1, "payments"),
        (("metadata", "set", "paymnts", "0", "1", "-g", "billing", *REASON), 2, "payments"),
        (("reset", "-g", "billing", "-t", "Payments", "--to-current", *REASON), 2, "payments"),
        (("groups", "delete", "-g", "billing", "-t", "paymnts", *REASON), 2, "payments"),
    ):
        assert f"Did you mean '{near}'?" in run.fail(code, *arguments), arguments


@pytest.mark.behaviour("DX-1")
def test_an_empty_list_suggests_the_topic_that_was_meant(run: Run) -> None:
    letters, rows = ("dead-letters", "list", "-g", "billing"), ("outbox", "list", "-g", "billing")
    assert run.lines(*letters, "-t", "paymnts")[1:] == ["No dead letters of topic paymnts. Did you mean 'payments'?"]
    assert run.lines(*rows, "-t", "event")[1:] == ["No rows of topic event. Did you mean 'events'?"]
    for there in ((*letters, "-t", "payments"), (*letters, "-t", "invoices"), (*rows, "-t", "invoices")):
        assert len(run.lines(*there)) == 1
