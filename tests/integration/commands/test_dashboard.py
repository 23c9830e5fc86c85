"""What ``offsetstore dashboard`` hands to its server: whether one may decide on the pages, and with which database."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from offsetstore.offset_store import OffsetStore
from offsetstore.testing import InMemoryOffsetStore, StaticBroker

pytestmark = pytest.mark.behaviour("DASH-3")

READING = ("dashboard", "-b", "localhost:9092", "--url", "postgresql://reader@db/sales")


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> dict[str, InMemoryOffsetStore]:
    """The stores that were connected to, by URL."""
    made: dict[str, InMemoryOffsetStore] = {}

    def connect(url: str, **_named: object) -> InMemoryOffsetStore:
        return made.setdefault(url, InMemoryOffsetStore())

    monkeypatch.setattr(OffsetStore, "connect", connect)
    return made


@pytest.fixture
def served(broker: StaticBroker, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each server was made with; it ends at once."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(broker, "close", lambda: None, raising=False)

    class Server:
        url = "http://127.0.0.1:9466/"

        def __init__(self, store: object, broker: object, settings: object, **named: object) -> None:
            made.append({"store": store, "broker": broker, "settings": settings, **named})

        def run(self) -> None:
            made[-1]["garbage"] = gc.get_threshold()[0]

    monkeypatch.setattr("offsetstore.cli.dashboard.DashboardServer", Server)
    return made


def test_nothing_can_be_decided_unless_it_is_asked_for(
    run: Callable[..., Result], stores: dict[str, InMemoryOffsetStore], served: list[dict[str, Any]]
) -> None:
    result = run(*READING, "--actions-url", "postgresql://decider@db/sales")
    assert result.exit_code == 0, result.output
    assert list(stores) == ["postgresql://reader@db/sales"]
    assert served[0]["actions"] is None


def test_decisions_have_a_role_of_their_own(
    run: Callable[..., Result],
    stores: dict[str, InMemoryOffsetStore],
    served: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OFFSETSTORE_ACTIONS_URL", "postgresql://decider@db/sales")
    result = run(*READING, "--allow-actions", "--kafka-group", "billing=spark-billing")
    assert result.exit_code == 0, result.output
    [made] = served
    assert made["store"] is stores["postgresql://reader@db/sales"]
    assert made["actions"].store is stores["postgresql://decider@db/sales"]
    assert made["actions"].broker is made["broker"]
    assert made["actions"].kafka_groups == {"billing": "spark-billing"}


def test_without_that_role_it_does_not_start(
    run: Callable[..., Result], stores: dict[str, InMemoryOffsetStore], served: list[dict[str, Any]]
) -> None:
    result = run(*READING, "--allow-actions")
    assert result.exit_code == 2
    assert "OFFSETSTORE_ACTIONS_URL" in result.stderr
    assert not stores
    assert not served
