"""What would be published: checked as an index of packages does it, and as users' tools read it."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.packaging.building import ROOT, Distributions, run
from tests.support import dependencies_page

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

A_USERS_CODE = """
from collections.abc import Iterable
from typing import assert_type

import pyarrow as pa
from pyspark.sql import DataFrame

import offsetstore.spark
from offsetstore import (
    Append,
    Broker,
    Claim,
    DeadLetters,
    Execute,
    Failure,
    Handler,
    OffsetStore,
    Record,
    Retry,
    StoredOffset,
    TopicPartition,
    TransactionalSink,
    Work,
)
from offsetstore.consumer import Consumer
from offsetstore.errors import OffsetStoreError, RowsRefused


def parse(batch: DataFrame) -> dict[str, DataFrame]:
    return {"payments": batch.selectExpr("CAST(key AS STRING) AS payer"), "receipts": batch}


def send(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        work.produce("receipts", None, b"%d" % batch.num_rows)


async def charge(record: Record) -> dict[str, object]:
    return {"id": record.id}


def job(store: OffsetStore, kafka: dict[str, str]) -> None:
    with offsetstore.spark.job() as running:
        claim = store.claim("billing", Broker.from_spark(kafka))
        assert_type(claim, Claim)
        assert_type(claim.offsets(), dict[TopicPartition, StoredOffset])
        sink = TransactionalSink(
            claim, parse, into={"payments": Append("payments"), "receipts": Execute(send)}, dead_letters=DeadLetters()
        )
        running.run("a query", sink)


def consumer(store: OffsetStore) -> Consumer:
    schema = pa.schema({"id": pa.string()})
    transform = Handler(charge, schema)
    return Consumer(store, "billing", topics=["payments"], kafka={}, transform=transform, into=Append("payments"))


def told(error: OffsetStoreError) -> str:
    return f"{error.topic_partition}: {error.next_step}" if isinstance(error, RowsRefused) else str(error)


def strategy(error: Failure) -> Retry:
    return Retry(after=5)
"""


@pytest.fixture(scope="module")
def metadata(distributions: Distributions) -> Message:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(wheel.read(name).decode())


def test_an_index_accepts_both_files(distributions: Distributions, tmp_path: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", distributions.sdist, distributions.wheel, cwd=tmp_path)
    # W004: Alembic loads the revisions by their paths.
    run(sys.executable, "-m", "check_wheel_contents", "--ignore", "W004", distributions.wheel, cwd=tmp_path)


def test_its_page_there_has_no_link_that_leads_nowhere(metadata: Message) -> None:
    page = str(metadata.get_payload())
    base = f"{PROJECT['urls']['Source']}/"
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", page)
    assert len(links) == len(re.findall(r"\]\(", (ROOT / "README.md").read_text(encoding="utf-8")))
    for mark, link in links:
        kind, version, path = link.removeprefix(base).split("/", 2)
        assert (link.startswith(base), kind, version) == (True, "raw" if mark else "blob", f"v{PROJECT['version']}")
        assert (ROOT / path.partition("#")[0]).exists(), link


def test_the_changelog_begins_with_this_version_and_the_index_links_it(metadata: Message) -> None:
    [newest, *_] = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest == PROJECT["version"] == metadata["Version"]
    names = {entry.partition(",")[0] for entry in metadata.get_all("Project-URL", [])}
    assert {"Documentation", "Source", "Issues", "Changelog"} <= names


def test_the_page_of_dependencies_has_the_licences_that_the_packages_declare() -> None:
    assert dependencies_page.PAGE.read_text(encoding="utf-8") == dependencies_page.text(), (
        "run python -m tests.support.dependencies_page"
    )
    assert "None" not in dependencies_page.text()


@pytest.fixture(scope="module")
def wheels_python(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, beside the packages that the tests run with."""
    directory = tmp_path_factory.mktemp("users")
    run(sys.executable, "-m", "venv", "--without-pip", directory)
    [site] = directory.glob("lib/python*/site-packages")
    zipfile.ZipFile(distributions.wheel).extractall(site)
    (site / "drivers.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return directory / "bin" / "python"


@pytest.mark.behaviour("DX-7")
@pytest.mark.parametrize(
    ("checker", "option"),
    [
        (["mypy", "--strict", "--no-incremental"], "--python-executable"),
        (["basedpyright", "--level", "error"], "--pythonpath"),
    ],
    ids=["mypy", "pyright"],
)
def test_a_user_s_type_checker_sees_our_types_and_the_one_mistake(
    wheels_python: Path, tmp_path: Path, checker: list[str], option: str
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.pyright]\ntypeCheckingMode = "strict"\n', encoding="utf-8")
    (program := tmp_path / "job.py").write_text(A_USERS_CODE, encoding="utf-8")
    command = [sys.executable, "-m", *checker, option, str(wheels_python), str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if "error:" in line or " - error" in line]
    assert len(errors) == 1, done.stdout
    assert "StreamingQuery" in errors[0]
