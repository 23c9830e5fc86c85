"""The sink, and what it asks of Spark; with `offsetstore.local.spark.launch`, the only importer of pyspark."""

from offsetstore.spark.sink import TransactionalSink

__all__ = ["TransactionalSink"]
