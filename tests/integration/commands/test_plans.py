"""A plan's digest: each command prints it, and `--if-plan` does what the plan has shown, or nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from offsetstore import LetterError, LetterKey, OffsetRange, OffsetStore, TopicPartition
from offsetstore.operations.home import set_identity
from offsetstore.operations.people import people
from offsetstore.protocol.letters import NewLetter, Payload
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker

pytestmark = pytest.mark.behaviour("DLQ-18", "OPS-10", "OPS-21")

P0 = TopicPartition("payments", 0)
COMMANDS: dict[str, tuple[str, ...]] = {
    "reset": ("reset", "-t", "payments:0", "--shift-by", "-1"),
    "replay": ("dead-letters", "replay", "--all", "--force"),
    "discard": ("dead-letters", "discard", "--all"),
    "erase": ("dead-letters", "discard", "--all", "--erase"),
    "copy": ("groups", "copy", "--to", "invoicing"),
    "rename": ("groups", "rename", "--to", "invoicing"),
    "delete": ("groups", "delete", "--discard-letters"),
    "prune": ("dead-letters", "prune", "--older-than", "0m"),
    "pause": ("pause", "--until", "2090-01-01T00:00Z"),
    "resume": ("resume",),
    "new-id": ("store", "new-id"),
}
OF_STORE = ("new-id",)
AT_ONCE = ("pause", "resume")


@pytest.fixture(autouse=True)
def left(store: OffsetStore, broker: StaticBroker) -> None:
    """A paused group at 5 with two letters, and one that was given up, whose job has ended."""
    store.claim("billing", broker, mirror_every=None).close()
    advance(store, 0, 1, 3, 4)
    store.discard("billing", LetterKey(P0, 4), reason="a test")
    store.pause("billing", reason="a deploy")


def advance(store: OffsetStore, begin: int, *bad: int) -> None:
    """A job passes five records, some of them as letters, and ends."""
    payload = Payload(b"key", b"value", None, None, None)
    with store.claim("billing", topics=["payments"], mirror_every=None) as claim, store.transaction(claim) as tx:
        left = tx.lock({P0: OffsetRange(begin, begin + 5)})[P0].remaining
        tx.write_letters([NewLetter(P0, one, "raised", LetterError("E", ""), 1, None, payload) for one in bad])
        tx.advance({P0: left})


def change(store: OffsetStore) -> None:
    """Something of what each of the plans rests on."""
    advance(store, 5, 7, 8)
    store.discard("billing", LetterKey(P0, 8), reason="a test")
    store.pause("billing", reason="a restore runs")


def arguments(name: str) -> list[str]:
    return [*COMMANDS[name], *([] if name in OF_STORE else ["-g", "billing"]), "--reason", "ticket 17"]


def plan_of(name: str) -> list[str]:
    return [*arguments(name), *(["--dry-run"] if name in AT_ONCE else [])]


def done_of(name: str, digest: str) -> list[str]:
    return [*arguments(name), *([] if name in AT_ONCE else ["--execute"]), "--if-plan", digest]


def decisions(store: OffsetStore) -> list[str]:
    return [line.event for line in store.history("billing") if line.event not in {"claim", "adopt"}]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_plan_prints_its_digest_with_which_it_is_done_while_it_holds(
    run: Callable[..., Result], store: OffsetStore, name: str
) -> None:
    text = run(*plan_of(name))
    assert text.exit_code == 0, text.output
    *_, nothing, last = text.stdout.splitlines()
    assert nothing.startswith("Nothing was ")
    [(digest, options)] = re.findall(r"^Plan ([0-9a-f]{16}): (.*) does this, or nothing\.$", last)
    assert f"{options} ".startswith("--execute ") is (name not in AT_ONCE)
    document: dict[str, Any] = json.loads(run(*plan_of(name), "--format", "json").stdout)
    assert (document["plan"], document["executed"]) == (digest, False)
    before = decisions(store)

    done = run(*arguments(name), *options.split())
    assert done.exit_code == 0, done.output
    assert "Plan " not in done.stdout
    assert len(decisions(store)) > len(before)


@pytest.mark.parametrize("name", COMMANDS)
def test_another_plan_is_printed_and_fails_like_a_check(
    run: Callable[..., Result], store: OffsetStore, name: str
) -> None:
    digest = json.loads(run(*plan_of(name), "--format", "json").stdout)["plan"]
    change(store)
    before = decisions(store)
    refused = run(*done_of(name, digest))
    assert refused.exit_code == 1
    assert refused.stdout == run(*plan_of(name)).stdout
    [new] = re.findall(r"^Plan ([0-9a-f]{16}):", refused.stdout, re.MULTILINE)
    assert refused.stderr.splitlines() == [
        "Error: the plan has changed since it was shown, or the digest is another command's; nothing was done",
        f"  found:     {new}",
        f"  expected:  {digest}",
        "  next step: Look at the new plan, printed above; to carry it out, pass its digest.",
    ]
    as_json = run(*done_of(name, digest), "--format", "json")
    assert as_json.exit_code == 1
    assert (json.loads(as_json.stdout)["plan"], json.loads(as_json.stdout)["executed"]) == (new, False)
    assert decisions(store) == before
    assert run(*done_of(name, new)).exit_code == 0
    assert len(decisions(store)) > len(before)


@pytest.mark.parametrize("name", ["reset"])  # they share the option
def test_a_condition_without_execute_is_wrong_usage(run: Callable[..., Result], store: OffsetStore, name: str) -> None:
    before = decisions(store)
    refused = run(*arguments(name), "--if-plan", "0" * 16)
    assert refused.exit_code == 2
    assert "--if-plan goes with --execute: without it nothing is done." in refused.stderr
    assert decisions(store) == before


@pytest.mark.parametrize("name", ["pause"])
def test_a_condition_of_a_dry_run_is_wrong_usage(run: Callable[..., Result], name: str) -> None:
    refused = run(*plan_of(name), "--if-plan", "0" * 16)
    assert refused.exit_code == 2
    assert "--if-plan does not go with --dry-run, which does nothing." in refused.stderr


@pytest.mark.parametrize("digest", ["", "0000", "0" * 17, "G" * 16], ids=["empty variable", "short", "long", "letters"])
def test_what_is_no_digest_is_no_plan_that_has_changed(
    run: Callable[..., Result], store: OffsetStore, digest: str
) -> None:
    before = decisions(store)
    refused = run(*done_of("discard", digest))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        "Error: not the digest of a plan; nothing was done",
        f"  found:    {digest!r}",
        "  expected: 16 hexadecimal digits, as a plan shows them",
    ]
    assert decisions(store) == before


@pytest.mark.behaviour("START-27")
def test_a_store_that_was_moved_is_told_so_as_planned_and_one_at_home_has_nothing_to_do(
    run: Callable[..., Result], store: OffsetStore
) -> None:
    with transaction(store.database, name="test") as session:
        set_identity(people(session), session.identity().store_id, "elsewhere")
    moved = ("store", "moved", "--reason", "ticket 17")
    plan = run(*moved).stdout.splitlines()
    assert plan[0].startswith(f"Store {store.identity().store_id} would move from database elsewhere to this one, ")
    assert plan[0].endswith(", with 1 group.")
    assert plan[1] == "No job and no relay may run on the other database any more."
    [(digest, options)] = re.findall(r"^Plan (\w+): (.*) does this, or nothing\.$", plan[-1])
    assert run(*moved, "--execute", "--if-plan", "0" * 16).exit_code == 1
    document: dict[str, Any] = json.loads(run(*moved, "--format", "json").stdout)
    assert (document["plan"], document["executed"]) == (digest, False)
    assert document["groups"] == [{"group": "billing", "live": False}]
    assert "moved" not in decisions(store)

    assert run(*moved, *options.split()).stdout.splitlines()[-1] == "Start its jobs."
    assert decisions(store)[-1] == "moved"
    again = f"Store {store.identity().store_id} is at home in this database already; nothing was written.\n"
    assert run(*moved).stdout == run(*moved, "--execute").stdout == again
    assert decisions(store).count("moved") == 1


@pytest.mark.parametrize("name", ["reset", "rename", "delete"])
def test_the_options_that_a_plan_of_a_live_group_names_carry_it_out(
    run: Callable[..., Result], store: OffsetStore, name: str
) -> None:
    store.claim("billing", topics=["payments"], mirror_every=None)
    shown = run(*plan_of(name)).stdout
    assert "Add --execute" not in shown
    [options] = re.findall(r"^Plan \w+: (.*) does this", shown, re.MULTILINE)
    assert run(*arguments(name), *options.split()).exit_code == 0
    assert len(store.history("billing", events=[name])) > 0


def test_the_csv_which_shows_neither_digest_nor_losses_takes_no_condition(
    run: Callable[..., Result], store: OffsetStore
) -> None:
    refused = run(*done_of("reset", "0" * 16), "--format", "csv")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--if-plan does not go with --format csv" in refused.stderr
    assert store.offsets("billing")[P0].next_offset == 5
    assert store.letter("billing", *LetterKey(P0, 1)).state == "dead"


def test_a_delete_shows_the_evidence_that_goes_with_the_group(run: Callable[..., Result], store: OffsetStore) -> None:
    what = "the log ended at 4, below the stored offset 5"
    with transaction(store.database, name="someone-else") as session:
        session.lock_partitions("billing", [P0])
        session.write_suspects("billing", store.offsets("billing")[P0].token, {P0: what})
    shown = json.loads(run(*plan_of("delete"), "--format", "json").stdout)
    assert shown["suspects"] == [{"topic": "payments", "partition": 0, "suspect": what}]
