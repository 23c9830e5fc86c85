"""What ``dead-letters`` prints, and what it takes; what it does is the store's contract."""

from __future__ import annotations

import base64
import json
from typing import NoReturn

import pytest

from offsetstore import Claim, LetterError, LetterKey, OffsetRange, OffsetStore, TopicPartition
from offsetstore.cli.commands import cli
from offsetstore.errors import StoreUnavailable
from offsetstore.operations.group_checks import check_group
from offsetstore.protocol.letters import FailedReplay, NewLetter, Payload, digest
from offsetstore.protocol.runs import RunStatus
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker
from tests.integration.commands.conftest import Run
from tests.support.waiting import time_with

P0, P1 = (TopicPartition("payments", number) for number in range(2))
LIST, STATUS = ("dead-letters", "list", "-g", "billing"), ("status", "-g", "billing")
REPLAY = ("dead-letters", "replay", "-g", "billing", "--reason", "ticket 17")
REQUEST = (*REPLAY, "payments:0:1", "--execute")
REFUSED = LetterError("RowsRefused", "refused:\ntwo lines", "23514", "public.results", "positive")
RAISED = LetterError("ValueError", "no", traceback="line 1\nline 2")
REPLAYS = "The running job replays them within seconds, if it has dead_letters=; what fails again is dead again."
TEXT = Payload("schlüssel".encode(), b'{"amount": -1}\x1b[31m', (("trace", b"\xff"), ("note", None)), 1700000000000, 0)
BINARY = Payload(None, b"\x00\xff", None, None, None)


@pytest.fixture(autouse=True)
def claim(store: OffsetStore, broker: StaticBroker) -> Claim:
    """A job of `billing` whose letters are offsets 1, 3 of partition 0 and 2 of partition 1."""
    claim = store.claim("billing", broker, mirror_every=None)
    ranges = {P0: OffsetRange(0, 5), P1: OffsetRange(0, 5)}
    letters = (
        NewLetter(P0, 1, "refused", REFUSED, 3, digest(P0, TEXT.key), TEXT),
        NewLetter(P0, 3, "refused", REFUSED, 3, None, None),
        NewLetter(P1, 2, "raised", RAISED, 1, None, BINARY),
    )
    with store.transaction(claim) as tx:
        tx.lock(ranges)
        tx.letters.write(letters)
        tx.advance(ranges)
    return claim


def test_a_list_has_a_line_for_each_letter_and_the_word_for_the_next_page(run: Run) -> None:
    head, first, second, more = [line.split() for line in run.lines(*LIST, "-n", "2")]
    assert head == ["at", "letter", "state", "cause", "error", "sqlstate", "constraint", "attempts", "times"]
    assert first[1:] == ["payments:1:2", "dead", "raised", "ValueError", "-", "-", "1", "1"]
    assert second[1:] == ["payments:0:3", "dead", "refused", "RowsRefused", "23514", "positive", "3", "1"]
    assert more[:-1] == ["There", "are", "more:", "--after"]
    _, last = run.lines(*LIST, "-n", "2", "--after", more[-1])
    assert last.split()[1] == "payments:0:1"

    found = run.json(*LIST, "--cause", "raised")
    [letter] = found["letters"]
    assert (found["group"], found["next"]) == ("billing", None)
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("payments", 1, 2)
    assert (letter["error_class"], letter["payload"], letter["state"]) == ("ValueError", "kept", "dead")
    assert not {"key", "value", "headers", "error_text", "traceback"} & letter.keys()
    told = " ".join(cli.get_command(None, "dead-letters").commands["list"].help.split())  # type: ignore[union-attr, arg-type]
    assert [key for key in letter if key not in told] == []


def test_errors_have_a_line_each_with_how_many_letters_and_an_example(run: Run) -> None:
    _, first, second = [line.split() for line in run.lines(*LIST, "--by", "error")]
    assert first[:7] == ["2", "refused", "RowsRefused", "23514", "public.results", "positive", "-"]
    assert (first[-1], second[:3]) == ("payments:0:3", ["1", "raised", "ValueError"])
    errors = run.json(*LIST, "--by", "error")["errors"]
    assert [error["letters"] for error in errors] == [2, 1]
    assert errors[1]["example"] == {"topic": "payments", "partition": 1, "offset": 2, "topic_id": "payments-id"}


