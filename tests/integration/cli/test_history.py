from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from tests.integration.cli.conftest import Run
from tests.support.waiting import PATIENCE

P0 = TopicPartition("payments", 0)


@pytest.fixture
def store(offsetstore_database: str, offsetstore_group: str) -> Iterator[OffsetStore]:
    """With a claim, an adopted offset, a reset and a pause in the group's history."""
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim(offsetstore_group, topics=["payments"])
        with store.transaction(claim) as tx:
            tx.advance({P0: tx.lock({P0: OffsetRange(0, 4)})[P0].remaining})
        store.reset(offsetstore_group, {P0: 2}, reason="ticket 17", actor="ana")
        store.pause(offsetstore_group, reason="ticket 18", actor="ana")
        yield store


@pytest.mark.behaviour("OPS-1")
def test_each_decision_has_a_line_the_newest_last_and_they_can_be_limited(
    run: Run, store: OffsetStore, offsetstore_group: str, offsetstore_database: str
) -> None:
    result = run("history", "-g", offsetstore_group, url=offsetstore_database)
    assert result.exit_code == 0, result.output
    head, *lines = [re.split(r" {2,}", line) for line in result.stdout.splitlines()]
    assert head == ["at", "event", "partition", "from", "to", "actor", "reason"]
    assert [line[1:5] for line in lines] == [
        ["claim", "-", "-", "-"],
        ["adopt", "payments-0", "-", "0"],
        ["reset", "payments-0", "4", "2"],
        ["pause", "-", "-", "-"],
    ]
    assert [line[5:] for line in lines[2:]] == [["ana", "ticket 17"], ["ana", "ticket 18"]]

    def found(*arguments: str) -> list[dict[str, object]]:
        result = run("history", "-g", offsetstore_group, "--format", "json", *arguments, url=offsetstore_database)
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        assert document.keys() == {"group", "events"}
        return document["events"]

    kept = store.history(offsetstore_group)
    assert [line["event"] for line in found()] == ["claim", "adopt", "reset", "pause"]
    [reset] = found("--event", "reset")
    assert kept[2].at is not None
    assert reset == {
        "at": kept[2].at.isoformat(),
        "event": "reset",
        "topic": "payments",
        "partition": 0,
        "from": 4,
        "to": 2,
        "epoch": 2,
        "claim_id": str(kept[2].token.claim_id),
        "actor": "ana",
        "reason": "ticket 17",
        "db_role": "postgres",
    }
    assert [line["event"] for line in found("--limit", "1")] == ["pause"]
    assert [line["event"] for line in found("--since", kept[2].at.isoformat())] == ["reset", "pause"]
    assert [line["event"] for line in found("--event", "reset", "--event", "claim")] == ["claim", "reset"]
    assert found("--event", "rename") == []
    assert run("history", "-g", "nobody", "--event", "pauze", url=offsetstore_database).exit_code == 2


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
