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
        "  next step: Run `pip install 'offsetstore[cli]'`.\n"
    )


def test_without_rich_a_terminal_is_told_what_to_install() -> None:
    done = _main(
        "sys.modules['rich'] = sys.modules['rich.table'] = None\nsys.stderr.isatty = lambda: True",
        "status",
        "-g",
        "billing",
        "--url",
        "mysql://x",
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