def test_a_letter_is_shown_as_text_where_it_is_utf_8_and_exported_with_all_bytes(run: Run) -> None:
    show = ("dead-letters", "show", "-g", "billing")
    first, *shown = run.lines(*show, "payments:0:1")
    assert first == "payments:0:1 of topic payments-id: dead, refused"
    assert {
        "Error:      RowsRefused (SQLSTATE 23514, table public.results, constraint positive)",
        "            refused:",
        "            two lines",
        "Timestamp:  2023-11-14T22:13:20.000+00:00 (CreateTime)",
        "Key:        schlüssel",
        'Value:      {"amount": -1}\\x1b[31m',
        "  trace: base64 /w==",
        "  note: none",
    } - {*shown} == set()
    shown = run.lines(*show, "payments:1:2")
    assert shown[-3:] == ["Traceback:", "  line 1", "  line 2"]
    assert {"Key:        none", "Value:      base64 AP8=", "Headers:    not read"} <= set(shown)
    assert "Record:     left out" in run.lines(*show, "payments:0:3")

    newest, middle, oldest = map(json.loads, run.lines("dead-letters", "export", "-g", "billing"))
    assert (base64.b64decode(oldest["key"]), base64.b64decode(oldest["value"])) == (TEXT.key, TEXT.value)
    assert oldest["headers"] == [["trace", "/w=="], ["note", None]]
    assert (middle["key"], middle["payload"]) == (None, "left out")
    assert (newest["key"], newest["value"], newest["headers"]) == (None, "AP8=", None)
    assert (newest["traceback"], newest["error_text"]) == ("line 1\nline 2", "no")


def test_what_cant_be_meant_is_refused(run: Run, store: OffsetStore) -> None:
    reason = "-g billing --reason x"
    for line, code, told in (
        ("list -g nobody", 1, "no group 'nobody'"),
        ("list -g billing --after x", 2, "after is not a valid cursor"),
        ("list -g billing --by error --cause raised", 2, "--by error goes with"),
        ("list -p 0 -g billing", 2, "--partition goes with --topic"),
        ("export -g nobody", 1, "no group 'nobody'"),
        ("show -g billing payments:0:2", 1, "no dead letter of offset 2"),
        ("show -g billing payments-0-2", 2, "is not TOPIC:PARTITION:OFFSET"),
        ("show -g billing payments:0:-2", 2, "is not TOPIC:PARTITION:OFFSET"),
        (f"replay {reason}", 2, "Name letters, or a filter"),
        (f"replay {reason} --all payments:0:1", 2, "Name letters, or a filter"),
        (f"replay {reason} payments:0:3", 1, "holds no record"),
        (f"replay {reason} --all --wait", 2, "--wait goes with --execute"),
        ("replay -g billing --all", 2, "--reason"),
        (f"discard -p 0 {reason}", 2, "--partition goes with --topic"),
        (f"prune {reason} --older-than 1w", 2, "is not a duration"),
        (f"prune {reason} --older-than 400000d", 2, "older_than is too long"),
        (f"prune {reason} --older-than 1d --state dead", 2, "dead"),
    ):
        assert told in run.fail(code, "dead-letters", *line.split())
    assert store.letter_counts("billing") == {"dead": 3}


@pytest.mark.behaviour("DLQ-19", "OPS-24")
def test_letters_that_no_job_will_replay_are_reported_as_such(run: Run, store: OffsetStore, claim: Claim) -> None:
    with transaction(store.database, name="test") as session:
        session.write_run("billing", claim.token, RunStatus(replays_letters=False), None)
    by_no_one = "to be replayed by no one: the job has no dead_letters=."
    assert run.lines(*REQUEST)[-1] == f"Requested letters are {by_no_one}"
    assert f"3 dead letters, 1 {by_no_one}" in run.lines(*STATUS)
    assert run.json(*STATUS)["dead_letters"] == {"dead": 2, "requested": 1, "job_replays": False}


