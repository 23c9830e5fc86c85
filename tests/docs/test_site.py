"""`make docs`: the site builds without a warning, asks no other host for anything, and everyone can read it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Page

from tests.docs.test_reference import public
from tests.support.browser import Pages, Scheme, axe, browse

ROOT: Final = Path(__file__).parents[2]
VIEWS: Final[list[tuple[Scheme, int]]] = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
LOADING: Final = {"audio", "embed", "iframe", "img", "input", "link", "object", "script", "source", "track", "video"}


class Asked(HTMLParser):
    """What a page loads by itself, where its links lead, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.places.add(value)
            elif tag in LOADING and name in {"href", "src", "srcset", "data"} and value:
                self.loads.append(value)
            elif name == "href" and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    [command] = re.findall(r"-m sphinx (.*) -d build/doctrees docs build/docs$", makefile(), re.MULTILINE)
    made = tmp_path_factory.mktemp("site")
    assert {"-W", "-n", "-E"} <= {*shlex.split(command)}
    build = [sys.executable, "-m", "sphinx", *shlex.split(command), "-d", made / "doctrees", "docs", made / "html"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return made / "html"


def makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def asked(site: Path) -> dict[Path, Asked]:
    return {page: Asked(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}


def test_no_page_asks_another_host_for_anything(site: Path, asked: dict[Path, Asked]) -> None:
    assert len(asked) > 100
    loaded = {link for page in asked.values() for link in page.loads}
    assert {link for link in loaded if urlsplit(link).scheme not in {"", "data"} or link.startswith("//")} == set()
    styles = "\n".join(style.read_text(encoding="utf-8") for style in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//\S+", styles) == []


def test_each_link_leads_to_a_page_and_a_place_of_the_site(site: Path, asked: dict[Path, Asked]) -> None:
    broken: list[str] = []
    for page, of in asked.items():
        for link in {*of.links, *of.loads}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            place = unquote(parts.fragment)
            if not target.is_file() or (place and target in asked and place not in asked[target].places):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_each_link_to_the_repository_leads_to_a_file_of_it(asked: dict[Path, Asked]) -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    links = {link.partition("#")[0] for of in asked.values() for link in of.links}
    paths = {link for link in links if link.startswith(f"{urls['Source']}/")}
    files = [link for link in paths if re.match(rf"{re.escape(urls['Source'])}/(blob|tree)/main/", link)]
    assert [link for link in files if not (ROOT / link.partition("/main/")[2]).exists()] == []
    assert len(files) > 5
    assert {link.removeprefix(urls["Source"]) for link in paths - {*files}} == {"/security/advisories/new"}


def test_each_public_name_has_its_place_and_the_words_are_found(site: Path, asked: dict[Path, Asked]) -> None:
    places = {place for page, of in asked.items() if page.name.startswith("api-") for place in of.places}
    assert [path for path in public() if path not in places] == []
    index = json.loads((site / "searchindex.js").read_text(encoding="utf-8").removeprefix("Search.setIndex(")[:-1])
    assert index["docnames"].index("decisions/0013-pgbouncer") in index["terms"]["pgbouncer"]


def test_the_order_of_the_pages_is_that_of_the_index(asked: dict[Path, Asked], site: Path) -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    captions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    shown = (site / "install.html").read_text(encoding="utf-8")
    assert re.findall(r'<p class="caption"[^>]*><span class="caption-text">(.*?)</span>', shown) == captions
    listed = [f"{name}.html" for name in re.findall(r"\]\(([\w-]+)\.md\)", text)]
    navigation = [link for link in asked[site / "index.html"].links if link in listed]
    assert list(dict.fromkeys(navigation)) == list(dict.fromkeys(listed))


def test_a_page_in_no_table_of_contents_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("# Index\n\n## Start\n\n[One](one.md)\n", encoding="utf-8")
    (tmp_path / "one.md").write_text("# One\n", encoding="utf-8")
    (tmp_path / "other.md").write_text("# Other\n", encoding="utf-8")
    build = [sys.executable, "-m", "sphinx", "-qEWn", "-c", ROOT / "docs", tmp_path, tmp_path / "html"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode != 0
    assert re.search(r"other\.md: WARNING: document isn't included in any toctree", done.stderr), done.stderr


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    with browse() as browser:
        opened = Pages(browser)
        yield opened
        opened.close()


@pytest.mark.needs_program("chromium")
@pytest.mark.parametrize(
    "name", ["index.html", "project/examples.html", "deploy.html", "api-store.html", "search.html?q=pgbouncer"]
)
def test_everyone_can_read_it(name: str, site: Path, pages: Pages) -> None:
    for scheme, width in VIEWS:
        page = pages.open(f"{site.as_uri()}/{name}", width=width, scheme=scheme)
        if "search" in name:
            assert_found(page)
        assert axe(page) == [], (scheme, width)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (scheme, width)
    assert pages.take_faults() == []


def assert_found(page: Page) -> None:
    """The search runs in the page itself, from a file."""
    page.get_by_text(re.compile("Search finished")).wait_for()
    assert page.locator('#search-results a[href^="decisions/0013-pgbouncer.html"]').count()
