from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from offsetstore import OffsetStore
from offsetstore.errors import SchemaMissing
from tests.packaging.building import REQUIREMENTS, ROOT, SOURCES, Distributions, copy, run

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python")
INSTALL = ("--quiet", "install", "--no-compile")

DRIVERS = {"confluent_kafka", "pgpq", "pyarrow", "pyspark"}
LOADED = "import json, sys, offsetstore; print(json.dumps([offsetstore.__file__, sorted(sys.modules)]))"


@pytest.fixture(scope="module")
def core_venv(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and the core's own requirements, no extra."""
    directory = tmp_path_factory.mktemp("core")
    run(sys.executable, "-m", "venv", "--without-pip", directory)
    python = directory / "bin" / "python"
    run(*PIP, python, *INSTALL, "--require-hashes", "--requirement", REQUIREMENTS / "core.txt")
    run(*PIP, python, *INSTALL, "--no-deps", distributions.wheel)
    return python


@pytest.fixture(scope="module")
def wheel_venv(core_venv: Path) -> Path:
    """The same, with the command line, and psycopg with its own libpq, too."""
    run(*PIP, core_venv, *INSTALL, "--require-hashes", "--requirement", REQUIREMENTS / "cli.txt")
    return core_venv


def loaded_with_offsetstore(python: str | Path, cwd: Path) -> tuple[str, set[str]]:
    file, modules = json.loads(run(python, "-W", "error", "-c", LOADED, cwd=cwd))
    return file, {module.partition(".")[0] for module in modules}


def test_the_wheel_carries_migrations_types_licence_and_nothing_beside_the_package(
    distributions: Distributions,
) -> None:
    names = zipfile.ZipFile(distributions.wheel).namelist()
    migrations = {f"offsetstore/{file.relative_to(ROOT)}" for file in (ROOT / "migrations").rglob("*.py")}
    wanted = {"offsetstore/py.typed", "offsetstore/migrations/script.py.mako", "offsetstore/migrations/env.py"}
    wanted |= {str(file.relative_to(ROOT)) for file in (ROOT / "offsetstore" / "assets").glob("*/*")}
    assert wanted | migrations <= set(names)
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"offsetstore"}


def test_the_sdist_carries_what_the_wheel_is_built_from(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "migrations/script.py.mako"} <= names
    examples = {
        str(file.relative_to(ROOT)) for file in (ROOT / "examples").rglob("*") if file.suffix not in {"", ".pyc"}
    }
    assert examples
    assert examples <= names


def test_the_sdist_has_the_examples_that_git_has_and_nothing_that_tools_leave_there(tmp_path: Path) -> None:
    copy(SOURCES, tmp_path / "source")
    project = tmp_path / "source" / "examples" / "project"
    for name in (".venv/lib", "venv/lib", "build/lib", "dist", ".pytest_cache", "shop/__pycache__", "shop.egg-info"):
        (project / name).mkdir(parents=True, exist_ok=True)
        for left in ("left.py", "README.md", "left.toml"):
            (project / name / left).write_text("left", encoding="utf-8")
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path / "dist", tmp_path / "source")
    [sdist] = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    found = {name for name in files if name.startswith("examples/")}
    assert found
    assert not [name for name in found if (project.parents[1] / name).read_text(encoding="utf-8") == "left"]
    if (ROOT / ".git").exists() and shutil.which("git"):
        assert found == set(run("git", "-C", ROOT, "ls-files", "examples").splitlines())


def test_where_the_drivers_are_installed_importing_offsetstore_loads_none_of_them() -> None:
    _, modules = loaded_with_offsetstore(sys.executable, ROOT)
    assert not DRIVERS & modules


def test_the_core_has_the_requirements_that_it_names_and_no_driver(core_venv: Path, tmp_path: Path) -> None:
    file, modules = loaded_with_offsetstore(core_venv, tmp_path)
    assert file.startswith(str(core_venv.parents[1]))
    assert not DRIVERS & modules
    run(*PIP, core_venv, "check", cwd=tmp_path)
    installed = run(*PIP, core_venv, "list", "--format=json", cwd=tmp_path)
    names = {entry["name"].lower().replace("-", "_") for entry in json.loads(installed)}
    assert {"alembic", "offsetstore", "psycopg", "sqlalchemy"} <= names
    assert not DRIVERS & names


# -- a deploy: the wheel with the command line, and nothing of the checkout


def offsetstore(python: Path, url: str, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command as a deploy does: by its name, with the URL in the environment."""
    environment = {"OFFSETSTORE_URL": url, "PATH": os.environ["PATH"], "HOME": str(cwd)}
    command = [str(python.with_name("offsetstore")), *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.behaviour("START-17")
def test_the_wheel_alone_migrates_a_database(wheel_venv: Path, offsetstore_empty_database: str, tmp_path: Path) -> None:
    url = offsetstore_empty_database
    with pytest.raises(SchemaMissing, match="offsetstore migrate"):
        OffsetStore.connect(url)
    assert offsetstore(wheel_venv, url, tmp_path, "migrate", "--check").returncode == 1
    migrated = offsetstore(wheel_venv, url, tmp_path, "migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert offsetstore(wheel_venv, url, tmp_path, "migrate", "--check").returncode == 0
    with OffsetStore.connect(url) as store:
        assert store.offsets("billing") == {}


@pytest.mark.parametrize(
    ("command", "extra"), [("demo", "demo"), ("resolve -g billing -t payments -b localhost:1 --no-store", "kafka")]
)
def test_what_needs_another_extra_says_which(wheel_venv: Path, tmp_path: Path, command: str, extra: str) -> None:
    failed = offsetstore(wheel_venv, "", tmp_path, *command.split())
    assert failed.returncode == 2, failed.stdout + failed.stderr
    assert f"offsetstore[{extra}]" in failed.stderr
