"""How the jobs start Spark, and what they compute with it."""

from __future__ import annotations

import os
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from offsetstore.demo.day_totals import DAY
from offsetstore.demo.tables import COLUMNS, KEY, WORST
from offsetstore.local.spark.java import QUICK
from offsetstore.local.spark.launch import local_session, quick_conf, spark_conf
from offsetstore.testing.job_process import print_event

_TYPES = {"bigint": "bigint", "integer": "int", "text": "string", "timestamptz": "timestamp"}
_CORRUPT: Final = "_corrupt_record"  # Spark puts what it can't read into a column of this name
_SCHEMA = ", ".join(f"{name} {_TYPES[type_]}" for name, type_ in COLUMNS.items())


def start_session(name: str) -> SparkSession:
    """Start Spark, quickly since the demo does so ten times, and print its process id: that of the process to end."""
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK
    session = local_session(name, extra_conf={**quick_conf(spark_conf()), "spark.sql.adaptive.enabled": "false"})
    context: Any = SparkContext
    print_event("started", jvm=context._gateway.proc.pid)  # noqa: SLF001 - no public way
    return session


def parse(batch: DataFrame) -> DataFrame:
    """Turn Kafka's records into flights."""
    return batch.select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("flight")).select("flight.*")


def parse_with_coordinates(batch: DataFrame) -> DataFrame:
    """Turn Kafka's records into flights, and keep their coordinates."""
    flight = F.from_json(F.col("value").cast("string"), _SCHEMA).alias("flight")
    return batch.select(flight, "_kafka").select("flight.*", "_kafka")


def parse_or_reject(batch: DataFrame) -> DataFrame:
    """Turn Kafka's records into flights, keep their coordinates, and reject those that can't be read."""
    flight = F.from_json(F.col("value").cast("string"), f"{_SCHEMA}, {_CORRUPT} string").alias("flight")
    reason = F.when(F.col(_CORRUPT).isNotNull(), F.lit("not the JSON of a flight"))
    return batch.select(flight, "_kafka").select("flight.*", "_kafka", reason.alias("_reject")).drop(_CORRUPT)


def carrier_delays(flights: DataFrame) -> DataFrame:
    """Add up the batch's flights by carrier and month."""
    return flights.groupBy(*KEY).agg(
        F.count("*").alias("flights"),
        F.count_if(F.col("dep_time").isNull()).alias("cancelled"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("departure_delay"),
        F.coalesce(F.sum("arr_delay"), F.lit(0)).alias("arrival_delay"),
        F.max("arr_delay").alias("worst_arrival_delay"),
    )


def day_totals(flights: DataFrame) -> DataFrame:
    """Count the batch's flights by day."""
    return flights.groupBy(*DAY).agg(F.count("*").alias("flights"))


def carrier_delay_of_each(flights: DataFrame) -> DataFrame:
    """Return a row for each flight, for the writer to add up: with dead letters each row comes from one record."""
    return flights.select(
        *KEY,
        F.lit(1).alias("flights"),
        F.col("dep_time").isNull().cast("int").alias("cancelled"),
        F.coalesce("dep_delay", F.lit(0)).alias("departure_delay"),
        F.coalesce("arr_delay", F.lit(0)).alias("arrival_delay"),
        F.col("arr_delay").alias(WORST),
        "_kafka",
    )
