"""What both jobs compute, as Spark's DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from offsetstore.demo.tables import COLUMNS, KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TYPES = {"bigint": "bigint", "integer": "int", "text": "string", "timestamptz": "timestamp"}
_SCHEMA = ", ".join(f"{name} {_TYPES[type_]}" for name, type_ in COLUMNS.items())


def parse(batch: DataFrame) -> DataFrame:
    """Turn Kafka's records into flights."""
    return batch.select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("flight")).select("flight.*")


def parse_with_coordinates(batch: DataFrame) -> DataFrame:
    """Turn Kafka's records into flights, and keep their coordinates."""
    flight = F.from_json(F.col("value").cast("string"), _SCHEMA).alias("flight")
    return batch.select(flight, "_kafka").select("flight.*", "_kafka")


def carrier_delays(flights: DataFrame) -> DataFrame:
    """Add up the batch's flights by carrier and month."""
    return flights.groupBy(*KEY).agg(
        F.count("*").alias("flights"),
        F.count_if(F.col("dep_time").isNull()).alias("cancelled"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("departure_delay"),
        F.coalesce(F.sum("arr_delay"), F.lit(0)).alias("arrival_delay"),
        F.max("arr_delay").alias("worst_arrival_delay"),
    )
