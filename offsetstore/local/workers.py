"""Spark's Python daemon, with the modules that tasks import: the workers that it forks need not load them again."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

IMPORTED: Final = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "offsetstore.spark.executors.connect",
    "offsetstore.spark.executors.preflight",
    "offsetstore.spark.executors.task",
)

if __name__ == "__main__":
    for name in IMPORTED:
        import_module(name)
    daemon: Any = import_module("pyspark.daemon")  # without types
    daemon.manager()
