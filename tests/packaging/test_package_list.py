from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from offsetstore.local.jars import SPARK_VERSION
from tests.packaging.building import REQUIREMENTS, entries, pins

ROOT = Path(__file__).parents[2]
SETUPTOOLS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def packages_in(top: Path, name: str) -> set[str]:
    folders = {file.parent for file in top.rglob("*.py")}
    return {".".join((name, *folder.relative_to(top).parts)) for folder in folders}


def test_every_folder_with_python_in_it_is_listed_as_a_package_and_nothing_else() -> None:
    in_the_tree = packages_in(ROOT / "offsetstore", "offsetstore")
    in_the_tree |= packages_in(ROOT / "migrations", "offsetstore.migrations")
    assert sorted(SETUPTOOLS["packages"]) == sorted(in_the_tree)


def test_the_migrations_are_taken_from_the_top_of_the_checkout() -> None:
    directories = SETUPTOOLS["package-dir"]
    for package in SETUPTOOLS["packages"]:
        if package.startswith("offsetstore.migrations"):
            assert directories[package] == package.removeprefix("offsetstore.").replace(".", "/")


def test_every_file_that_is_not_python_is_package_data() -> None:
    found: set[str] = set()
    for package, patterns in SETUPTOOLS["package-data"].items():
        directory = SETUPTOOLS["package-dir"].get(package, package.replace(".", "/"))
        found |= {
            str(file.relative_to(ROOT))
            for pattern in patterns
            for file in (ROOT / directory).glob(pattern)
            if file.is_file()
        }
    others = {
        str(file.relative_to(ROOT))
        for directory in ("offsetstore", "migrations")
        for file in (ROOT / directory).rglob("*")
        if file.is_file() and file.suffix not in {".py", ".pyc"}
    }
    assert found == others


FILES = sorted(REQUIREMENTS.glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_requirement_is_pinned_with_hashes_to_what_the_tests_run_with(file: Path) -> None:
    wanted = re.compile(r"[a-z0-9-]+==\S+( ; [^-]+?)?(\s+--hash=sha256:[0-9a-f]{64})+")
    assert [entry for entry in entries(file) if not wanted.fullmatch(entry)] == []
    tested = pins(REQUIREMENTS / "dev.txt")
    assert {name: pin for name, pin in pins(file).items() if tested[name] != pin} == {}


@pytest.mark.parametrize("file", ["dev.txt", "job.txt"])
def test_spark_is_pinned_to_the_version_of_its_kafka_connector(file: str) -> None:
    assert pins(REQUIREMENTS / file)["pyspark"] == SPARK_VERSION
