"""What browsers load: the library that is vendored is the one that was looked at, and our own script stays small."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

STATIC = Path(__file__).parents[3] / "offsetstore" / "monitoring" / "dashboard" / "static"


def test_the_vendored_files_are_those_whose_hashes_are_written_down() -> None:
    listed = dict(
        re.findall(r"^\| (\S+) \| ([0-9a-f]{64}) \|$", (STATIC / "uplot/README.md").read_text(), re.MULTILINE)
    )
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (STATIC / "uplot").iterdir()
        if file.name != "README.md"
    }
    assert listed == found


def test_the_script_that_refreshes_pages_can_be_read_at_a_sitting() -> None:
    assert len((STATIC / "refresh.js").read_text().splitlines()) <= 120
