from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest


def _main(before: str, *arguments: str, stdout: int | IO[bytes] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run the entry point in a process of its own, after some lines of Python."""
    code = f"import sys\n{before}\nfrom offsetstore.cli.main import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=180,
        check=False,
    )


def test_what_is_not_installed_and_a_bug_are_told_apart() -> None:
    load = "import click\nimport offsetstore.cli.commands as commands\n"
    without_rich = (
        f"{load}sys.modules['rich'] = None\n"
        "shown = click.Command('status', callback=lambda: __import__('rich'))\n"
        "commands.LazyCommand.load = lambda self: shown"
    )
    without_click = (
        "Error: the command line needs a package that is not installed\n"
        "  found:     no click\n"
        "  next step: Run `pip install 'offsetstore[cli]'`; in a checkout, with '.[cli]' for 'offsetstore[cli]'.\n"
    )
    broken = f"{load}def broken(self): raise ZeroDivisionError('a bug')\ncommands.LazyCommand.load = broken"
    for before, arguments, code, told in (
        ("sys.modules['click'] = None", "--help", 2, without_click),
        (without_rich, "status", 2, "  found:     no rich\n"),
        (broken, "status", 70, "ZeroDivisionError: a bug"),
    ):
        done = _main(before, arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert told in done.stderr


SHOWING = """
import click
import offsetstore.cli.commands as commands
from offsetstore.cli.asking import Decide, How
from offsetstore.cli.output import print_text
from offsetstore.cli.tables import Table
from offsetstore.operations.operation import Plan

def show(plan):
    print_text(Table(["partition"], [["\u0142od\u017a-0"]] * 5_000))
    print_text("Done.")
    sys.stderr.write("shown")

def decide(executed):
    how = How(reason="ticket 17", dry_run=not executed, if_plan=None)
    Decide(None, None, "text", how, False, False).carry_out(lambda: Plan(digest="1", executed=executed), show)

read = lambda: show(None)
commands.LazyCommand.load = lambda self: click.Command("x", callback=lambda: """


@pytest.mark.behaviour("OPS-1")
@pytest.mark.parametrize(
    ("does", "out", "code", "told"),
    [
        ("decide(True)", "unread", 0, "shown"),
        ("decide(False)", "unread", 141, ""),
        ("read()", "unread", 141, ""),
        (
            "decide(True)",
            "/dev/full",
            0,
            "It was done, but the answer can't be printed: No space left on device.\nshown",
        ),
    ],
)
def test_what_was_carried_out_ends_well_whether_or_not_its_answer_is_read(
    does: str, out: str, code: int, told: str
) -> None:
    """`reset --shift-by -100 --execute | head -1` would else be repeated by a script with pipefail."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as unread, Path("/dev/full").open("wb") as full:
        done = _main(f"{SHOWING}{does})", "status", stdout=unread if out == "unread" else full)
    assert (done.returncode, done.stderr) == (code, told)


@pytest.mark.behaviour("OPS-1")
def test_a_name_that_the_locale_can_not_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    done = _main(f"{SHOWING}decide(True))", "status")
    assert done.returncode == 0
    assert "\\u0142od\\u017a-0\n" in done.stdout
