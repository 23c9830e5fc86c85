"""On Spark: offsetstore's sink, or Spark's own JDBC writer, with the same reader and checkpoint file manager."""

from __future__ import annotations

import sys
from typing import Any, Final

from pyspark.sql import DataFrame

from benchmarks.jobs import FILE_SYSTEM
from benchmarks.shapes import SMALL
from offsetstore import Append, Broker, OffsetStore, TransactionalSink
from offsetstore.local.spark import local_session
from offsetstore.spark.settings import MANAGER, tuned

HEAP: Final = "2g"
BATCH: Final = 10_000


def run(writer: str, url: str, servers: str, topic: str, directory: str) -> None:
    """Consume the topic until the process ends.

    :param writer: ``sink``, or the URL for JDBC.
    """
    spark = local_session("peers", extra_conf={"spark.driver.memory": HEAP, MANAGER: FILE_SYSTEM})
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }
    reader: Any = spark.readStream.format("kafka").options(**tuned(spark, options))

    def jdbc(batch: DataFrame, _: int) -> None:
        properties = {"driver": "org.postgresql.Driver", "batchsize": str(BATCH)}
        SMALL.rows(batch).write.jdbc(writer, SMALL.table, mode="append", properties=properties)

    if writer != "sink":
        stream = reader.load().writeStream.foreachBatch(jdbc).option("checkpointLocation", directory)
        stream.start().awaitTermination()
        return
    with OffsetStore.connect(url) as store:
        claim = store.claim(topic, Broker.from_spark(options))
        sink = TransactionalSink(claim, SMALL.rows, into=Append(SMALL.table))
        stream = reader.option("startingOffsets", claim.starting_offsets).load().writeStream.foreachBatch(sink)
        stream.option("checkpointLocation", claim.checkpoint(directory)).start().awaitTermination()


if __name__ == "__main__":
    run(*sys.argv[1:])
