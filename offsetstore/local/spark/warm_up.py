"""A process that starts Spark, lets it do a little of what a job does, and ends.

``python -m offsetstore.local.spark.warm_up CONF``, the session's configuration as JSON. The classes that it has
loaded are kept by `offsetstore.local.spark.class_archive`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from offsetstore.local.spark.launch import local_session, stop_session

_EXIT_SECONDS: Final = 120
_SECONDS: Final = 60
_LOADED: Final = (
    "org.apache.kafka.clients.admin.KafkaAdminClient",
    "org.apache.kafka.clients.consumer.KafkaConsumer",
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
)


def main() -> None:
    """Run a stream of some rows through Python and back."""
    session = local_session("offsetstore-warm-up", extra_conf=json.loads(sys.argv[1]))
    try:
        _stream(session)
    finally:
        stop_session(session, timeout=_EXIT_SECONDS)  # Java writes the archive when it ends


def _stream(session: SparkSession) -> None:
    def batch(frame: DataFrame, number: int) -> None:
        frame.repartition(2).mapInArrow(lambda rows: rows, frame.schema).toArrow()
        frame.rdd.map(tuple).collect()
        if number:
            query.stop()

    spark: Any = session
    java = spark._jvm  # noqa: SLF001 - no public way
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    for name in _LOADED:
        java.java.lang.Class.forName(name, True, loader)  # noqa: FBT003 - Java's order
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", "100").load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = rows.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint).start()
        query.awaitTermination(_SECONDS)
        query.stop()


if __name__ == "__main__":
    main()
