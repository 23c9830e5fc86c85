"""What ``offsetstore dashboard`` hands to its server: whether one may decide on the pages, and with which database."""

from __future__ import annotations

from typing import Any

import pytest

from offsetstore.offset_store import OffsetStore
from offsetstore.testing import InMemoryOffsetStore, StaticBroker
from tests.integration.commands.conftest import Run

READER, DECIDER = ("postgresql://reader@db/sales", "postgresql://decider@db/sales")


@pytest.mark.behaviour("DASH-3")
def test_decisions_have_a_role_of_their_own_and_only_if_they_are_asked_for(
    run: Run, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: dict[str, InMemoryOffsetStore] = {}
    made: list[dict[str, Any]] = []

    def connect(url: str, **_named: object) -> InMemoryOffsetStore:
        return stores.setdefault(url, InMemoryOffsetStore())

    class Server:
        url = "http://127.0.0.1:9466/"

        def __init__(self, store: object, broker: object, _settings: object, **named: object) -> None:
            made.append({"store": store, "broker": broker, **named})

        def run(self) -> None:
            pass

    monkeypatch.setattr(OffsetStore, "connect", connect)
    monkeypatch.setattr(broker, "close", lambda: None, raising=False)
    monkeypatch.setattr("offsetstore.cli.dashboard.DashboardServer", Server)
    dashboard = ("dashboard", "-b", "localhost:9092", "--url", READER)

    assert "OFFSETSTORE_ACTIONS_URL" in run.fail(2, *dashboard, "--allow-actions")
    assert (stores, made) == ({}, [])
    run.lines(*dashboard, "--actions-url", DECIDER)
    assert [*stores] == [READER]
    monkeypatch.setenv("OFFSETSTORE_ACTIONS_URL", DECIDER)
    run.lines(*dashboard, "--allow-actions", "--kafka-group", "billing=spark-billing")
    looking, deciding = made
    assert looking["actions"] is None
    assert deciding["store"] is stores[READER]
    assert deciding["actions"].store is stores[DECIDER]
    assert deciding["actions"].broker is deciding["broker"]
    assert deciding["actions"].kafka_groups == {"billing": "spark-billing"}
