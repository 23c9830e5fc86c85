from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from tests.integration.cli.conftest import Run

REASON = ("--reason", "ticket 17")


@pytest.fixture
def store(offsetstore_database: str, offsetstore_group: str) -> Iterator[OffsetStore]:
    """Where a job of the group has stored 4 for partition 0 of `payments`."""
    tp = TopicPartition("payments", 0)
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim(offsetstore_group, topics=["payments"])
        with store.transaction(claim) as tx:
            tx.advance({tp: tx.lock({tp: OffsetRange(0, 4)})[tp].remaining})
        yield store


@pytest.mark.behaviour("OPS-2")
def test_a_group_is_paused_until_it_is_resumed(
    run: Run, store: OffsetStore, offsetstore_group: str, offsetstore_database: str
) -> None:
    result = run("pause", "-g", offsetstore_group, *REASON, url=offsetstore_database)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:1] == [
        f"{offsetstore_group} is paused until it is resumed.",
    ]
    pause = store.group_state(offsetstore_group).pause
    assert pause is not None
    assert (pause.until, pause.reason) == (None, "ticket 17")

    result = run("resume", "-g", offsetstore_group, "--reason", "done", url=offsetstore_database)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Resumed {offsetstore_group}, paused since ")
    assert store.group_state(offsetstore_group).pause is None
    lines = store.history(offsetstore_group, events=["pause", "resume"])
    assert [(line.event, line.reason) for line in lines] == [("pause", "ticket 17"), ("resume", "done")]

    again = run("resume", "-g", offsetstore_group, "--reason", "done", url=offsetstore_database)
    assert again.exit_code == 0
    assert again.stdout == f"{offsetstore_group} was not paused; nothing was written.\n"


@pytest.mark.behaviour("OPS-2")
def test_with_a_time_it_ends_by_itself(
    run: Run, store: OffsetStore, offsetstore_group: str, offsetstore_database: str
) -> None:
    until = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    arguments = ("-g", offsetstore_group, "--format", "json", *REASON)
    paused = run("pause", *arguments, "--until", until.isoformat(), url=offsetstore_database)
    assert paused.exit_code == 0, paused.output
    pause = store.group_state(offsetstore_group).pause
    assert pause is not None
    told = {"at": pause.at.isoformat(), "until": until.isoformat(), "reason": "ticket 17"}
    found = json.loads(paused.stdout)
    assert len(found.pop("plan")) == 16
    assert found == {"group": offsetstore_group, "executed": True, "replaced": None, "paused": told}
    text = run("pause", "-g", offsetstore_group, *REASON, "--until", until.isoformat(), url=offsetstore_database)
    assert f"is paused until {until.isoformat()}, by the database's clock.\n" in text.stdout

    ended = json.loads(run("resume", *arguments, url=offsetstore_database).stdout)
    assert ended["ended"]["until"] == until.isoformat()
    assert json.loads(run("resume", *arguments, url=offsetstore_database).stdout)["ended"] is None


@pytest.mark.parametrize(
    ("command", "arguments", "code", "told"),
    [
        ("pause", ["-g", "nobody"], 1, "the store has no group 'nobody'"),
        ("pause", ["-g", "GROUP", "--until", "2020-01-01T00:00Z"], 2, "has passed"),
        ("pause", ["-g", "GROUP", "--until", "2120-01-01T00:00"], 2, "has no time zone"),
    ],
)
def test_what_is_refused(
    run: Run,
    store: OffsetStore,
    offsetstore_group: str,
    offsetstore_database: str,
    *,
    command: str,
    arguments: list[str],
    code: int,
    told: str,
) -> None:
    given = [offsetstore_group if one == "GROUP" else one for one in arguments]
    result = run(command, *REASON, *given, url=offsetstore_database)
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert store.history(offsetstore_group, events=["pause"]) == []
