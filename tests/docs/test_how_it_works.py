"""docs/how-it-works.md has pictures: what they say is what the code does, and people who can't see them can read it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from offsetstore.offsets import OffsetRange
from offsetstore.protocol.replay import Outcome, decide

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
PICTURES = re.findall(r"!\[[^\]]+\]\((images/[\w-]+\.svg)\)", PAGE)
SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str]:
    root = ET.parse(DOCS / picture).getroot()  # noqa: S314 - a file of ours
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_has_a_title_a_description_and_colours_for_dark_pages(picture: str) -> None:
    root = ET.parse(DOCS / picture).getroot()  # noqa: S314 - a file of ours
    assert root.get("role") == "img"
    for name in (root.get("aria-labelledby") or "").split():
        [described] = [element for element in root if element.get("id") == name]
        assert described.text
    assert {element.tag for element in root} >= {f"{SVG}title", f"{SVG}desc"}
    style = root.findtext(f"{SVG}style") or ""
    light, _, dark = style.partition("prefers-color-scheme: dark")
    drawn = {element.get("class") for element in root} - {None, "strong", "small", "code"}
    assert "back" in drawn
    assert [name for name in drawn if f".{name} " not in light or f".{name} " not in dark] == []
    assert "text {" in dark


def test_the_outcomes_are_those_of_the_code() -> None:
    told = texts("images/replay.svg")
    start, until = map(int, re.findall(r"\d+", told[0]))
    beside = dict(itertools.pairwise(told))
    stored = {outcome: int(beside[outcome.name].removeprefix("stored ")) for outcome in Outcome}
    assert {outcome: decide(offset, OffsetRange(start, until)).outcome for outcome, offset in stored.items()} == {
        outcome: outcome for outcome in Outcome
    }


def test_there_are_three_pictures() -> None:
    assert len(PICTURES) == 3
