from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from offsetstore import OffsetStore, TopicPartition
from tests.integration.cli.conftest import Here, advance
from tests.support.waiting import PATIENCE

P0 = TopicPartition("payments", 0)


@pytest.fixture
def store(offsetstore_database: str, offsetstore_group: str) -> Iterator[OffsetStore]:
    """With a claim, an adopted offset, a reset and a pause in the group's history."""
    with OffsetStore.connect(offsetstore_database) as store:
        advance(store, store.claim(offsetstore_group, topics=["payments"]), {P0: 4})
        store.reset(offsetstore_group, {P0: 2}, reason="ticket 17", actor="ana")
        store.pause(offsetstore_group, reason="ticket 18", actor="ana")
        yield store


@pytest.mark.behaviour("OPS-1")
def test_each_decision_has_a_line_the_newest_last_and_they_can_be_limited(
    here: Here, store: OffsetStore, offsetstore_group: str
) -> None:
    history = ("history", "-g", offsetstore_group)
    head, *lines = [re.split(r" {2,}", line) for line in here(*history).splitlines()]
    assert head == ["at", "event", "partition", "from", "to", "actor", "reason"]
    assert [line[1:5] for line in lines] == [
        ["claim", "-", "-", "-"],
        ["adopt", "payments-0", "-", "0"],
        ["reset", "payments-0", "4", "2"],
        ["pause", "-", "-", "-"],
    ]
    assert [line[5:] for line in lines[2:]] == [["ana", "ticket 17"], ["ana", "ticket 18"]]

    kept = store.history(offsetstore_group)[2]
    assert kept.at is not None
    offsets = {"topic": "payments", "partition": 0, "from": 4, "to": 2}
    who = {"actor": "ana", "reason": "ticket 17", "db_role": "postgres"}
    reset = {"at": kept.at.isoformat(), "event": "reset", "epoch": 2, "claim_id": str(kept.token.claim_id)}
    assert here.json(*history, "--event", "reset") == {"group": offsetstore_group, "events": [reset | offsets | who]}
    for options, expected in {
        (): ["claim", "adopt", "reset", "pause"],
        ("--limit", "1"): ["pause"],
        ("--since", kept.at.isoformat()): ["reset", "pause"],
        ("--event", "reset", "--event", "claim"): ["claim", "reset"],
        ("--event", "rename"): [],
    }.items():
        assert [line["event"] for line in here.json(*history, *options)["events"]] == expected
    here.fail(2, "history", "-g", "nobody", "--event", "pauze")


@pytest.mark.behaviour("OPS-1")
@pytest.mark.parametrize("format_", ["table", "json"])
def test_it_is_followed_until_it_is_interrupted(
    store: OffsetStore, offsetstore_group: str, offsetstore_database: str, format_: str
) -> None:
    code = "from offsetstore.cli.main import main; main()"
    command = [sys.executable, "-c", code, "history", "-g", offsetstore_group, "--follow", "-n", "1"]
    environment = {**os.environ, "OFFSETSTORE_URL": offsetstore_database}
    with subprocess.Popen(
        [*command, "--format", format_], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert "ticket 18" in process.stdout.readline()
            store.resume(offsetstore_group, reason="ticket 19")
            line = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=20 * PATIENCE)
        finally:
            process.kill()
    assert "ticket 19" in line
    assert format_ == "table" or json.loads(line)["event"] == "resume"
    assert (process.returncode, rest, errors) == (130, "", "Interrupted.\n")
