"""docs/dependencies.md: what is installed with offsetstore, for what, and under which licence.

``python -m tests.support.dependencies_page`` writes the page anew; its licences are those that the installed packages
declare.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "dependencies.md"
_BEGIN: Final = "<!-- written by python -m tests.support.dependencies_page -->\n"
_SPDX: Final = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "CC0": "CC0-1.0",
    "MIT License": "MIT",
}


def requirements() -> dict[str, tuple[str, list[str]]]:
    """For each package that pyproject.toml asks for, its versions and the extras that bring it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, tuple[str, list[str]]] = {}
    for extra, entries in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for name, versions in (re.findall(r"^([\w-]+)(?:\[.*?\])?(.*)$", entry)[0] for entry in entries):
            if name != "offsetstore":
                found.setdefault(name, (versions, []))[1].append(f"`{extra}`" if extra else "the core")
    return found


def licence(name: str) -> str:
    """As the package declares it, in SPDX's words."""
    said = metadata(name)
    classifiers = [text.rpartition(" :: ")[2] for text in said.get_all("Classifier", []) if "License ::" in text]
    text = said["License-Expression"] or (classifiers[0] if classifiers else said["License"])
    return _SPDX.get(text, text)


def text() -> str:
    """The page: what a person wrote, and the table."""
    rows = [
        f"| {name} | {versions} | {', '.join(extras)} | {licence(name)} |"
        for name, (versions, extras) in sorted(requirements().items())
    ]
    said, begin, _ = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return "\n".join([f"{said}{begin}", "| package | versions | extras | licence |", "|---|---|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
