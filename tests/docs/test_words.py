"""How much there is to read: what people wrote, without code and without what programs wrote."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
GENERATED: Final = {"behaviours.md", "cli.md", "compatibility.md", "faults.md", "types.md"}
LONGER: Final = {
    "architecture.md",  # read for an hour
    "glossary.md",  # looked up
    "metadata-uses.md",  # eight of them
    "performance.md",
    "runbook.md",  # a section for each alert
    "settings.md",  # looked up
}


def words(page: Path) -> int:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(
        r"<!--(?: written| generated| figures| measured).*?(?:<!-- end[^>]*-->|\Z)", "", text, flags=re.DOTALL
    )
    return sum(any(map(str.isalnum, word)) for word in text.split())  # a table's bars are no words


def test_the_pages_are_short_and_so_is_their_sum() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    counts = {page.name: words(page) for page in pages if page.name not in GENERATED}
    assert {name: count for name, count in counts.items() if count > 800 and name not in LONGER} == {}
    assert sum(counts.values()) <= 35_000
