"""One micro-batch of 500,000 records of 70 bytes in five partitions: the sink beside Spark's noop and JDBC writers.

Run it with ``.venv/bin/python benchmarks/one_batch.py``. Rounds are paired: each does all three, in turn, so that a
busy machine slows all of them; the first round warms the JVM up and does not count. What is timed is Spark's own
``triggerExecution``; what is printed are ratios of medians.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import text

from offsetstore import Append, Broker, OffsetStore, TransactionalSink
from offsetstore.kafka.admin import Record, create_topic, produce
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.local.spark.launch import local_session, stop_session
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

RECORDS, PARTITIONS, ROUNDS = 500_000, 5, 5
TOPIC, TABLE = "records", "records"


def parse(batch: DataFrame) -> DataFrame:
    """The same little work for all three."""
    return batch.selectExpr("partition", "offset", "CAST(value AS STRING) AS value")


def run(
    spark: SparkSession, options: dict[str, str], write: Callable[[DataFrame, int], None], checkpoint: str
) -> float:
    """Run one batch; return its seconds."""
    reader: Any = spark.readStream.format("kafka").options(**options)
    query = (
        reader.load().writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    progress = query.recentProgress
    assert len(progress) == 1 and progress[0]["numInputRows"] == RECORDS, "expected one batch with all records"  # noqa: PT018
    return progress[0]["durationMs"]["triggerExecution"] / 1000


def measure(spark: SparkSession, kafka: KafkaBroker, postgres: PostgresServer) -> dict[str, list[float]]:
    """Return seconds per round, by name."""
    engine = make_engine(postgres.url)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": TOPIC, "startingOffsets": "earliest"}
    jdbc_url = f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres"

    def noop(batch: DataFrame, _: int) -> None:
        parse(batch).write.format("noop").mode("overwrite").save()

    def jdbc(batch: DataFrame, _: int) -> None:
        frame = parse(batch)
        frame.write.jdbc(
            jdbc_url, TABLE, mode="append", properties={"user": "postgres", "driver": "org.postgresql.Driver"}
        )

    seconds: dict[str, list[float]] = {"noop": [], "offsetstore": [], "jdbc": []}
    with tempfile.TemporaryDirectory() as directory, OffsetStore.connect(postgres.url) as store:
        for number in range(ROUNDS + 1):
            for name, plain in (("noop", noop), ("offsetstore", None), ("jdbc", jdbc)):
                with engine.begin() as connection:
                    connection.execute(text(f"TRUNCATE {TABLE}"))
                checkpoint, write = str(Path(directory, uuid4().hex)), plain
                if write is None:
                    claim = store.claim(f"group-{number}", Broker.from_spark(options))
                    write = TransactionalSink(claim, parse, into=Append(TABLE))
                took = run(spark, options, write, checkpoint)
                if number:
                    seconds[name].append(took)
    engine.dispose()
    return seconds


def main() -> None:
    """Start everything, measure, print, stop everything."""
    with KafkaBroker() as kafka, PostgresServer() as postgres:
        engine = make_engine(postgres.url)
        with engine.begin() as connection:
            upgrade(connection)
            connection.execute(text(f'CREATE TABLE {TABLE} (partition integer, "offset" bigint, value text)'))
        engine.dispose()
        create_topic(kafka.bootstrap_servers, TOPIC, partitions=PARTITIONS)
        produce(
            kafka.bootstrap_servers,
            TOPIC,
            (Record(f"{number:070d}".encode(), partition=number % PARTITIONS) for number in range(RECORDS)),
        )
        spark = local_session("benchmark")
        try:
            seconds = measure(spark, kafka, postgres)
        finally:
            stop_session(spark)
    middle = {name: median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        print(f"{name:12} {middle[name]:6.2f} s   ({', '.join(f'{value:.2f}' for value in values)})")
    print(f"offsetstore / noop: {middle['offsetstore'] / middle['noop']:.2f}")
    print(f"offsetstore / jdbc: {middle['offsetstore'] / middle['jdbc']:.2f}")


if __name__ == "__main__":
    sys.exit(main())
