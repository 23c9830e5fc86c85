"""The whole job, with Spark's defaults and with the recommended settings: noop and the sink, in bulk and in triggers.

Run it with ``.venv/bin/python benchmarks/whole_job.py``. Rounds are paired: each does all jobs, in turn, so that a busy
machine slows all of them; the first round warms the JVM up and does not count. What is timed is Spark's own
``triggerExecution``; what is printed are medians, and ratios to noop with Spark's defaults.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from sqlalchemy import text

from offsetstore import Append, Broker, Claim, OffsetStore, TransactionalSink
from offsetstore.kafka.admin import Record, create_topic, produce
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.local.spark.launch import local_session, stop_session
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.spark.tuning import MANAGER, tuned

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

RECORDS: Final = 500_000
SMALL: Final = 5_000
TRIGGERS: Final = 12
PARTITIONS: Final = 5
ROUNDS: Final = 5
TOPIC: Final = "records"


def parse(batch: DataFrame) -> DataFrame:
    """The same little work for all."""
    return batch.selectExpr("partition", "offset", "CAST(value AS STRING) AS value")


def noop(batch: DataFrame, _: int) -> None:
    """Compute all rows, and write none."""
    parse(batch).write.format("noop").mode("overwrite").save()


def run(
    spark: SparkSession, options: dict[str, str], write: Callable[[DataFrame, int], None], checkpoint: str
) -> list[float]:
    """Run the job over the topic; return the seconds of each trigger."""
    reader: Any = spark.readStream.format("kafka").options(**options)
    query = (
        reader.load().writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert sum(one["numInputRows"] for one in progress) in {RECORDS, SMALL * TRIGGERS}
    return [one["durationMs"]["triggerExecution"] / 1000 for one in progress]


def measure(
    spark: SparkSession, kafka: KafkaBroker, postgres: PostgresServer, *, small: bool
) -> dict[str, list[float]]:
    """Return the seconds of each round, by name; in small triggers, the median of each round's triggers."""
    topic = f"{TOPIC}-small" if small else TOPIC
    plain = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    if small:
        plain["maxOffsetsPerTrigger"] = str(SMALL)
    seconds: dict[str, list[float]] = {}
    engine = make_engine(postgres.url)
    with tempfile.TemporaryDirectory() as directory, OffsetStore.connect(postgres.url) as store:
        for number in range(ROUNDS + 1):
            for settings in ("defaults", "tuned"):
                spark.conf.unset(MANAGER)
                options = tuned(spark, plain) if settings == "tuned" else plain
                for name in ("noop", "batch", "partition"):
                    with engine.begin() as connection:
                        connection.execute(text("TRUNCATE records"))
                    write: Callable[[DataFrame, int], None] = noop
                    if name != "noop":
                        claim = store.claim(uuid4().hex, Broker.from_spark(plain), mirror_every=None)
                        write = sink(claim, name)
                    took = run(spark, options, write, str(Path(directory, uuid4().hex)))
                    if number:
                        seconds.setdefault(f"{name}, {settings}", []).append(median(took))
    engine.dispose()
    return seconds


def keep(batch: DataFrame) -> DataFrame:
    """The same, with the coordinates that the partition way needs."""
    return batch.selectExpr("_kafka", "partition", "offset", "CAST(value AS STRING) AS value")


def sink(claim: Claim, name: Any) -> TransactionalSink:
    """Make the sink of this atomicity."""
    return TransactionalSink(claim, parse if name == "batch" else keep, into=Append("records"), atomicity=name)


def main() -> None:
    """Start everything, measure, print, stop everything."""
    with KafkaBroker() as kafka, PostgresServer() as postgres:
        engine = make_engine(postgres.url)
        with engine.begin() as connection:
            upgrade(connection)
            connection.execute(text('CREATE TABLE records (partition integer, "offset" bigint, value text)'))
        engine.dispose()
        for topic, count in ((TOPIC, RECORDS), (f"{TOPIC}-small", SMALL * TRIGGERS)):
            create_topic(kafka.bootstrap_servers, topic, partitions=PARTITIONS)
            records = (Record(f"{number:070d}".encode(), partition=number % PARTITIONS) for number in range(count))
            produce(kafka.bootstrap_servers, topic, records)
        spark = local_session("benchmark")
        try:
            for small in (False, True):
                seconds = measure(spark, kafka, postgres, small=small)
                floor = median(seconds["noop, defaults"])
                print(f"{SMALL} records a trigger" if small else f"{RECORDS} records")
                for name, values in seconds.items():
                    middle, all_ = median(values), ", ".join(f"{value:.2f}" for value in values)
                    print(f"  {name:20} {middle:6.3f} s  {middle / floor:5.2f} x   ({all_})")
        finally:
            stop_session(spark)


if __name__ == "__main__":
    sys.exit(main())
