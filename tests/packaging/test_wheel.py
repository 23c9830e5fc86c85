from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.packaging.building import ROOT, Distributions, run

DRIVERS = {"confluent_kafka", "pgpq", "pyarrow", "pyspark"}
LOADED = "import json, sys, offsetstore; print(json.dumps([offsetstore.__file__, sorted(sys.modules)]))"


def loaded_with_offsetstore(python: str | Path, cwd: Path) -> tuple[str, set[str]]:
    file, modules = json.loads(run(python, "-W", "error", "-c", LOADED, cwd=cwd))
    return file, {module.partition(".")[0] for module in modules}


def test_the_wheel_carries_the_migrations_the_types_and_the_licence(distributions: Distributions) -> None:
    names = zipfile.ZipFile(distributions.wheel).namelist()
    migrations = {f"offsetstore/{file.relative_to(ROOT)}" for file in (ROOT / "migrations").rglob("*.py")}
    wanted = {"offsetstore/py.typed", "offsetstore/migrations/script.py.mako", "offsetstore/migrations/env.py"}
    wanted |= {str(file.relative_to(ROOT)) for file in (ROOT / "offsetstore" / "assets").glob("*/*")}
    assert wanted | migrations <= set(names)
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_the_wheel_carries_nothing_beside_the_package(distributions: Distributions) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(distributions.wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"offsetstore"}


def test_the_sdist_carries_what_the_wheel_is_built_from(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "migrations/script.py.mako"} <= names
    examples = {
        str(file.relative_to(ROOT)) for file in (ROOT / "examples").rglob("*") if file.suffix not in {"", ".pyc"}
    }
    assert examples
    assert examples <= names


def test_the_core_alone_is_imported_from_the_wheel(core_venv: Path, tmp_path: Path) -> None:
    file, modules = loaded_with_offsetstore(core_venv, tmp_path)
    assert file.startswith(str(core_venv.parents[1]))
    assert not DRIVERS & modules


def test_where_the_drivers_are_installed_importing_offsetstore_loads_none_of_them() -> None:
    _, modules = loaded_with_offsetstore(sys.executable, ROOT)
    assert not DRIVERS & modules


def test_the_core_has_the_requirements_that_it_names_and_no_driver(core_venv: Path, tmp_path: Path) -> None:
    run(core_venv, "-m", "pip", "--disable-pip-version-check", "check", cwd=tmp_path)
    installed = run(core_venv, "-m", "pip", "--disable-pip-version-check", "list", "--format=json", cwd=tmp_path)
    names = {entry["name"].lower().replace("-", "_") for entry in json.loads(installed)}
    assert {"alembic", "offsetstore", "psycopg", "sqlalchemy"} <= names
    assert not DRIVERS & names
