"""The demo's job, exactly-once: ``python -m offsetstore.demo.job``.

It appends each flight to ``flights`` and adds it to its carrier's month in ``carrier_delays``; both, and the offsets,
in one transaction. It ends when the whole topic is stored. If some flights are broken, it keeps them as dead letters.
"""

from __future__ import annotations

import os
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from offsetstore import Append, Broker, DeadLetters, OffsetStore, TransactionalSink, Upsert
from offsetstore.demo.flights import GROUP
from offsetstore.demo.job_settings import JobSettings, pause
from offsetstore.demo.tables import ADDED, COLUMNS, KEY, OURS, WORST, connected
from offsetstore.local.java import QUICK
from offsetstore.local.spark import local_session, quick_conf, spark_conf, stop_session
from offsetstore.protocol.events import BatchStarted, Event
from offsetstore.runtime import failpoints
from offsetstore.spark import tuned
from offsetstore.testing.job_process import BatchPrinter, print_event

_TYPES = {"bigint": "bigint", "integer": "int", "text": "string", "timestamptz": "timestamp"}
_SCHEMA = ", ".join(f"{name} {_TYPES[type_]}" for name, type_ in COLUMNS.items())
_CORRUPT: Final = "_corrupt_record"  # Spark puts what it can't read into a column of this name


def start_session(name: str) -> SparkSession:
    """Start Spark, and print the process id of its Java, which a kill must end too."""
    # The demo starts Spark about ten times.
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK
    session = local_session(name, extra_conf={**quick_conf(spark_conf()), "spark.sql.adaptive.enabled": "false"})
    context: Any = SparkContext
    print_event("started", jvm=context._gateway.proc.pid)  # noqa: SLF001 - no public way
    return session


def parse(batch: DataFrame) -> DataFrame:
    return batch.select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("flight")).select("flight.*")


def carrier_delays(flights: DataFrame) -> DataFrame:
    """Add up the batch's flights by carrier and month."""
    return flights.groupBy(*KEY).agg(
        F.count("*").alias("flights"),
        F.count_if(F.col("dep_time").isNull()).alias("cancelled"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("departure_delay"),
        F.coalesce(F.sum("arr_delay"), F.lit(0)).alias("arrival_delay"),
        F.max("arr_delay").alias(WORST),
    )


def transform(batch: DataFrame) -> dict[str, DataFrame]:
    flights = parse(batch)
    return {"flights": flights, "carrier_delays": carrier_delays(flights)}


def transform_with_letters(batch: DataFrame) -> dict[str, DataFrame]:
    """Compute the rows for each table, each from one record, as dead letters need it; the writer adds them up."""
    flight = F.from_json(F.col("value").cast("string"), f"{_SCHEMA}, {_CORRUPT} string").alias("flight")
    reason = F.when(F.col(_CORRUPT).isNotNull(), F.lit("not the JSON of a flight"))
    flights = batch.select(flight, "_kafka").select("flight.*", "_kafka", reason.alias("_reject")).drop(_CORRUPT)
    delays = flights.where("_reject IS NULL").select(
        *KEY,
        F.lit(1).alias("flights"),
        F.col("dep_time").isNull().cast("int").alias("cancelled"),
        F.coalesce("dep_delay", F.lit(0)).alias("departure_delay"),
        F.coalesce("arr_delay", F.lit(0)).alias("arrival_delay"),
        F.col("arr_delay").alias(WORST),
        "_kafka",
    )
    return {"flights": flights, "carrier_delays": delays}


class KillPoint:
    """An observer that arms a failpoint in the batch in which the job is to be killed."""

    def __init__(self) -> None:
        self._point, self._left = pause()

    def on(self, event: Event) -> None:
        """Arm it when that batch begins."""
        if isinstance(event, BatchStarted):
            self._left -= 1
            if self._left == 0:
                failpoints.follow(f"{self._point}:hang")


def run(spark: SparkSession, settings: JobSettings) -> None:
    """Run the query until it has read the whole topic."""
    kafka = settings.kafka_options()
    into = {
        "flights": Append(OURS.flights),
        "carrier_delays": Upsert(OURS.carrier_delays, key=KEY, add=ADDED, greatest=[WORST]),
    }
    compute = transform_with_letters if settings.dead_letters else transform
    # No retries: nothing about these flights will pass.
    kept = DeadLetters(max_retries=0) if settings.dead_letters else None
    with OffsetStore.connect(settings.url, schema="public", observers=[BatchPrinter(), KillPoint()]) as store:
        claim = store.claim(GROUP, Broker.from_spark(kafka))
        sink = TransactionalSink(claim, compute, into=into, dead_letters=kept)
        query = (
            spark.readStream.format("kafka")
            .options(**tuned(spark, kafka))
            .option("startingOffsets", claim.starting_offsets)
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", claim.checkpoint(str(settings.checkpoints)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def main() -> None:
    settings = JobSettings.from_environment()
    with connected(settings.url) as connection:
        OURS.create(connection)
    spark = start_session("flights, exactly-once")
    run(spark, settings)
    stop_session(spark)


if __name__ == "__main__":
    main()
