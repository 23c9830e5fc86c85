"""One vocabulary of states: each place that names states uses the words of this table, and all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, get_args

import click
import pytest
from click.testing import CliRunner

from offsetstore.cli import groups, health
from offsetstore.cli.commands import COMMANDS, cli
from offsetstore.monitoring import exporter
from offsetstore.monitoring.health import Code
from offsetstore.operations import group_checks, group_status
from offsetstore.postgres import schema
from offsetstore.protocol import letters, outbox, runs

pytestmark = pytest.mark.behaviour("DX-4")

DOCS: Final = Path(__file__).parents[2] / "docs"
DASHBOARD: Final = Path(exporter.__file__).parent / "dashboard"

STATES: Final = {
    "group": {"live", "paused", "stalled", "silent", "ended", "failed", "fenced"},
    "run": {"live", "silent", "ended", "failed", "fenced"},
    "member": {"live", "silent"},
    "phase": {"starting", "idle", "batch", "paused", "failed"},
    "relay": {"live", "stalled", "silent", "ended", "failed", "fenced", "unknown"},
    "letter": {"dead", "requested", "replayed", "discarded", "superseded"},
    "open letter": {"dead", "requested"},
    "settled letter": {"replayed", "discarded", "superseded"},
    "contents of a letter": {"kept", "left out", "erased"},
    "partition": {"pinned", "contested", "suspect"},
    "database": {"home", "moved", "unknown"},
    "problem": {
        "no-live-job",
        "starts-fail",
        "no-live-relay",
        "lag-too-high",
        "lag-unknown",
        "log-lost-records",
        "partition-stands",
    },
    "health": {
        "claim-lost",
        "query-ended",
        "batch-too-long",
        "polling-stalled",
        "jvm-gone",
        "memory",
        "database-unreachable",
        "kafka-unreachable",
        "starting",
        "paused",
        "partition-held",
    },
}
# The one word that is not the state's: a column of the tables, whose values earlier releases write and read.
ENDINGS: Final = {"closed": "ended", "failed": "failed", "fenced": "fenced"}


def help_of(*command: str) -> str:
    """The help, in one line."""
    return " ".join(CliRunner().invoke(cli, [*command, "--help"]).output.split())


def in_help(pattern: str, *command: str) -> Callable[[], set[str]]:
    """The words of the list in a command's help, whose place the pattern tells."""

    def find() -> set[str]:
        found = re.search(pattern, help_of(*command))
        assert found, (command, pattern)
        return set(re.split(r", or |, | or ", found[1]))

    return find


def choices(option: str, *command: str) -> Callable[[], set[str]]:
    def find() -> set[str]:
        name, sub = command
        group = COMMANDS[name].load()
        assert isinstance(group, click.Group)
        [found] = [one for one in group.commands[sub].params if one.name == option]
        assert isinstance(found.type, click.Choice)
        return {*found.type.choices} - {"all"}

    return find


def constraint(table: Any, name: str) -> Callable[[], set[str]]:
    def find() -> set[str]:
        [found] = [str(one.sqltext) for one in table.constraints if one.name == name]
        return {*re.findall(r"'([^']+)'", found)}

    return find


def of_metric(gauge: exporter.Gauge) -> Callable[[], set[str]]:
    def find() -> set[str]:
        _, _, words = gauge.what.partition("state: ")
        return set(re.split(r", or |, | or ", words.removesuffix(".").removesuffix(", or none if rows wait")))

    return find


def in_file(path: Path, pattern: str) -> Callable[[], set[str]]:
    return lambda: {*re.findall(pattern, path.read_text(encoding="utf-8").partition("endmacro")[0])}


