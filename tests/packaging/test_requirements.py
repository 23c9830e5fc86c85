from __future__ import annotations

import re
from pathlib import Path

import pytest

from offsetstore.local.spark.artifacts import SPARK_VERSION
from tests.packaging.building import REQUIREMENTS, entries, pins

FILES = sorted(REQUIREMENTS.glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_requirement_is_pinned_with_hashes_and_nothing_else_is_in_the_file(file: Path) -> None:
    wanted = re.compile(r"[a-z0-9-]+==\S+( ; [^-]+?)?(\s+--hash=sha256:[0-9a-f]{64})+")
    assert [entry for entry in entries(file) if not wanted.fullmatch(entry)] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_file_pins_what_the_tests_run_with(file: Path) -> None:
    tested = pins(REQUIREMENTS / "dev.txt")
    assert {name: pin for name, pin in pins(file).items() if tested[name] != pin} == {}


@pytest.mark.parametrize("file", ["dev.txt", "job.txt"])
def test_spark_is_pinned_to_the_version_of_its_kafka_connector(file: str) -> None:
    assert pins(REQUIREMENTS / file)["pyspark"] == SPARK_VERSION
