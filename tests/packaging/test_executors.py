"""The executors' environment: a Python without the packages is refused, and the recipe of docs/executors.md works."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from offsetstore import OffsetStore
from offsetstore.errors import ExecutorEnvironment
from offsetstore.spark.executors.connect import ExecutorStore, sending_password
from offsetstore.spark.executors.preflight import PACKAGES, check_executors
from tests.packaging.building import ROOT, Distributions, run
from tests.support.cluster import Cluster

# What `pip install offsetstore[executor]` installs beside offsetstore, as the tests have it.
REQUIRED = (
    "alembic",
    "cffi",
    "cryptography",
    "mako",
    "markupsafe",
    "pgpq",
    "psycopg",
    "psycopg-binary",
    "pyarrow",
    "pycparser",
    "sqlalchemy",
    "typing-extensions",
)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment without any package."""
    directory = tmp_path_factory.mktemp("bare") / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", directory)
    return directory / "bin" / "python"


@pytest.fixture(scope="module")
def archive(bare: Path, distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed environment with the wheel and links to what it requires, made without any network."""
    packed = tmp_path_factory.mktemp("archive") / "environment.tar.gz"
    packages = f"./lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    wheel = tmp_path_factory.mktemp("wheel")
    zipfile.ZipFile(distributions.wheel).extractall(wheel)  # noqa: S202 - our own
    # Not .tar nor .zip: of those, Spark makes files that can not be executed.
    with tarfile.open(packed, "w:gz", compresslevel=1) as tar:
        tar.add(bare.parents[1], ".")
        tar.add(wheel, packages)
        for name in REQUIRED:
            files = distribution(name).files or ()
            for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
                link = tarfile.TarInfo(f"{packages}/{top}")
                link.type, link.linkname = tarfile.SYMTYPE, str(distribution(name).locate_file(top))
                tar.addfile(link)
    return packed


@pytest.fixture(scope="module")
def cluster(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster as the recipe says, whose executors see nothing of the checkout."""
    conf = {"spark.archives": f"{archive}#environment"}
    with Cluster(tmp_path_factory.mktemp("cluster"), conf=conf, pythonpath="", size=1) as cluster:
        yield cluster


def check_with(session: SparkSession, *, python: str) -> list[tuple[str, dict[str, str]]]:
    """A job: the preflight, with one Python on the executors."""
    context = session.sparkContext
    context.pythonExec = python  # PYSPARK_PYTHON, read once when Spark starts
    return [(found.executable, dict(found.versions)) for found in check_executors(session)]


@pytest.mark.behaviour("SINK-14")
def test_executors_without_the_packages_are_refused_with_the_recipe(cluster: Cluster, bare: Path) -> None:
    with pytest.raises(ExecutorEnvironment) as caught:
        cluster.run(check_with, python=str(bare))

    assert f"{bare} (Python {sys.version.split()[0]})" in str(caught.value.found)
    for package in PACKAGES:
        assert f"{package} (not installed)" in str(caught.value.found)
    assert "--archives environment.tar.gz#environment" in caught.value.next_step
    assert "PYSPARK_PYTHON=./environment/bin/python" in caught.value.next_step
    assert (ROOT / "docs" / "executors.md").is_file()


def read_owners(session: SparkSession, *, url: str, python: str) -> list[tuple[str, str]]:
    """A job: every task reads the group's owner from the database."""
    session.sparkContext.pythonExec = python
    with OffsetStore.connect(url) as store:
        shared = ExecutorStore.of(store)

        def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import sys  # noqa: PLC0415 - the executor's

            import pyarrow as pa  # noqa: PLC0415 - the same

            import offsetstore  # noqa: PLC0415 - the same

            for _ in batches:
                owner = shared.connect().owner("billing")
                files = f"{offsetstore.__file__} {sys.executable}"
                yield pa.RecordBatch.from_pydict({"owner": [owner.owner if owner else None], "files": [files]})

        with sending_password(session, store):
            frame = session.range(4, numPartitions=4).mapInArrow(task, "owner string, files string")
            return [(row.owner, row.files) for row in frame.collect()]


@pytest.mark.behaviour("SINK-14")
def test_the_recipe_gives_executors_what_they_need(cluster: Cluster, offsetstore_database: str) -> None:
    python = "./environment/bin/python"
    found = cluster.run(check_with, python=python)
    assert found
    with OffsetStore.connect(offsetstore_database) as store:
        owner = store.claim("billing", topics=["payments"]).owner
        read = cluster.run(read_owners, url=offsetstore_database, python=python)
    assert [each for each, _ in read] == [owner] * 4
    assert all(re.search("/environment/lib/.*/environment/bin/python", files) for _, files in read)
