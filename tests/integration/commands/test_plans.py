"""A plan's digest: each command prints it, and `--if-plan` does what the plan has shown, or nothing."""

from __future__ import annotations

import json
import re

import pytest

from offsetstore import LetterError, LetterKey, OffsetRange, OffsetStore, TopicPartition
from offsetstore.protocol.letters import NewLetter, Payload
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker
from tests.integration.commands.conftest import Run

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
        tx.letters.write([NewLetter(P0, one, "raised", LetterError("E", ""), 1, None, payload) for one in bad])
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
def test_another_plan_is_printed_and_fails_like_a_check(run: Run, store: OffsetStore, name: str) -> None:
    """A plan ends with the options that do it, or nothing."""
    *_, nothing, last = run.lines(*plan_of(name))
    [digest] = re.findall(r"^Plan ([0-9a-f]{16}): ", last)
    assert nothing.startswith("Nothing was ")
    change(store)
    before = decisions(store)
    refused = run(*done_of(name, digest))
    assert refused.exit_code == 1
    assert refused.stdout == run(*plan_of(name)).stdout
    [(new, options)] = re.findall(r"^Plan (\w+): (.*) does this, or nothing\.$", refused.stdout, re.MULTILINE)
    assert f"{options} ".startswith("--execute ") is (name not in AT_ONCE)
    assert refused.stderr.splitlines() == [
        "Error: the plan has changed since it was shown, or the digest is another command's; nothing was done",
        f"  found:     {new}",
        f"  expected:  {digest}",
        "  next step: Look at the new plan, printed above; to carry it out, pass its digest.",
    ]
    as_json = run(*done_of(name, digest), "--format", "json")
    document = json.loads(as_json.stdout)
    assert (as_json.exit_code, document["plan"], document["executed"]) == (1, new, False)
    assert decisions(store) == before
    assert "Plan " not in "".join(run.lines(*arguments(name), *options.split()))
    assert len(decisions(store)) > len(before)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*arguments("reset"), "--if-plan", "0" * 16], "--if-plan goes with --execute: without it nothing is done."),
        ([*plan_of("pause"), "--if-plan", "0" * 16], "--if-plan does not go with --dry-run, which does nothing."),
        ([*done_of("reset", "0" * 16), "--format", "csv"], "--if-plan does not go with --format csv"),
        *(
            (
                done_of("discard", digest),
                f"Error: not the digest of a plan; nothing was done found: {digest!r} expected:",
            )
            for digest in ("", "0000", "0" * 17, "G" * 16)
        ),
    ],
    ids=["reset", "pause", "csv", "empty", "short", "long", "letters"],
)
def test_a_condition_that_cant_be_meant_is_wrong_usage(
    run: Run, store: OffsetStore, words: list[str], told: str
) -> None:
    before = decisions(store)
    assert told in run.fail(2, *words)
    assert decisions(store) == before


@pytest.mark.parametrize("name", ["reset", "rename", "delete"])
def test_the_options_that_a_plan_of_a_live_group_names_carry_it_out(run: Run, store: OffsetStore, name: str) -> None:
    store.claim("billing", topics=["payments"], mirror_every=None)
    shown = run(*plan_of(name)).stdout
    assert "Add --execute" not in shown
    [options] = re.findall(r"^Plan \w+: (.*) does this", shown, re.MULTILINE)
    run.lines(*arguments(name), *options.split())
    assert len(store.history("billing", events=[name])) > 0


def test_a_delete_shows_the_evidence_that_goes_with_the_group(run: Run, store: OffsetStore) -> None:
    what = "the log ended at 4, below the stored offset 5"
    with transaction(store.database, name="someone-else") as session:
        session.lock_partitions("billing", [P0])
        session.write_suspects("billing", store.offsets("billing")[P0].token, {P0: what})
    shown = run.json(*plan_of("delete"))
    assert shown["suspects"] == [{"topic": "payments", "partition": 0, "suspect": what}]
