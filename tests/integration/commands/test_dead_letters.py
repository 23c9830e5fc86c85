"""What ``dead-letters`` prints, and what it takes; what it does is the store's contract."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from click.testing import Result

from offsetstore import Claim, LetterError, LetterKey, OffsetRange, OffsetStore, TopicPartition
from offsetstore.cli.commands import cli
from offsetstore.errors import StoreUnavailable
from offsetstore.operations.group_checks import check_group
from offsetstore.protocol.letters import NewLetter, Payload, digest
from offsetstore.protocol.runs import RunStatus
from offsetstore.protocol.stored_letters import FailedReplay
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker
from tests.support.waiting import time_with

P0, P1 = (TopicPartition("payments", number) for number in range(2))
REASON = ("--reason", "ticket 17")
REFUSED = LetterError("RowsRefused", "refused:\ntwo lines", "23514", "public.results", "positive")
REPLAYS = "The running job replays them within seconds, if it has dead_letters=; what fails again is dead again."
TEXT = Payload("schlüssel".encode(), b'{"amount": -1}\x1b[31m', (("trace", b"\xff"), ("note", None)), 1700000000000, 0)
BINARY = Payload(None, b"\x00\xff", None, None, None)


@pytest.fixture(autouse=True)
def claim(store: OffsetStore, broker: StaticBroker) -> Claim:
    """A job of `billing` whose letters are offsets 1, 3 of partition 0 and 2 of partition 1."""
    claim = store.claim("billing", broker, mirror_every=None)
    ranges = {P0: OffsetRange(0, 5), P1: OffsetRange(0, 5)}
    with store.transaction(claim) as tx:
        tx.lock(ranges)
        tx.write_letters(
            [
                NewLetter(P0, 1, "refused", REFUSED, 3, digest(P0, TEXT.key), TEXT),
                NewLetter(P0, 3, "refused", REFUSED, 3, None, None),
                NewLetter(
                    P1, 2, "raised", LetterError("ValueError", "no", traceback="line 1\nline 2"), 1, None, BINARY
                ),
            ]
        )
        tx.advance(ranges)
    return claim


def words(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_list_has_a_line_for_each_letter_and_the_word_for_the_next_page(run: Callable[..., Result]) -> None:
    head, first, second, more = words(run("dead-letters", "list", "-g", "billing", "-n", "2"))
    assert head == ["at", "letter", "state", "cause", "error", "sqlstate", "constraint", "attempts", "times"]
    assert first[1:] == ["payments:1:2", "dead", "raised", "ValueError", "-", "-", "1", "1"]
    assert second[1:] == ["payments:0:3", "dead", "refused", "RowsRefused", "23514", "positive", "3", "1"]
    assert more[:-1] == ["There", "are", "more:", "--after"]

    _, last = words(run("dead-letters", "list", "-g", "billing", "-n", "2", "--after", more[-1]))
    assert last[1] == "payments:0:1"


def test_a_list_as_json_has_what_the_help_says(run: Callable[..., Result]) -> None:
    found = document(run("dead-letters", "list", "-g", "billing", "--cause", "raised", "--format", "json"))
    [letter] = found["letters"]
    assert (found["group"], found["next"]) == ("billing", None)
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("payments", 1, 2)
    assert (letter["error_class"], letter["payload"], letter["state"]) == ("ValueError", "kept", "dead")
    assert not {"key", "value", "headers", "error_text", "traceback"} & letter.keys()
    told = " ".join(cli.get_command(None, "dead-letters").commands["list"].help.split())  # type: ignore[union-attr, arg-type]
    assert [key for key in letter if key not in told] == []


def test_errors_have_a_line_each_with_how_many_letters_and_an_example(run: Callable[..., Result]) -> None:
    _, first, second = words(run("dead-letters", "list", "-g", "billing", "--by", "error"))
    assert (first[:7], first[-1]) == (
        ["2", "refused", "RowsRefused", "23514", "public.results", "positive", "-"],
        "payments:0:3",
    )
    assert second[:3] == ["1", "raised", "ValueError"]
    found = document(run("dead-letters", "list", "-g", "billing", "--by", "error", "--format", "json"))
    assert [error["letters"] for error in found["errors"]] == [2, 1]
    assert found["errors"][1]["example"] == {
        "topic": "payments",
        "partition": 1,
        "offset": 2,
        "topic_id": "payments-id",
    }


def test_a_letter_is_shown_as_text_where_it_is_utf_8_and_without_control_characters(run: Callable[..., Result]) -> None:
    shown = run("dead-letters", "show", "-g", "billing", "payments:0:1").stdout
    assert shown.startswith("payments:0:1 of topic payments-id: dead, refused\n")
    for line in (
        "Error:      RowsRefused (SQLSTATE 23514, table public.results, constraint positive)",
        "            refused:",
        "            two lines",
        "Timestamp:  2023-11-14T22:13:20.000+00:00 (CreateTime)",
        "Key:        schlüssel",
        'Value:      {"amount": -1}\\x1b[31m',
        "  trace: base64 /w==",
        "  note: none",
    ):
        assert line in shown.splitlines()
    shown = run("dead-letters", "show", "-g", "billing", "payments:1:2").stdout.splitlines()
    assert shown[-3:] == ["Traceback:", "  line 1", "  line 2"]
    assert {"Key:        none", "Value:      base64 AP8=", "Headers:    not read"} <= set(shown)
    assert "Record:     left out" in run("dead-letters", "show", "-g", "billing", "payments:0:3").stdout


def test_an_export_is_one_line_for_each_letter_with_all_bytes(run: Callable[..., Result]) -> None:
    result = run("dead-letters", "export", "-g", "billing")
    newest, middle, oldest = map(json.loads, result.stdout.splitlines())
    assert base64.b64decode(oldest["key"]) == TEXT.key
    assert base64.b64decode(oldest["value"]) == TEXT.value
    assert oldest["headers"] == [["trace", "/w=="], ["note", None]]
    assert (middle["key"], middle["payload"]) == (None, "left out")
    assert (newest["key"], newest["value"], newest["headers"]) == (None, "AP8=", None)
    assert (newest["traceback"], newest["error_text"]) == ("line 1\nline 2", "no")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["list", "-g", "nobody"], 1, "no group 'nobody'"),
        (["list", "-g", "billing", "--after", "x"], 2, "after is not a valid cursor"),
        (["list", "-g", "billing", "--by", "error", "--cause", "raised"], 2, "--by error goes with"),
        (["export", "-g", "nobody"], 1, "no group 'nobody'"),
        (["show", "-g", "billing", "payments:0:2"], 1, "no dead letter of offset 2"),
        (["show", "-g", "billing", "payments-0-2"], 2, "is not TOPIC:PARTITION:OFFSET"),
        (["show", "-g", "billing", "payments:0:-2"], 2, "is not TOPIC:PARTITION:OFFSET"),
        (["replay", "-g", "billing", *REASON], 2, "Name letters, or a filter"),
        (["replay", "-g", "billing", *REASON, "--all", "payments:0:1"], 2, "Name letters, or a filter"),
        (["replay", "-g", "billing", *REASON, "payments:0:3"], 1, "holds no record"),
        (["replay", "-g", "billing", "--all"], 2, "--reason"),
        (["discard", "-p", "0", "-g", "billing", *REASON], 2, "--partition goes with --topic"),
        (["list", "-p", "0", "-g", "billing"], 2, "--partition goes with --topic"),
        (["replay", "-g", "billing", *REASON, "--all", "--wait"], 2, "--wait goes with --execute"),
        (["prune", "-g", "billing", *REASON, "--older-than", "1w"], 2, "is not a number of days"),
        (["prune", "-g", "billing", *REASON, "--older-than", "1d", "--state", "dead"], 2, "dead"),
    ],
)
def test_what_cant_be_meant_is_refused(
    run: Callable[..., Result], store: OffsetStore, arguments: list[str], code: int, told: str
) -> None:
    result = run("dead-letters", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert told in result.stderr
    assert store.letter_counts("billing") == {"dead": 3}


@pytest.mark.behaviour("DLQ-19", "OPS-24")
def test_letters_that_no_job_will_replay_are_reported_as_such(
    run: Callable[..., Result], store: OffsetStore, claim: Claim
) -> None:
    with transaction(store.database, name="test") as session:
        session.write_run("billing", claim.token, RunStatus(replays_letters=False), None)
    asked = run("dead-letters", "replay", "-g", "billing", *REASON, "payments:0:1", "--execute").stdout.splitlines()
    assert asked[-1] == "Requested letters are to be replayed by no one: the job has no dead_letters=."
    told = "3 dead letters, 1 to be replayed by no one: the job has no dead_letters=."
    assert told in run("status", "-g", "billing").stdout.splitlines()
    found = document(run("status", "-g", "billing", "--format", "json"))
    assert found["dead_letters"] == {"dead": 2, "requested": 1, "job_replays": False}


@pytest.mark.behaviour("OPS-24")
def test_requested_letters_of_a_topic_that_the_job_no_longer_reads_are_reported_as_such(
    run: Callable[..., Result], store: OffsetStore
) -> None:
    """By the command that requests them, by status, and by the check of the group's page."""
    claim = store.claim("billing", StaticBroker.with_topics({"refunds": 1}), mirror_every=None)
    with transaction(store.database, name="test") as session:
        session.write_run("billing", claim.token, RunStatus(replays_letters=True), None)
    told = "to be replayed by the job, but for 1 letter of payments-0, which it does not read."
    asked = run("dead-letters", "replay", "-g", "billing", *REASON, "payments:0:1", "--execute").stdout.splitlines()
    assert asked[-1] == f"Requested letters are {told}"
    assert f"3 dead letters, 1 {told}" in run("status", "-g", "billing").stdout.splitlines()
    lag = store.lag(["billing"], StaticBroker.with_topics({"payments": 2, "refunds": 1}, end=10))
    [found] = [one for one in check_group("billing", lag, store.runs("billing")[-1]) if one.name == "dead letters"]
    assert (found.verdict, found.text) == ("attention", f"2 dead letters wait for a decision, 1 {told}")


