"""docs/settings.md: its variables are those that the code reads, its options and defaults those of the signatures."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, Final

import pytest

import offsetstore
from offsetstore import consumer, monitoring
from offsetstore.spark.settings import READER

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
SECTIONS: Final = {
    section.partition("\n")[0].strip("`"): section for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
}
ARGUMENTS: Final = [name for name in SECTIONS if name not in {"Environment variables", "offsetstore.spark.tuned"}]

# What offsetstore sets itself, for a process that it starts, and what its demo's jobs are told.
OF_OUR_OWN: Final = {
    "OFFSETSTORE_EXECUTOR_SECRET",
    "OFFSETSTORE_KEYTOOL_PASSWORD",
    "OFFSETSTORE_TRUSTSTORE_PASSWORD",
    *(f"OFFSETSTORE_DEMO_{name}" for name in ("BATCH", "BOOTSTRAP", "CHECKPOINTS", "DEAD_LETTERS", "PAUSE", "URL")),
}


def rows(section: str) -> dict[str, list[str]]:
    """The cells of a table's lines after the first, by the first."""
    lines = re.findall(r"^\| `.*$", SECTIONS[section], re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {name.strip(" `"): others for name, *others in cells}


def test_the_variables_are_those_that_the_code_names() -> None:
    files = [*(ROOT / "offsetstore").rglob("*.py"), *(ROOT / "migrations").rglob("*.py")]
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    read = set(re.findall(r"\"(OFFSETSTORE_[A-Z_]+)\"", code))
    read |= set(re.findall(r"environ(?:\.get\(|\[)\"([A-Z_]+)\"(?!\] =)", code)) | set(
        re.findall(r"\"(SPARK_[A-Z_]+_ENABLED)\"", code)
    )
    assert set(rows("Environment variables")) == read - OF_OUR_OWN


def test_the_recommended_options_are_those_of_tuned() -> None:
    assert {name: cells[0].strip("`") for name, cells in rows("offsetstore.spark.tuned").items()} == READER
    assert all(cells[1] for cells in rows("offsetstore.spark.tuned").values())


def made(name: str) -> Any:
    module: Any = next(of for of in (offsetstore, consumer, monitoring) if hasattr(of, name.partition(".")[0]))
    for part in name.split("."):
        module = getattr(module, part)
    return module


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_arguments_and_defaults_are_those_of_the_signature(name: str) -> None:
    taken = [one for one in inspect.signature(made(name)).parameters.values() if one.name != "self"]
    defaults = {
        one.name: "required" if one.default is inspect.Parameter.empty else f"`{one.default!r}`" for one in taken
    }
    assert {argument: cells[0] for argument, cells in rows(name).items()} == defaults
    numbers = [one.name for one in taken if isinstance(one.default, float)]
    assert [argument for argument in numbers if not rows(name)[argument][1]] == []


def test_it_has_what_a_job_is_made_of() -> None:
    assert {"OffsetStore.connect", "OffsetStore.claim", "Broker", "TransactionalSink", "Consumer"} < set(ARGUMENTS)
