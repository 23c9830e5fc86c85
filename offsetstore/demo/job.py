"""The demo's job, exactly-once: ``python -m offsetstore.demo.job``.

It appends each flight to ``flights`` and adds it to its carrier's month in ``carrier_delays``; both, and the offsets,
in one transaction: the micro-batch's, or each Kafka partition's. It ends when all that is in the topic is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore import Append, Broker, Claim, Execute, OffsetStore, TransactionalSink, Upsert
from offsetstore.demo.computation import carrier_delays, land, parse, parse_with_coordinates, start_session
from offsetstore.demo.job_settings import GROUP, JobSettings
from offsetstore.demo.tables import ADDED, KEY, OURS, WORST, create_tables
from offsetstore.local.spark.launch import stop_session
from offsetstore.spark.tuning import tuned
from offsetstore.testing.job_process import BatchPrinter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def transform(batch: DataFrame) -> dict[str, DataFrame]:
    """Compute the rows for each table."""
    flights = parse(batch)
    return {"flights": flights, "carrier_delays": carrier_delays(flights)}


def make_sink(claim: Claim, settings: JobSettings) -> TransactionalSink:
    """Make the sink that the settings ask for."""
    if settings.atomicity == "partition":
        return TransactionalSink(claim, parse_with_coordinates, into=Execute(land), atomicity="partition")
    into = {
        "flights": Append(OURS.flights),
        "carrier_delays": Upsert(OURS.carrier_delays, key=KEY, add=ADDED, greatest=[WORST]),
    }
    return TransactionalSink(claim, transform, into=into, staging=settings.staging)


def main() -> None:
    """Run the query until it has read all there is."""
    settings = JobSettings.from_environment()
    create_tables(settings.url, OURS)
    kafka = settings.kafka_options()
    spark = start_session("flights, exactly-once")
    with OffsetStore.connect(settings.url, observers=[BatchPrinter()]) as store:
        claim = store.claim(GROUP, Broker.from_spark(kafka))
        sink = make_sink(claim, settings)
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
    stop_session(spark)


if __name__ == "__main__":
    main()
