"""The same job as people write it today, for comparison: ``python -m offsetstore.demo.at_least_once``.

``foreachBatch`` with Spark's JDBC writer, then an upsert of the sums by hand, in a transaction; the checkpoint
remembers how far it got. It is no worse than it has to be: a batch that is run again is written again.
"""

from __future__ import annotations

import threading

import psycopg
from pyspark.sql import DataFrame, SparkSession

from offsetstore.demo.job import carrier_delays, parse, start_session
from offsetstore.demo.job_settings import JobSettings, pause
from offsetstore.demo.tables import JDBC_NAME, THEIRS
from offsetstore.local.spark import stop_session
from offsetstore.postgres.url import connection_parameters
from offsetstore.spark import tuned
from offsetstore.spark.plans.query import RunningQuery
from offsetstore.testing.job_process import print_event

UPSERT = """
INSERT INTO carrier_delays_alo AS stored
    (carrier, year, month, flights, cancelled, departure_delay, arrival_delay, worst_arrival_delay)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (carrier, year, month) DO UPDATE SET
    flights = stored.flights + excluded.flights,
    cancelled = stored.cancelled + excluded.cancelled,
    departure_delay = stored.departure_delay + excluded.departure_delay,
    arrival_delay = stored.arrival_delay + excluded.arrival_delay,
    worst_arrival_delay = greatest(stored.worst_arrival_delay, excluded.worst_arrival_delay)
"""


def jdbc_options(url: str) -> dict[str, str]:
    """Translate the URL for Java."""
    parameters = connection_parameters(url)
    options = {
        "url": f"jdbc:postgresql://{parameters['host']}:{parameters.get('port', 5432)}/{parameters['dbname']}",
        "driver": "org.postgresql.Driver",
        "ApplicationName": JDBC_NAME,
        "reWriteBatchedInserts": "true",
    }
    return options | {name: str(parameters[name]) for name in ("user", "password") if name in parameters}


class Pauses:
    """The failpoints of this job."""

    def __init__(self) -> None:
        self._wanted, self._left = pause()

    def reach(self, point: str) -> None:
        """Stop here forever, if this is the point and the pass to stop at."""
        self._left -= point == self._wanted
        if self._left == 0 and point == self._wanted:
            print_event("reached", point=point)
            threading.Event().wait()


def run(spark: SparkSession, settings: JobSettings) -> None:
    """Run the query until it has read the whole topic."""
    jdbc = jdbc_options(settings.url)
    pauses = Pauses()

    def write(batch: DataFrame, batch_id: int) -> None:
        ranges = {str(tp): (range_.from_, range_.until) for tp, range_ in RunningQuery.of(batch).ranges().items()}
        print_event("begun", batch=batch_id, ranges=ranges)  # as `BatchPrinter` does
        flights = parse(batch).persist()
        flights.write.format("jdbc").options(**jdbc, dbtable=THEIRS.flights).mode("append").save()
        pauses.reach("between_write_and_upsert")
        delays = carrier_delays(flights).collect()
        with psycopg.connect(settings.url) as connection, connection.cursor() as cursor:
            cursor.executemany(UPSERT, delays)
        flights.unpersist()
        pauses.reach("after_function")
        print_event("done", batch=batch_id, ranges=ranges)

    query = (
        spark.readStream.format("kafka")
        .options(**tuned(spark, settings.kafka_options()))  # as the exactly-once job
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(settings.checkpoints / "at-least-once"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    spark = start_session("flights, at-least-once")
    run(spark, JobSettings.from_environment())
    stop_session(spark)


if __name__ == "__main__":
    main()
