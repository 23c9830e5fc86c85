"""docs/operations.md: its commands and its Python run as they stand there, in order, on a group `billing`."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.store.claim import Claim
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import Run

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
GROUP = "billing"


def blocks() -> list[tuple[str, str]]:
    """Each block's language and text."""
    return re.findall(r"^```(python|console)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.behaviour("OPS-1", "OPS-2", "OPS-11", "META-4")
def test_what_the_page_says_is_so(run: Run, offsetstore_database: str) -> None:
    tp = TopicPartition("payments", 0)
    with OffsetStore.connect(offsetstore_database) as store:
        read_four(store, GROUP, tp)
        names: dict[str, Any] = {
            "store": store,
            "broker": StaticBroker.with_topics({"payments": 1}, end=10),
            "TopicPartition": TopicPartition,
            "datetime": datetime,
            "timedelta": timedelta,
            "UTC": UTC,
        }
        printed = ""
        for language, text in blocks():
            if language == "python":
                exec(text, names)  # noqa: S102 - the page's own words
                continue
            for line in text.splitlines():
                digests = re.findall(r"^Plan (\w+):", printed, re.MULTILINE)
                prompt, command, *arguments = shlex.split(line.replace("DIGEST", ["", *digests][-1]), comments=True)
                assert (prompt, command) == ("$", "offsetstore")
                if "refunds" in arguments:
                    read_four(store, "invoicing", TopicPartition("refunds", 0)).close()
                result = run(*arguments, url=offsetstore_database)
                assert result.exit_code == 0, result.output
                printed += result.stdout

        assert "payments,0,4\n" in printed
        assert "until 2030-03-01T06:00:00+00:00: nightly load, ticket 18" in printed
        assert [line.event for line in names["decisions"]] == ["pause", "pause", "resume", "pause", "resume"]
        assert next(names["following"]).event == "copy"
        assert store.find_metadata(GROUP, "payments", 0) == {"checked": True}
        assert store.group_state(GROUP).pause is None
        assert names["live"] == [GROUP]
        assert (names["last"].state, names["errors"]) == ("live", [])
        assert [(sample.stored, sample.lag) for sample in names["trend"][GROUP]] == [(4, 6)]
        assert names["planned"].offsets == {tp: 4}
        assert store.offsets(GROUP)[tp].next_offset == 4
        assert [store.offsets(name) for name in ("billing-v2", "invoicing")] == [{}, {}]
        assert [line.event for line in store.history("invoicing")] == [
            *("rename", "rename", "claim", "adopt", "delete-topic", "delete", "delete")
        ]


def read_four(store: OffsetStore, group: str, tp: TopicPartition) -> Claim:
    """A job of the group has read four records, and runs."""
    claim = store.claim(group, topics=[tp.topic])
    with store.transaction(claim) as tx:
        tx.advance({tp: tx.lock({tp: OffsetRange(0, 4)})[tp].remaining})
    return claim
