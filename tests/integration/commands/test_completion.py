"""What the shell is told, in the shell's own way of asking."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import Result

from offsetstore import OffsetStore
from offsetstore.cli import options
from offsetstore.cli.commands import COMMANDS, cli

_PROGRAM = """#!/bin/sh
exec {python} -c 'from offsetstore.cli.main import main; main()' "$@"
"""
_SHELL = """
set -eu
source <({program} completion bash)
COMP_WORDS=({program} {words}) COMP_CWORD={last}
_offsetstore_completion {program}
echo "${{COMPREPLY[@]}}"
"""


def completed(*words: str) -> list[str]:
    """What comes for the last of the words."""
    *before, last = words
    found = ShellComplete(cli, {}, "offsetstore", "_OFFSETSTORE_COMPLETE").get_completions(before, last)
    return [item.value for item in found]


def in_bash(directory: Path, *words: str, url: str) -> tuple[str, str]:
    """What bash completes, and what it shows besides."""
    program = directory / "offsetstore"
    program.write_text(_PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", _SHELL.format(program=program, words=" ".join(words), last=len(words))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "OFFSETSTORE_URL": url},
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.behaviour("OPS-1")
def test_commands_options_and_their_values_are_completed() -> None:
    assert completed("") == list(COMMANDS)
    assert completed("re") == ["resolve", "reset", "resume", "relay"]
    assert completed("--v") == ["--version"]
    assert completed("groups", "de") == ["delete"]
    assert completed("reset", "--to-e") == ["--to-earliest"]
    assert completed("reset", "--format", "") == ["table", "json", "csv"]


@pytest.fixture
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell waits for two seconds, in which a busy machine may not have asked yet."""
    monkeypatch.setattr(options, "_COMPLETION_SECONDS", 60.0)


@pytest.mark.usefixtures("_patience")
@pytest.mark.behaviour("OPS-1")
@pytest.mark.parametrize("command", [("status", "-g"), ("groups", "delete", "--group"), ("reset", "--to-latest", "-g")])
def test_the_names_of_groups_are_completed(
    run: Callable[..., Result], store: OffsetStore, command: tuple[str, ...]
) -> None:
    for name in ("billing", "audit", "billing-v2", "bill it", "bill\nit"):
        store.claim(name, topics=["payments"]).close()
    assert completed(*command, "bil") == ["billing", "billing-v2"]
    assert completed(*command, "") == ["audit", "billing", "billing-v2"]


@pytest.mark.usefixtures("_patience")
@pytest.mark.behaviour("OPS-1")
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


@pytest.mark.behaviour("OPS-1")
def test_bash_completes_with_the_script_and_does_not_wait_for_a_database_that_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        assert in_bash(tmp_path, "status", "-g", "b", url=f"postgresql://127.0.0.1:{port}/sales") == ("", "")
        assert time.monotonic() - began < 30
    assert in_bash(tmp_path, "dead-letters", "re", url="no url") == ("replay", "")


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o"), ("zsh", "#compdef offsetstore"), ("fish", "complete --no-files")]
)
def test_each_shell_has_a_script(run: Callable[..., Result], shell: str, word: str) -> None:
    result = run("completion", shell)
    assert (result.exit_code, word in result.stdout) == (0, True)
