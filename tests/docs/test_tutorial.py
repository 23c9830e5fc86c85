"""docs/tutorial.md as a reader does it: each block is pasted into one shell, and prints what is shown below it.

With another environment, such as a new one with the wheel:
``OFFSETSTORE_TEST_BIN=/path/to/venv/bin .venv/bin/python -m pytest -p no:xdist tests/docs/test_tutorial.py``.
"""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from offsetstore.local import stack
from tests.support.shell import ROOT, Shell
from tests.support.waiting import wait_until

PAGE: Final = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS: Final = re.findall(
    r"^```bash\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", PAGE, flags=re.DOTALL | re.MULTILINE
)  # each with what is shown below it
PORT: Final = "9466"  # the dashboard's

# What differs from run to run, both in what the page shows and in what is printed.
DIFFERS: Final = (
    (r"^(Kafka|Spark)[^\n]*: (looking up|archiving|\d+ of|\d+ jars)[^\n]*\n", ""),  # only a first start shows these
    (r"^[^\n]* Killed +offsetstore [^\n]*\n", ""),  # bash's own words
    (r"\bpid \d+", "pid PID"),
    (r"\b127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    (r"^  /\S+$", "  DIRECTORY"),
    (r"\S+@\S+:\d+, claimed", "USER@HOST:PID, claimed"),
    (r"\b\d+s ago|\b\d+s$", "AGE"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*\+00:00", "TIME"),
    (r" of topic \S+:", " of topic ID:"),
    (r"^(payments-\d +\d+) +\d+", r"\1 COMMITTED"),  # the copy in Kafka may be older
    (r" +", " "),  # a column is as wide as what is in it
)


def alike(text: str) -> str:
    for pattern, instead in DIFFERS:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setattr(stack, "_home", lambda: tmp_path / ".stack")
    with Shell(tmp_path) as shell:
        yield shell
    stack.down(delete_data=True)


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def fetched(address: str) -> str:
    """What is served at the address, once it is."""

    def fetch() -> str:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 - the page's own
                return answer.read().decode()
        except OSError:
            return ""

    return wait_until(fetch)


def without_rows(printed: str) -> str:
    """Check that at the kill some rows were written, not all, and none twice; return the rest of what was printed."""
    lines = re.compile(r"^(\d+) rows, (\d+) different ids.*\n", re.MULTILINE)
    before, after = ((int(rows), int(ids)) for rows, ids in lines.findall(printed))
    assert 1000 < before[0] <= after[0] < 51000, printed
    assert all(rows == ids for rows, ids in (before, after)), printed
    return lines.sub("", printed)


@pytest.mark.behaviour("DX-2")
def test_each_block_prints_what_the_page_shows(shell: Shell) -> None:
    port = free_port()
    (install, _), *steps, (clean_up, stopped) = BLOCKS
    assert install.splitlines() == [
        "mkdir payments-tutorial && cd payments-tutorial",
        "python3 -m venv .venv && . .venv/bin/activate",
        "pip install 'offsetstore[local,consumer,dashboard]'",
    ]
    shell.paste("mkdir payments-tutorial && cd payments-tutorial\ndeactivate() { :; }")  # it is a venv's

    for block, shown in steps:
        printed = shell.paste(block.replace(PORT, port))
        differs = without_rows if "kill -9" in block else str
        assert alike(differs(printed)) == alike(differs(shown)), block
        if PORT in block:
            assert f"Open http://127.0.0.1:{PORT}/ in" in PAGE
            groups = fetched(f"http://127.0.0.1:{port}/")
            assert "billing" in groups
            assert "live" in groups

    assert shell.paste(clean_up) == stopped
    assert not (shell.directory / "payments-tutorial").exists()
