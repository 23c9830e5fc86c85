"""The demo's job, exactly-once: ``python -m offsetstore.demo.job``.

It appends each flight to ``flights`` and adds it to its carrier's month in ``carrier_delays``; both, and the offsets,
in one transaction: the micro-batch's, or each Kafka partition's. It ends when all that is in the topic is stored. Where
some flights are broken, it keeps them as dead letters. It may also produce the days' totals, by way of the outbox.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame

from offsetstore import Broker, Claim, DeadLetters, Execute, OffsetStore, TransactionalSink
from offsetstore.demo.computation import (
    carrier_delay_of_each,
    carrier_delays,
    day_totals,
    parse,
    parse_or_reject,
    parse_with_coordinates,
    start_session,
)
from offsetstore.demo.job_settings import GROUP, PAUSE, JobSettings
from offsetstore.demo.landing import land, writers
from offsetstore.demo.tables import OURS, connected
from offsetstore.local.spark.launch import stop_session
from offsetstore.protocol import failpoints
from offsetstore.protocol.events import BatchStarted, Event
from offsetstore.spark import tuned
from offsetstore.testing.job_process import BatchPrinter


def transform(batch: DataFrame) -> dict[str, DataFrame]:
    """Compute the rows for each table."""
    flights = parse(batch)
    return {"flights": flights, "carrier_delays": carrier_delays(flights)}


def transform_with_day_totals(batch: DataFrame) -> dict[str, DataFrame]:
    """Compute the rows for each table, and how many flights each day has in them."""
    flights = parse(batch)
    return {"flights": flights, "carrier_delays": carrier_delays(flights), "day_totals": day_totals(flights)}


def transform_with_letters(batch: DataFrame) -> dict[str, DataFrame]:
    """Compute the rows for each table, each row from one record."""
    flights = parse_or_reject(batch)
    good = flights.where("_reject IS NULL").drop("_reject")
    return {"flights": flights, "carrier_delays": carrier_delay_of_each(good)}


class Pause:
    """An observer that arms a failpoint in the batch in which the job is to be killed."""

    def __init__(self) -> None:
        self._point, _, nth = os.environ.get(PAUSE, "").partition(":")
        self._left = int(nth or 0)

    def on(self, event: Event) -> None:
        """Arm it when that batch begins."""
        if isinstance(event, BatchStarted):
            self._left -= 1
            if self._left == 0:
                failpoints.follow(f"{self._point}:hang")


def make_sink(claim: Claim, settings: JobSettings) -> TransactionalSink:
    """Make the sink that the settings ask for."""
    if settings.atomicity == "partition":
        return TransactionalSink(claim, parse_with_coordinates, into=Execute(land), atomicity="partition")
    into = writers(has_day_totals=settings.outbox)
    if settings.dead_letters:
        return TransactionalSink(
            claim,
            transform_with_letters,
            into=into,
            dead_letters=DeadLetters(max_retries=0),  # nothing about these flights will pass
        )
    return TransactionalSink(claim, transform_with_day_totals if settings.outbox else transform, into=into)


def main() -> None:
    """Run the query until it has read all there is."""
    settings = JobSettings.from_environment()
    with connected(settings.url) as connection:
        OURS.create(connection)
    kafka = settings.kafka_options()
    spark = start_session("flights, exactly-once")
    with OffsetStore.connect(settings.url, schema="public", observers=[BatchPrinter(), Pause()]) as store:
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
