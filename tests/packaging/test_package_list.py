from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

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
