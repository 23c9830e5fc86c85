"""The sink, and what it asks of Spark; with `offsetstore.local.spark.launch`, the only importer of pyspark."""

from offsetstore.spark.sink import TransactionalSink
from offsetstore.spark.tuning import tuned

__all__ = ["TransactionalSink", "tuned"]
