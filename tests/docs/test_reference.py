"""docs/api-*.md: each public name is on one page and in an example of it, and the examples are true."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from offsetstore import OffsetStore, errors
from tests.unit.test_public import PACKAGES, PORTS

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGES: Final = {page.name: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("api-*.md"))}
BLOCKS: Final = {
    f"{name.removesuffix('.md')}-{number}": block
    for name, text in PAGES.items()
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
}
ON_DATABASE: Final = [name for name, block in BLOCKS.items() if block.startswith("# Needs PostgreSQL.\n")]
TYPED_ONLY: Final = [name for name, block in BLOCKS.items() if "its types are checked, it is not run" in block]
IN_MEMORY: Final = [name for name in BLOCKS if name not in {*ON_DATABASE, *TYPED_ONLY}]


def named(path: str) -> Any:
    """What an import path leads to."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(path)


def directives(text: str) -> list[str]:
    kinds = "autoclass|autoexception|autofunction|automethod|autodata|automodule|py:data"
    return re.findall(rf"^\.\. (?:{kinds}):: (\S+)$", text, re.MULTILINE)


DOCUMENTED: Final = {path: page for page, text in PAGES.items() for path in directives(text)}


def public() -> dict[str, Any]:
    """Each public name once, by its shortest import path."""
    paths = [f"{package}.{name}" for package in PACKAGES for name in import_module(package).__all__]
    found: dict[int, str] = {}
    for path in sorted(paths, key=lambda path: path.count(".")):
        found.setdefault(id(named(path)), path)
    return {path: named(path) for path in found.values() if not inspect.ismodule(named(path))}


def test_nothing_is_documented_twice() -> None:
    listed = Counter(path for text in PAGES.values() for path in directives(text))
    assert [path for path, count in listed.items() if count > 1] == []


@pytest.mark.behaviour("DX-3")
@pytest.mark.parametrize("path", public())
def test_a_public_name_is_on_one_page_by_its_import_path_and_in_an_example_there(path: str) -> None:
    page = DOCUMENTED[path]
    name = path.rpartition(".")[2]
    examples = [block for at, block in BLOCKS.items() if at.rpartition("-")[0] == page.removesuffix(".md")]
    assert any(re.search(rf"\b{name}\b", block) for block in examples), page


def test_what_is_documented_is_public_or_an_error() -> None:
    known = {*public(), "offsetstore.testing.fixtures", "offsetstore.errors.ExitCode"}
    known |= {f"offsetstore.errors.{name}" for name in kinds()}
    assert {path for path in DOCUMENTED if not path.startswith("offsetstore.OffsetStore.")} == known


def test_each_method_of_the_store_is_on_one_page() -> None:
    [chosen] = re.findall(
        r"autoclass:: offsetstore\.OffsetStore\n   :members: (.*)$", PAGES["api-store.md"], re.MULTILINE
    )
    alone = [path.rpartition(".")[2] for path in DOCUMENTED if path.startswith("offsetstore.OffsetStore.")]
    assert sorted([*chosen.split(", "), *alone]) == sorted(name for name in vars(OffsetStore) if name[0] != "_")


@pytest.mark.parametrize("path", [path for path, value in public().items() if inspect.isclass(value)])
def test_the_chosen_members_of_a_class_are_there(path: str) -> None:
    for member in re.findall(
        rf"autoclass:: {re.escape(path)}\n   :members: (.*)$", PAGES[DOCUMENTED[path]], re.MULTILINE
    ):
        assert [name for name in member.split(", ") if not hasattr(named(path), name)] == []
        assert named(path).__name__ in PORTS or all(
            inspect.getdoc(getattr(named(path), name)) for name in member.split(", ")
        )


def kinds() -> dict[str, type[BaseException]]:
    found = vars(errors).items()
    ours = {name: kind for name, kind in found if inspect.isclass(kind) and issubclass(kind, BaseException)}
    return {name: kind for name, kind in ours.items() if kind.__module__ == errors.__name__}


@pytest.mark.behaviour("DX-3")
@pytest.mark.parametrize("name", kinds())
def test_an_error_says_when_it_is_raised_and_what_to_do(name: str) -> None:
    kind = kinds()[name]
    assert DOCUMENTED[f"offsetstore.errors.{name}"] == "api-errors.md"
    assert kind.__doc__
    if issubclass(kind, errors.OffsetStoreError) and kind is not errors.OffsetStoreError:
        assert kind.default_next_step or "What to do: " in kind.__doc__


@pytest.mark.parametrize("name", IN_MEMORY)
def test_an_example_runs(name: str) -> None:
    exec(compile(BLOCKS[name], name, "exec"), {"__name__": "__main__"})  # noqa: S102 - the page's own words


@pytest.mark.parametrize("name", ON_DATABASE)
def test_an_example_runs_on_a_database(name: str, offsetstore_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFSETSTORE_URL", offsetstore_database)
    exec(compile(BLOCKS[name], name, "exec"), {"__name__": "__main__"})  # noqa: S102


def test_only_what_needs_spark_or_kafka_is_not_run() -> None:
    assert all(re.search(r"^# Needs (Spark|PostgreSQL and Kafka)", BLOCKS[name]) for name in TYPED_ONLY)
    assert len(TYPED_ONLY) <= 4
    assert len(IN_MEMORY) > 15


def test_the_types_of_the_examples_are_right(tmp_path: Path) -> None:
    for name, block in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(block, encoding="utf-8")
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(DOCS.parent)], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(BLOCKS)
    assert [(Path(at["file"]).name, at["message"]) for at in found["generalDiagnostics"]] == []