PLACES: Final[tuple[tuple[str, str, Callable[[], Collection[str]]], ...]] = (
    ("group", "Python", lambda: get_args(group_status.State)),
    ("group", "what each means", lambda: group_status.STATES),
    ("group", "offsetstore_group_state", of_metric(exporter.STATE)),
    ("group", "JSON of status", in_help(r" group state ([^.;(]+?) owner name,", "status")),
    ("group", "JSON of lag", in_help(r"group, state \(([^)]+)\)", "lag")),
    (
        "group",
        "help of groups list",
        lambda: {*re.findall(r'"(\w+)"', help_of("groups", "list"))} - {"changed", "epoch", "letters"} | {"stalled"},
    ),
    ("group", "dashboard", in_file(DASHBOARD / "templates" / "macros.html", r'"(\w+)": "[■✕○⇥✓Ⅱ●]"')),
    ("group", "style sheet", in_file(DASHBOARD / "static" / "style.css", r"\.state\.(\w+)")),
    ("run", "Python", lambda: get_args(runs.RunState)),
    ("run", "checks", lambda: group_checks._ENDED),
    ("run", "help of runs", lambda: {*re.findall(r"^ {4}(\w+) +\S", _states_of_runs(), re.MULTILINE)}),
    ("run", "JSON of status", in_help(r"live, state of its job \(([^)]+)\)", "status")),
    ("run", "endings", lambda: {*ENDINGS.values(), "live", "silent"}),
    ("member", "JSON of status", in_help(r"live, state \(([^)]+)\), partitions", "status")),
    ("phase", "Python", lambda: get_args(runs.Phase)),
    ("phase", "JSON of runs", in_help(r"phase \(([^)]+)\)", "runs")),
    ("relay", "Python", lambda: get_args(outbox.RelayState)),
    ("relay", "in words", lambda: group_status._RELAYS),
    ("relay", "offsetstore_relay_state", of_metric(exporter.RELAY)),
    ("relay", "JSON of status", in_help(r"of the outbox: state \(([^:)]+)", "status")),
    ("letter", "Python", lambda: get_args(letters.LetterState)),
    ("letter", "table", constraint(schema.dead_letters, "dead_letters_state_check")),
    ("letter", "dead-letters list", choices("states", "dead-letters", "list")),
    ("letter", "dead-letters export", choices("states", "dead-letters", "export")),
    ("open letter", "Python", lambda: letters.OPEN),
    ("open letter", "JSON of status", in_help(r"dead_letters ([^:]+): how many there are", "status")),
    ("settled letter", "Python", lambda: letters.FINAL),
    ("settled letter", "dead-letters prune", choices("states", "dead-letters", "prune")),
    ("contents of a letter", "Python", lambda: get_args(letters.PayloadState)),
    ("contents of a letter", "table", constraint(schema.dead_letters, "dead_letters_payload_check")),
    ("partition", "help of status", lambda: {*re.findall(r'marked "(\w+)"', help_of("status"))}),
    (
        "partition",
        "keys of status",
        lambda: {*re.findall(r"(\w+)=stored\.\1 ", f"{groups._STATUS_KEYS} ")} - {"updated_at"},
    ),
    ("database", "JSON of status", lambda: {*re.findall(r'"(home|moved|unknown)"', help_of("status"))}),
    ("problem", "Python", lambda: get_args(group_status.Problem)),
    ("problem", "in words", lambda: health._PROBLEMS),
    ("problem", "JSON of health", in_help(r" problems (\S.*?) \(only if a broker was asked\)", "health")),
    ("health", "Python", lambda: {code.value for code in Code}),
    ("health", "JSON of health", in_help(r" codes (\S.*?); see the page", "health")),
)


def _states_of_runs() -> str:
    return CliRunner().invoke(cli, ["runs", "--help"]).output.partition("States:\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize(
    ("of", "find"), [(of, find) for of, _, find in PLACES], ids=[f"{p[0]}: {p[1]}" for p in PLACES]
)
def test_each_place_has_the_words_of_the_table(of: str, find: Callable[[], Collection[str]]) -> None:
    assert {*find()} == STATES[of]


@pytest.mark.parametrize(
    "table", [schema.job_runs, schema.member_runs, schema.relay_runs], ids=lambda table: table.name
)
def test_the_endings_that_the_tables_have_are_states_of_a_run(table: Any) -> None:
    assert constraint(table, f"{table.name}_ending_check")() == ENDINGS.keys() == {*get_args(runs.Ending)}
    assert {ending: runs.run_state(ending, None) for ending in get_args(runs.Ending)} == ENDINGS


def lists(page: str) -> Iterator[set[str]]:
    """The lists of words in code type on a page: in a sentence, or in the first column of a table."""
    word = r"`[a-z]+(?: out)?`(?: \([^)]*\))?"
    for found in re.findall(rf"{word}(?:(?:,| or|, or| and)\s+{word})+", page):
        yield {*re.findall(r"`([a-z ]+)`", found)}
    for is_row, lines in groupby(page.splitlines(), key=lambda line: bool(re.match(r"\| `[a-z]+` \|", line))):
        if is_row:
            yield {line.split("`")[1] for line in lines}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_a_list_of_states_on_a_page_has_words_of_one_subject(page: Path) -> None:
    told = {"group", "run", "phase", "relay", "letter"}
    for found in lists(page.read_text(encoding="utf-8")):
        subjects = [STATES[of] for of in told if len(found & STATES[of]) >= 3]
        # `none`: the exporter's word where there is no relay.
        assert not subjects or any(found - {"none"} <= words for words in subjects), found


@pytest.mark.parametrize("of", ["group", "run", "phase", "relay", "letter"])
def test_a_page_lists_all_states(of: str) -> None:
    pages = (page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    assert any(STATES[of] <= found for page in pages for found in lists(page)), of