@pytest.mark.behaviour("OPS-24")
def test_requested_letters_of_a_topic_that_the_job_no_longer_reads_are_reported_as_such(
    run: Run, store: OffsetStore
) -> None:
    """By the command that requests them, by status, and by the check of the group's page."""
    claim = store.claim("billing", StaticBroker.with_topics({"refunds": 1}), mirror_every=None)
    with transaction(store.database, name="test") as session:
        session.write_run("billing", claim.token, RunStatus(replays_letters=True), None)
    told = "to be replayed by the job, but for 1 letter of payments-0, which it does not read."
    assert run.lines(*REQUEST)[-1] == f"Requested letters are {told}"
    assert f"3 dead letters, 1 {told}" in run.lines(*STATUS)
    lag = store.lag(["billing"], StaticBroker.with_topics({"payments": 2, "refunds": 1}, end=10))
    checks = check_group(lag.groups["billing"], store.runs("billing")[-1])
    [found] = [one for one in checks if one.name == "dead letters"]
    assert (found.verdict, found.text) == ("attention", f"2 dead letters wait for a decision, 1 {told}")


@pytest.mark.behaviour("DLQ-7")
@pytest.mark.parametrize(
    ("refused", "lines"),
    [
        ([], ["2 dead letters replayed."]),
        ([P1], ["1 dead letter failed again: see `offsetstore dead-letters show`.", "1 dead letter replayed."]),
    ],
)
def test_a_replay_waits_for_its_outcome_if_it_is_to(
    run: Run,
    store: OffsetStore,
    monkeypatch: pytest.MonkeyPatch,
    refused: list[TopicPartition],
    lines: list[str],
) -> None:
    def job(_: float) -> None:
        """What the job does while the command sleeps: one letter at each look."""
        letter = store.letters("billing", state="requested").letters[0]
        with transaction(store.database, name="job") as session:
            if letter.topic_partition in refused:
                session.return_letters("billing", {letter.key: FailedReplay(REFUSED)}, actor="job")
            else:
                session.mark_replayed("billing", [letter.key], actor="job")

    monkeypatch.setattr("offsetstore.operations.letters.time", time_with(job))
    result = run(*REQUEST, "payments:1:2", "--wait")
    assert result.exit_code == (1 if refused else 0)
    assert sorted(result.stdout.splitlines()[-len(lines) :]) == lines


@pytest.mark.behaviour("DLQ-7", "DLQ-19")
def test_what_is_requested_is_printed_though_nobody_does_it_or_what_comes_after_it_fails(
    run: Run, store: OffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = run(*REQUEST, "--wait", "--timeout", "0")
    assert (waited.exit_code, waited.stdout.splitlines()[-1]) == (1, "1 dead letter not replayed in 0 s.")
    found = json.loads(run(*REQUEST, "--wait", "--timeout", "0", "--format", "json").stdout)
    assert (found["executed"], found["outcome"]) == (True, {"requested": 1})
    assert run.json(*REQUEST)["outcome"] is None

    def fail(*_: object) -> NoReturn:
        raise StoreUnavailable("could not reach the database")

    with monkeypatch.context() as away:
        away.setattr(store, "group_state", fail)
        assert run.lines(*REQUEST) == ["letter", "payments:0:1", "1 dead letter requested.", REPLAYS]

    def rename(_: float) -> None:
        store.rename_group("billing", "invoicing", reason="ticket 17")

    monkeypatch.setattr("offsetstore.operations.letters.time", time_with(rename))
    result = run(*REQUEST, "--wait", "--format", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["executed"], found["outcome"]) == (1, True, None)
    assert "was renamed" in result.stderr


def test_a_list_shows_open_letters_unless_it_is_told_another_state(run: Run, store: OffsetStore) -> None:
    store.discard("billing", LetterKey(P0, 1), reason="ticket 17")
    for options, expected in {
        (): ["payments:1:2", "payments:0:3"],
        ("--state", "discarded"): ["payments:0:1"],
        ("--state", "all"): ["payments:1:2", "payments:0:3", "payments:0:1"],
        ("--constraint", ""): ["payments:1:2"],
        ("-t", "payments", "-p", "0"): ["payments:0:3"],
    }.items():
        assert [line.split()[1] for line in run.lines(*LIST, *options)[1:]] == expected
