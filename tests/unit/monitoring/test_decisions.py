"""Which decision a form's fields are, and which field is named when they make no sense."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from offsetstore import TopicPartition
from offsetstore.monitoring.dashboard.forms import Answers, Invalid, read, settled
from offsetstore.operations.letters import DiscardLetters, ReplayLetters
from offsetstore.operations.outbox import DiscardRefused, RetryRefused, SetAside
from offsetstore.operations.pauses import PauseGroup, ResumeGroup
from offsetstore.operations.resets import ResetOffsets, ShiftBy
from offsetstore.operations.stored_letters import LetterFilter
from offsetstore.protocol.letters import LetterKey
from offsetstore.testing import StaticBroker

pytestmark = pytest.mark.behaviour("DASH-3")

BROKER = StaticBroker.with_topics({"payments": 1}, end=10)
LETTER = {"topic": " payments ", "partition": " 0 ", "offset": "4"}
P0 = TopicPartition("payments", 0)
KEY = LetterKey(P0, 4)
ERROR = {"cause": "refused", "error_class": "RowsRefused", "sqlstate": ""}
OF_ERROR = LetterFilter(cause="refused", error_class="RowsRefused", sqlstate="")
NINE = "9" * 5000


def decide(name: str, given: dict[str, str], *, fence: bool = False) -> Any:
    return read(name, settled(name, given), Answers("billing", "in Kafka", BROKER, "why", fence))


def reset(target: Any, partitions: Any = "all") -> ResetOffsets:
    return ResetOffsets(
        group="billing", target=target, partitions=partitions, broker=BROKER, kafka_group="in Kafka", takeover="refuse"
    )


@pytest.mark.parametrize(
    ("name", "given", "decision"),
    [
        ("reset", {"to": "earliest"}, reset("earliest")),
        ("reset", {"to": "latest", "topic": "payments"}, reset("latest", {"payments": None})),
        ("reset", {"to": "current", "topic": "t", "partition": " 1 "}, reset(ShiftBy(0), {"t": [1]})),
        ("reset", {"to": "offset", "value": " 2 "}, reset(2)),
        ("reset", {"to": "shift", "value": "-2"}, reset(ShiftBy(-2))),
        ("reset", {"to": "shift", "value": "+3"}, reset(ShiftBy(3))),
        ("reset", {"to": "time", "value": "2025-03-01T00:00Z"}, reset(datetime(2025, 3, 1, tzinfo=UTC))),
        ("pause", {}, PauseGroup("billing", "why")),
        ("pause", {"until": "2099-03-01T00:00Z"}, PauseGroup("billing", "why", datetime(2099, 3, 1, tzinfo=UTC))),
        ("resume", {}, ResumeGroup("billing")),
        ("replay", LETTER, ReplayLetters("billing", KEY)),
        ("replay", {**LETTER, "topic_id": ""}, ReplayLetters("billing", LetterKey(P0, 4, ""))),
        ("replay", {**ERROR, "forced": "yes"}, ReplayLetters("billing", OF_ERROR, forced=True)),
        ("discard", LETTER, DiscardLetters("billing", KEY)),
        ("discard", {**ERROR, "erase": "yes"}, DiscardLetters("billing", OF_ERROR, erase=True)),
        ("outbox-retry", {}, RetryRefused("billing", None, None)),
        ("outbox-discard", {"row": " 2 "}, DiscardRefused("billing", [2], None)),
        ("outbox-set-aside", {"topic": " events "}, SetAside("billing", None, "events")),
    ],
)
def test_each_field_goes_into_the_decision(name: str, given: dict[str, str], decision: Any) -> None:
    assert decide(name, given) == decision
    if name == "reset":
        assert decide(name, given, fence=True) == replace(decision, takeover="fence"), "only who says so fences"


@pytest.mark.parametrize(
    ("name", "given", "sign", "field"),
    [
        ("reset", {"to": "duration", "value": "pt5m30s"}, -1, "value"),
        ("pause", {"until": "PT5M30S"}, 1, "until"),
        ("pause", {"until": "330s"}, 1, "until"),
    ],
)
def test_a_duration_becomes_the_time_that_it_leads_to(name: str, given: dict[str, str], sign: int, field: str) -> None:
    """Else it would be another one when the form is sent."""
    fields = settled(name, given)
    ahead = sign * (datetime.fromisoformat(fields[field]) - datetime.now(UTC))
    assert abs(ahead - timedelta(minutes=5, seconds=30)) < timedelta(seconds=20)
    assert settled(name, fields) == fields
    assert fields.get("to", "time") == "time"


@pytest.mark.parametrize(
    ("name", "given", "field"),
    [
        ("reset", {"to": "nowhere"}, "to"),
        ("reset", {}, "to"),
        *(
            ("reset", {"to": to, "value": value}, "value")
            for to, values in (
                ("offset", ("", "-1", "1_0", NINE, str(2**63))),
                ("shift", ("many",)),
                ("time", ("yesterday", "2025-03-01T00:00")),
                ("duration", ("2 h", "P9999999D", f"P{NINE[:20]}D")),
                ("earliest", ("5",)),
            )
            for value in values
        ),
        ("reset", {"to": "earliest", "partition": "0"}, "topic"),
        ("reset", {"to": "earliest", "topic": "payments", "partition": "x"}, "partition"),
        ("reset", {"to": "earliest", "topic": "payments", "partition": str(2**31)}, "partition"),
        *(
            ("pause", {"until": until}, "until")
            for until in ("soon", "2020-01-01T00:00Z", "2099-01-01", "P9999999D", "9999-12-31T23:59-14:00")
        ),
        ("replay", {}, "offset"),
        ("replay", {"offset": "4"}, "topic"),
        ("replay", {"offset": "4", "topic": "payments"}, "partition"),
        ("discard", {**LETTER, "offset": "x"}, "offset"),
        ("discard", {"cause": "none"}, "cause"),
        ("discard", {"cause": ""}, "cause"),
        ("outbox-retry", {"row": "x"}, "row"),
        ("outbox-retry", {"row": "1", "topic": "events"}, "topic"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(name: str, given: dict[str, str], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        decide(name, given)
    assert caught.value.field == field
