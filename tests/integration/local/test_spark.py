"""Spark starts quickly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from offsetstore.local import cache_directory


def test_spark_starts_from_an_archive_of_its_classes(offsetstore_spark: SparkSession) -> None:
    java: Any = offsetstore_spark.sparkContext._jvm
    pid = java.java.lang.ProcessHandle.current().pid()

    mapped = Path(f"/proc/{pid}/maps").read_text()

    assert str(cache_directory() / "classes") in mapped
