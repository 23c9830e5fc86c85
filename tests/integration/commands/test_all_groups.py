"""Lists without ``--group``: all groups, in bounded reads by an index; and what a terminal shows of each list."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from offsetstore import LetterError, OffsetRange, OffsetStore, TopicPartition
from offsetstore.cli import options
from offsetstore.cli.commands import cli
from offsetstore.errors import OffsetGap
from offsetstore.operations import outbox, people, stored_letters
from offsetstore.postgres.grants import grant_dashboard
from offsetstore.protocol.events import BatchEnded, BatchStarted
from offsetstore.protocol.letters import NewLetter
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.testing import StaticBroker
from tests.integration.commands.conftest import Run
from tests.integration.conftest import Query
from tests.integration.dashboard.conftest import role_with
from tests.support.plans import executed_plan
from tests.support.terminal import terminal

LONG = "payments-of-the-settlement-team.with-a-name-of-60-characters"
TOPIC = "settlements-of-all-countries.with-a-name-of-some-length"
P0 = TopicPartition(TOPIC, 0)
FAR = 9_999_999_990
# What is needed to act: names, letters, offsets and commands.
NEEDED = rf"{LONG}|{TOPIC}[-:0-9]*|\d{{10}}\b|`[^`]+`"
GROUPS = ("audit", "billing", LONG)
SET_ASIDE = """
WITH gone AS (DELETE FROM outbox RETURNING *)
INSERT INTO outbox_refused (id, consumer_group, topic, key, value, headers, created_at, error)
SELECT id, consumer_group, topic, key, value, headers, created_at, 'Kafka has no topic ' || topic FROM gone
"""


@pytest.fixture
def broker() -> StaticBroker:
    return StaticBroker.with_topics({TOPIC: 2}, end=FAR + 9)


@pytest.fixture(autouse=True)
def groups(store: OffsetStore, broker: StaticBroker, query: Query) -> None:
    """Three groups; each has two runs, the last one live, an error, two letters and a row that Kafka refuses."""
    for group in GROUPS:
        store.claim(group, broker, mirror_every=None).close()
        claim = store.claim(group, broker, mirror_every=None)
        ranges = {P0: OffsetRange(0, FAR)}
        error = LetterError("RowsRefused", "refused", "23514", f"public.{'results' * 5}", "a_constraint_of_some_length")
        with store.transaction(claim) as tx:
            tx.lock(ranges)
            tx.letters.write([NewLetter(P0, FAR - number, "refused", error, 3, None, None) for number in (1, 2)])
            tx.produce_all([OutboxRecord(TOPIC, b"key", b"1")])
            tx.advance(ranges)
        gap = OffsetGap("a gap of some length, which is told in a sentence", topic_partition=P0)
        claim.observers.on(BatchStarted(group=group, batch=7, ranges=ranges))
        claim.observers.on(BatchEnded(outcome="failed", group=group, batch=7, ranges=ranges, error=gap))
        claim.close()
        store.claim(group, broker, mirror_every=None)
    query(SET_ASIDE)


def test_runs_without_a_group_are_the_last_of_each_page_by_page(run: Run, store: OffsetStore) -> None:
    found = run.json("runs")
    assert (found["group"], found["next"]) == (None, None)
    assert [(one["group"], one["state"], one["epoch"]) for one in found["runs"]] == [(g, "live", 3) for g in GROUPS]
    assert [one["epoch"] for one in run.json("runs", "-n", "2")["runs"]] == [2, 3] * 3
    # As with the group's name, but for the ages.
    for group in GROUPS:
        of_all = [one for one in run.json("runs", "-n", "9")["runs"] if one.pop("group") == group]
        for one, other in zip(of_all, run.json("runs", "-g", group)["runs"], strict=True):
            assert {key: one[key] for key in one if not key.endswith("_seconds")} == {
                key: other[key] for key in other if not key.endswith("_seconds")
            }
    assert run.lines("runs")[0].split()[0] == "group"
    assert run.lines("runs")[-1] == "The last run of each group: -g GROUP shows all of it, and -n N the last N."
    assert [one["group"] for one in run.json("runs", "--after", "audit")["runs"]] == ["billing", LONG]
    assert "leave out --group" in run.fail(2, "runs", "-g", "billing", "--after", "audit")


def test_status_without_a_group_is_a_line_for_each_with_its_lag_if_there_are_brokers(
    run: Run, store: OffsetStore
) -> None:
    store.pause("audit", reason="maintenance")
    head, *lines = [line.split() for line in run.lines("status")]
    assert head == ["group", "state", "epoch", "partitions", "changed", "letters", "topics"]
    assert [line[:2] for line in lines[:3]] == [["audit", "paused"], ["billing", "live"], [LONG, "live"]]
    assert [line[0] for line in lines[3:]] == ["Outbox:", "Relay:"]
    found = run.json("status", "-n", "2", "-b", "b:1")
    assert (found["group"], found["next"]) == (None, "billing")
    assert [(one["group"], one["lag"]) for one in found["groups"]] == [("audit", FAR + 18), ("billing", FAR + 18)]
    assert run.lines("status", "-n", "2")[-1] == "There are more groups: --after billing"
    [last] = run.json("status", "-n", "2", "--after", "billing")["groups"]
    listed = run.json("groups", "list")["groups"][2]
    ages = {"heartbeat_age_seconds", "changed_seconds_ago"}
    assert {key: last[key] for key in listed.keys() - ages} == {key: listed[key] for key in listed.keys() - ages}
    assert last.keys() - listed.keys() == {"lag", "behind_seconds"}
    assert "leave out --group" in run.fail(2, "status", "-g", "billing", "-n", "2")
    assert "--kafka-group is the name of one group" in run.fail(2, "status", "--kafka-group", "x")


def test_errors_without_a_group_are_the_newest_of_all(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run.json("errors")
    assert found["group"] is None
    assert [one["group"] for one in found["errors"]] == [*GROUPS]
    [last] = run.json("errors", "-n", "1")["errors"]
    assert last.pop("group") == LONG
    assert run.json("errors", "-g", LONG)["errors"] == [last]
    assert run.json("errors", "--source", "job")["errors"] == []
    assert run.json("errors", "--since", "2100-01-01T00:00Z")["errors"] == []
    assert len(run.lines("errors")) == 1 + len(GROUPS)
    monkeypatch.setattr("offsetstore.cli.history._LOOKED_AT", 2)
    assert "newest 2 errors of all groups were looked at" in run.lines("errors")[-1]
    assert len(run.lines("errors", "--since", "2100-01-01T00:00Z")) == 1, "older ones would not be shown either"
    assert len(run.lines("errors", "-n", "1")) == 2, "there are as many as were asked for"
    monkeypatch.setattr("offsetstore.cli.history._LINES", 2)
    assert run.lines("errors")[-1] == "These are the last 2: --limit shows more."


def test_errors_of_all_groups_are_followed_and_each_is_told_once(
    run: Run, store: OffsetStore, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []

    def sleep(seconds: float) -> None:
        if turns:
            raise KeyboardInterrupt
        turns.append(seconds)
        # The same error in another group is another line.
        query(
            "INSERT INTO job_errors (consumer_group, epoch, source, error_class, times, at) "
            f"SELECT g, 3, 'job', 'KeyError', 1, now() FROM (VALUES ('audit'), ('{LONG}')) AS groups (g)"
        )

    monkeypatch.setattr(people, "time", SimpleNamespace(sleep=sleep))
    done = run("errors", "--follow", "-n", "1", "--format", "json")
    assert (done.exit_code, done.stderr) == (130, "Interrupted.\n")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["group"], one["error_class"]) for one in found] == [
        (LONG, "OffsetGap"),
        ("audit", "KeyError"),
        (LONG, "KeyError"),
    ]
    turns.clear()
    assert run("errors", "--follow", "-n", "1").stdout.splitlines()[0].split("  ")[0] == LONG


def test_the_letters_of_all_groups_are_one_list_and_a_page_ends_between_any_two(run: Run, store: OffsetStore) -> None:
    everything = run.json("dead-letters", "list")
    assert (everything["group"], everything["next"]) == (None, None)
    assert [(one["group"], one["offset"]) for one in everything["letters"]] == [
        (group, FAR - number) for group in reversed(GROUPS) for number in (1, 2)
    ]
    for limit in (1, 2, 5):
        letters, options = [], ["-n", str(limit)]
        while True:
            page = run.json("dead-letters", "list", *options)
            letters += page["letters"]
            if (cursor := page["next"]) is None:
                break
            options = ["-n", str(limit), "--after", cursor]
        assert letters == everything["letters"]
    one, *_ = everything["letters"]
    assert run.json("dead-letters", "list", "-g", one.pop("group"))["letters"][0] == one
    assert len(run.json("dead-letters", "list", "--constraint", "a_constraint_of_some_length")["letters"]) == 6
    assert run.json("dead-letters", "list", "--sqlstate", "23505")["letters"] == []
    assert run.json("dead-letters", "list", "--state", "discarded")["letters"] == []
    errors = run.json("dead-letters", "list", "--by", "error")["errors"]
    assert sorted((one["group"], one["letters"]) for one in errors) == [(group, 2) for group in GROUPS]
    assert run.lines("dead-letters", "list", "--by", "error")[-1].startswith("Counted among the newest 1,000 letters")


def test_letters_of_one_record_in_two_groups_that_were_written_at_one_time_are_both_listed(
    run: Run, query: Query
) -> None:
    query("UPDATE dead_letters SET created_at = '2025-03-01T00:00Z'")
    first = run.json("dead-letters", "list", "-n", "3")
    second = run.json("dead-letters", "list", "-n", "3", "--after", first["next"])
    found = [(one["group"], one["offset"]) for page in (first, second) for one in page["letters"]]
    assert sorted(found) == sorted((group, FAR - number) for group in GROUPS for number in (1, 2))
    assert second["next"] is None


def test_a_filter_looks_at_a_bounded_number_of_letters_and_the_next_page_goes_on(
    run: Run, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offsetstore.cli.dead_letters._LOOKED_AT", 2)
    query("UPDATE dead_letters SET sqlstate = '23505' WHERE consumer_group = 'audit'")
    found: list[dict[str, Any]] = []
    options: list[str] = []
    for _ in range(3):
        page = run.json("dead-letters", "list", "-n", "1", "--sqlstate", "23505", *options)
        found += page["letters"]
        options = ["--after", page["next"]]
    assert [one["group"] for one in found] == ["audit"]


def test_the_outbox_without_a_group_is_in_the_order_of_its_rows(run: Run) -> None:
    found = run.json("outbox", "list")
    assert found["group"] is None
    assert [one["group"] for one in found["rows"]] == [*GROUPS]
    first, *others = found["rows"]
    assert run.json("outbox", "list", "--after", str(first["id"]))["rows"] == others
    assert run.json("outbox", "list", "-n", "1")["rows"] == [first]
    assert run.json("outbox", "list", "--topic", "others")["rows"] == []


MANY = """
INSERT INTO consumer_groups (consumer_group, epoch, claim_id, owner, claimed_at)
SELECT 'group-' || n, 1, gen_random_uuid(), 'ana', now() FROM generate_series(1, 3000) AS n;
INSERT INTO dead_letters (consumer_group, topic, partition, record_offset, state, cause, payload, error_class, attempts,
                          created_at)
