"""The sink, and what it asks of Spark; with `offsetstore.local.spark`, the only importer of pyspark."""

from offsetstore.spark.executors.connect import MetadataFinder, metadata_finder
from offsetstore.spark.run_job import Job, job
from offsetstore.spark.settings import tuned
from offsetstore.spark.sink import TransactionalSink

__all__ = ["Job", "MetadataFinder", "TransactionalSink", "job", "metadata_finder", "tuned"]
