"""README for an index of packages, where a link to a file of this repository leads nowhere: each is made absolute."""

import re
import tomllib
from pathlib import Path
from typing import Any

from setuptools import setup

ROOT = Path(__file__).parent


def absolute(readme: str, project: dict[str, Any]) -> str:
    """Let its links and pictures lead to the files of this release."""
    source = project["urls"]["Source"]
    for mark, kind in (("!", "raw"), ("", "blob")):
        base = f"{source}/{kind}/v{project['version']}/"
        readme = re.sub(rf"(?<!!){re.escape(mark)}(\[[^\]]*\])\((?!https:|#)([^)]+)\)", rf"{mark}\1({base}\2)", readme)
    return readme


setup(
    long_description=absolute(
        (ROOT / "README.md").read_text(encoding="utf-8"),
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"],
    ),
    long_description_content_type="text/markdown",
)
