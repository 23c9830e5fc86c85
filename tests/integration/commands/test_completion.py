"""What the shell is told, in the shell's own way of asking."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from offsetstore import OffsetStore
from offsetstore.cli import options
from offsetstore.cli.commands import COMMANDS, cli
from tests.integration.commands.conftest import Run

pytestmark = pytest.mark.behaviour("OPS-1")

_PROGRAM = """#!/bin/sh
exec {python} -c 'from offsetstore.cli.main import main; main()' "$@"
"""
_SHELL = """
set -eu
source <({program} completion bash)
for words in "status -g b" "dead-letters re"; do
    COMP_WORDS=({program} $words)
    COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
    _offsetstore_completion {program}
    echo "${{COMPREPLY[@]}}"
done
"""


def completed(*words: str) -> list[str]:
    """What comes for the last of the words."""
    *before, last = words
    found = ShellComplete(cli, {}, "offsetstore", "_OFFSETSTORE_COMPLETE").get_completions(before, last)
    return [item.value for item in found]


def test_commands_options_and_their_values_are_completed_and_each_shell_has_a_script(run: Run) -> None:
    assert completed("") == list(COMMANDS)
    assert completed("re") == ["resolve", "reset", "resume", "relay"]
    assert completed("--v") == ["--version"]
    assert completed("groups", "de") == ["delete"]
    assert completed("reset", "--to-e") == ["--to-earliest"]
    assert completed("reset", "--format", "") == ["table", "json", "csv"]
    words = {"bash": "complete -o", "zsh": "#compdef offsetstore", "fish": "complete --no-files"}
    assert [shell for shell, word in words.items() if word not in "\n".join(run.lines("completion", shell))] == []


@pytest.fixture
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell waits for two seconds, in which a busy machine may not have asked yet."""
    monkeypatch.setattr(options, "_COMPLETION_SECONDS", 60.0)


@pytest.mark.usefixtures("_patience", "run")
def test_the_names_of_groups_are_completed(store: OffsetStore) -> None:
    for name in ("billing", "audit", "billing-v2", "bill it", "bill\nit"):
        store.claim(name, topics=["payments"]).close()
    for command in (("status", "-g"), ("groups", "delete", "--group"), ("reset", "--to-latest", "-g")):
        assert completed(*command, "bil") == ["billing", "billing-v2"]
        assert completed(*command, "") == ["audit", "billing", "billing-v2"]


@pytest.mark.usefixtures("_patience")
def test_the_database_is_the_one_that_the_line_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str | None, str | None]] = []

    def note(url: str | None, schema: str | None) -> None:
        asked.append((url, schema))
        raise ConnectionError

    monkeypatch.setattr(options, "open_store", note)
    monkeypatch.setenv("OFFSETSTORE_URL", "postgresql://there")
    assert completed("status", "--schema", "jobs", "-g", "") == []
    assert completed("status", "--url", "postgresql://here", "-g", "") == []
    assert asked == [("postgresql://there", "jobs"), ("postgresql://here", None)]


def test_bash_completes_with_the_script_and_does_not_wait_for_a_database_that_does_not_answer(tmp_path: Path) -> None:
    program = tmp_path / "offsetstore"
    program.write_text(_PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/sales"
        done = subprocess.run(
            ["bash", "-c", _SHELL.format(program=program)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={**os.environ, "OFFSETSTORE_URL": url},
        )
    assert (done.stdout.splitlines(), done.stderr) == (["", "replay"], "")
