"""docs/glossary.md: one short entry for each word, in order, and pages may link each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "glossary.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^## (.+)\n\n(.+(?:\n.+)*)", PAGE, re.MULTILINE))
# README, the pages and the help use these without explaining them.
WORDS = (
    "claim", "token", "epoch", "fence", "pin", "mirror", "stamp", "letter", "headroom", "fleet", "member", "flush",
    "handler", "relay", "source", "stored offset", "committed offset", "consumer group", "run", "live", "lag", "plan",
    "digest", "history", "outbox", "pause", "reset", "replay", "range", "crop", "gap", "stale", "contested", "marking",
)  # fmt: skip


def test_each_word_has_one_entry_in_alphabetical_order() -> None:
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert headings == sorted({*headings})
    assert list(ENTRIES) == headings


@pytest.mark.parametrize("word", WORDS)
def test_it_has_the_words_that_pages_use(word: str) -> None:
    assert word in ENTRIES


@pytest.mark.parametrize("word", ENTRIES)
def test_an_entry_is_short(word: str) -> None:
    assert len(ENTRIES[word].split()) <= 30