SELECT 'group-' || g, 'payments', 0, n, CASE n % 3 WHEN 0 THEN 'replayed' ELSE 'dead' END, 'refused', 'kept', 'E', 1,
       TIMESTAMPTZ '2025-03-01 00:00Z' + n * INTERVAL '1 second'
FROM generate_series(1, 50) AS g, generate_series(1, 500) AS n;
INSERT INTO job_runs (consumer_group, epoch, claim_id, owner, topics, versions)
SELECT 'group-' || g, n, gen_random_uuid(), 'ana', ARRAY['payments'], '{}'
FROM generate_series(1, 50) AS g, generate_series(1, 500) AS n;
INSERT INTO member_runs (consumer_group, epoch, claim_id, owner, topics, versions)
SELECT 'group-' || g, n, gen_random_uuid(), 'ana', ARRAY['payments'], '{}'
FROM generate_series(1, 50) AS g, generate_series(1, 500) AS n;
INSERT INTO job_errors (consumer_group, epoch, source, error_class, times)
SELECT 'group-' || n % 50, 1, 'batch', 'E', 1 FROM generate_series(1, 25000) AS n;
INSERT INTO offset_history (consumer_group, event, epoch, claim_id, actor, reason)
SELECT 'group-' || n % 50, 'claim', 1, gen_random_uuid(), 'ana', '' FROM generate_series(1, 25000) AS n;
INSERT INTO outbox_refused (id, consumer_group, topic, key, value, created_at, error)
SELECT n, 'group-' || n % 50, 'payments', NULL, NULL, now(), 'no' FROM generate_series(100, 25000) AS n;
"""


def test_history_without_a_group_is_the_newest_events_of_all_groups(
    run: Run, store: OffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pause("audit", reason="maintenance")
    store.pause("billing", reason="a deploy")
    found = run.json("history", "-n", "2")
    assert found["group"] is None
    assert [(line["group"], line["event"]) for line in found["events"]] == [("audit", "pause"), ("billing", "pause")]
    of_group = [dict(line) for line in run.json("history")["events"] if line.pop("group") == "audit"]
    assert of_group == run.json("history", "-g", "audit")["events"]
    head, *lines = run.lines("history", "--event", "pause")
    assert head.split()[0] == "group"
    assert [line.split()[0] for line in lines[:2]] == ["audit", "billing"]
    assert lines[2:] == []
    monkeypatch.setattr("offsetstore.cli.history._LOOKED_AT", 1)
    told = "Only the newest 1 events of all groups were looked at: name a group for older ones."
    assert run.lines("history", "--event", "pause", "-n", "1")[2:] == []
    assert run.lines("history", "--event", "reset", "-n", "1")[1:] == [told]
    assert "--follow needs --group" in run.fail(2, "history", "-f")


def test_each_read_of_all_groups_is_by_an_index_and_bounded(store: OffsetStore, query: Query) -> None:
    query(MANY)
    query("VACUUM ANALYZE")
    filters = dict.fromkeys(("cause", "topic", "partition", "error_class", "sqlstate", "table", "constraint", "column"))
    places = ("after_at", "after_topic", "after_partition", "after_offset", "after_topic_id", "after_group")
    letters = {**filters, **dict.fromkeys(places), "states": ["dead", "requested"], "limit": 10}
    page = {"groups": [f"group-{number}" for number in range(1, 21)]}
    history = {"since": None, "events": ["none"]}
    some = {"since": None, "sources": None, "limit": 10, "within": 1_000}
    for statement, values, table, most in (
        (stored_letters.LIST_LETTERS_OF_ALL, {**letters, "within": 11}, "dead_letters", 53 * 2 * 12),
        (stored_letters.LETTER_ERRORS_OF_ALL, {**letters, "within": 20}, "dead_letters", 53 * 2 * 21),
        (people.RUNS_OF_GROUPS, {**page, "limit": 2}, "job_runs", 20 * 2),
        (people.RUNS_OF_GROUPS, {**page, "limit": 2}, "member_runs", 20 * 3),
        (people.ERRORS_OF_ALL, some, "job_errors", 1_000),
        (people.HISTORY_OF_ALL, {**history, "limit": 10, "within": 1_000}, "offset_history", 1_000),
        (people.OLDEST_WITHIN, {"within": 1_000}, "job_errors", 1_000),
        (people.OLDEST_EVENT_WITHIN, {"within": 1_000}, "offset_history", 1_000),
        (outbox.REFUSED_OF_ALL, {"after": -1, "topic": None, "limit": 10}, "outbox_refused", 10),
        (people.NAMES, {"after": "group-2", "limit": 11}, "consumer_groups", 11),
        (people.GROUPS, page, "dead_letters", 20 * 500),
    ):
        scans = [node for node in executed_plan(store, statement, values) if node.get("Relation Name") == table]
        assert scans, table
        assert all("Index" in node["Node Type"] or "Bitmap" in node["Node Type"] for node in scans), (table, scans)
        rows = sum(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans
        )
        assert rows <= most, (table, rows)


def test_a_role_that_only_reads_lists_all_groups(
    run: Run, offsetstore_database: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = [("runs",), ("errors",), ("status",), ("dead-letters", "list"), ("outbox", "list")]
    lists += [("dead-letters", "list", "--by", "error"), ("dead-letters", "list", "--cause", "refused")]
    expected = [run.lines(*arguments)[0] for arguments in lists]
    with role_with(grant_dashboard, offsetstore_database, query) as url, OffsetStore.connect(url) as reader:

        def open_store(*_: Any, **__: Any) -> nullcontext[OffsetStore]:
            return nullcontext(reader)

        monkeypatch.setattr(options, "open_store", open_store)
        assert [run.lines(*arguments)[0] for arguments in lists] == expected


LISTS = (
    ("groups", "list"),
    ("status",),
    ("status", "-b", "b:1"),
    ("status", "-g", LONG, "-b", "b:1"),
    ("lag", "--all", "-b", "b:1"),
    ("lag", "-g", LONG, "-b", "b:1", "--partitions"),
    ("runs",),
    ("runs", "-g", LONG),
    ("errors",),
    ("errors", "-g", LONG),
    ("history", "-g", LONG),
    ("dead-letters", "list"),
    ("dead-letters", "list", "-g", LONG),
    ("dead-letters", "list", "--by", "error"),
    ("outbox", "list"),
    ("outbox", "list", "-g", LONG),
    ("metadata", "get", "-g", LONG, TOPIC),
)


def _on_a_terminal(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    with terminal(monkeypatch) as screen:
        cli.main([*arguments], prog_name="offsetstore", standalone_mode=False)
    return screen.lines


@pytest.mark.behaviour("DX-4")
def test_each_list_fits_a_terminal_of_80_columns_and_breaks_no_word(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in LISTS:
        whole = run.lines(*arguments)
        shown = _on_a_terminal(monkeypatch, *arguments)
        for line in shown:
            # A command is not broken, either: it is copied as a whole.
            assert len(line) <= 80 or re.fullmatch(r"`[^`]+`", line), (arguments, line)
        left_out = next((line for line in shown if line.startswith("Left out: ")), "")
        needed, words = ({word for line in lines for word in re.findall(NEEDED, line)} for lines in (whole, shown))
        assert needed <= words or left_out, (arguments, needed - words)
        names = {word for word in needed if not word.isdigit()}
        assert names <= words, (arguments, names - words)
        assert not re.search(r"\d{4}-\d{2}-\d{2}T", "\n".join(shown)), (arguments, "ages in place of stamps")
        head = next(line for line in whole if "  " in line)
        assert head in _on_a_terminal(monkeypatch, *arguments, "--wide"), "all columns"


@pytest.mark.behaviour("DX-4")
def test_in_a_pipe_there_is_no_command_that_leaves_anything_out(run: Run) -> None:
    for arguments in LISTS:
        assert not any(line.startswith("Left out") for line in run.lines(*arguments))
        assert json.dumps(run.json(*arguments))
