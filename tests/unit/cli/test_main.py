from __future__ import annotations

import subprocess
import sys


def _main(before: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the entry point in a process of its own, after some lines of Python."""
    code = f"import sys\n{before}\nfrom offsetstore.cli.main import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=180, check=False
    )


def test_without_click_the_command_says_what_to_install() -> None:
    done = _main("sys.modules['click'] = None", "--help")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "Error: the command line needs a package that is not installed\n"
        "  found:     no click\n"
        "  next step: Run `pip install 'offsetstore[cli]'`; in a checkout, with '.[cli]' for 'offsetstore[cli]'.\n"
    )


def test_without_rich_a_terminal_is_told_what_to_install() -> None:
    done = _main(
        "import click\n"
        "import offsetstore.cli.commands as commands\n"
        "from offsetstore.cli.output import Table, print_text\n"
        "sys.modules['rich'] = sys.modules['rich.console'] = None\n"
        "sys.stdout.isatty = lambda: True\n"
        "shown = click.Command('status', callback=lambda: print_text(Table(['group'], [])))\n"
        "commands.LazyCommand.load = lambda self: shown",
        "status",
    )
    assert done.returncode == 2
    assert "  found:     no rich\n" in done.stderr


def test_a_bug_has_a_code_of_its_own_and_its_traceback() -> None:
    done = _main(
        "import offsetstore.cli.commands as commands\n"
        "def broken(self): raise ZeroDivisionError('a bug')\n"
        "commands.LazyCommand.load = broken",
        "status",
    )
    assert done.returncode == 70
    assert "ZeroDivisionError: a bug" in done.stderr


def test_without_a_command_the_help_is_shown_and_nothing_done() -> None:
    done = _main("")
    assert done.returncode == 2
    assert "Commands:" in done.stderr
