"""docs/architecture.md names files and functions that are there, and every room."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_files_that_it_names_exist_and_have_the_functions_that_its_drawings_name() -> None:
    named = set(re.findall(r"`(offsetstore/[\w/]+\.py)`", PAGE))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
    drawn = re.findall(r"^[ │├└─]*([a-z][\w/]*\.py) +(.*?)(?:  .*)?$", PAGE, re.MULTILINE)
    assert len(drawn) > 50
    for path, names in drawn:
        text = (ROOT / "offsetstore" / path).read_text(encoding="utf-8")
        assert [name for name in names.split(", ") if not re.search(rf"\b(def|class) {name}\b", text)] == [], path


def test_it_has_a_line_for_each_layer_from_top_to_bottom() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [layers] = [one["layers"] for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    rooms = [room.strip() for layer in layers for room in layer.split("|") if "(" not in room]
    lines = PAGE.split("```")[1]
    places = [re.search(rf"\b{room}  ", lines) for room in rooms]
    assert all(places), rooms
    assert [place.start() for place in places if place] == sorted(place.start() for place in places if place)
