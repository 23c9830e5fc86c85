"""Links between the pages: each file is there, and each heading."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from offsetstore import text
from offsetstore.cli.commands import COMMANDS, cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.is_relative_to(ROOT):
            continue  # a page of GitHub's own, such as ../../security/advisories/new
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_messages_name_pages_as_the_index_does() -> None:
    """Those who have installed the package have no files of the documentation, but the site's titles."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    titles = {page: title for title, page in re.findall(r"\[([^\]]+)\]\(([\w-]+)\.md\)", index)}
    assert {page: titles[page] for page in text._PAGES} == text._PAGES
    named: set[str] = set()
    for source in (ROOT / "offsetstore").rglob("*.py"):
        tree = ast.parse(source.read_text(encoding="utf-8"))
        kept = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        said = " ".join(" ".join(value for value in kept if isinstance(value, str)).split())
        named.update(re.findall(r"the page '([^'{]+)' of the documentation", said))
    assert named <= {*titles.values()}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_help_names_a_file_of_the_documentation(command: str) -> None:
    assert "docs/" not in CliRunner().invoke(cli, [command, "--help"]).output


def test_the_index_has_each_page() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8"))
    assert sorted({*listed}) == sorted(page.name for page in DOCS.glob("*.md") if page.name != "index.md")