@pytest.mark.behaviour("DLQ-7")
def test_what_is_requested_is_printed_though_the_database_is_gone_right_after(
    run: Callable[..., Result], store: OffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise StoreUnavailable("could not reach the database")

    monkeypatch.setattr(store, "group_state", fail)
    result = run("dead-letters", "replay", "-g", "billing", *REASON, "payments:0:1", "--execute")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["letter", "payments:0:1", "1 dead letter requested.", REPLAYS]


@pytest.mark.behaviour("DLQ-7")
@pytest.mark.parametrize(
    ("refused", "lines"),
    [
        ([], ["2 dead letters replayed."]),
        ([P1], ["1 dead letter replayed.", "1 dead letter failed again: see `offsetstore dead-letters show`."]),
        ([P0, P1], ["2 dead letters failed again: see `offsetstore dead-letters show`."]),
    ],
)
def test_a_replay_waits_for_its_outcome_if_it_is_to(
    run: Callable[..., Result],
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
    result = run(
        "dead-letters", "replay", "-g", "billing", *REASON, "payments:0:1", "payments:1:2", "--execute", "--wait"
    )
    assert result.exit_code == (1 if refused else 0)
    assert sorted(result.stdout.splitlines()[-len(lines) :]) == sorted(lines)


@pytest.mark.behaviour("DLQ-19")
def test_a_replay_that_nobody_does_ends_the_wait_with_what_is_left(run: Callable[..., Result]) -> None:
    replay = ("dead-letters", "replay", "-g", "billing", *REASON, "payments:0:1", "--execute")
    waited = run(*replay, "--wait", "--timeout", "0")
    assert (waited.exit_code, waited.stdout.splitlines()[-1]) == (1, "1 dead letter not replayed in 0 s.")
    found: dict[str, Any] = json.loads(run(*replay, "--wait", "--timeout", "0", "--format", "json").stdout)
    assert (found["executed"], found["outcome"]) == (True, {"requested": 1})
    assert document(run(*replay, "--format", "json"))["outcome"] is None


def test_a_wait_that_fails_prints_what_was_requested_all_the_same(
    run: Callable[..., Result], store: OffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(_: float) -> None:
        store.rename_group("billing", "invoicing", reason="ticket 17")

    monkeypatch.setattr("offsetstore.operations.letters.time", time_with(rename))
    replay = ("dead-letters", "replay", "-g", "billing", *REASON, "payments:0:1", "--execute", "--wait")
    result = run(*replay, "--format", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["executed"], found["outcome"]) == (1, True, None)
    assert "was renamed" in result.stderr


def test_a_list_shows_open_letters_unless_it_is_told_another_state(
    run: Callable[..., Result], store: OffsetStore
) -> None:
    store.discard("billing", LetterKey(P0, 1), reason="ticket 17")

    def listed(*options: str) -> list[str]:
        return [line[1] for line in words(run("dead-letters", "list", "-g", "billing", *options))[1:]]

    assert listed() == ["payments:1:2", "payments:0:3"]
    assert listed("--state", "discarded") == ["payments:0:1"]
    assert listed("--state", "all") == ["payments:1:2", "payments:0:3", "payments:0:1"]
    assert listed("--constraint", "") == ["payments:1:2"]
    assert listed("-t", "payments", "-p", "0") == ["payments:0:3"]
