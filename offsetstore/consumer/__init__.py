"""Exactly-once from Kafka into PostgreSQL without Spark: processes that are members of one consumer group.

Needs the extra ``consumer``: confluent-kafka, pyarrow and pgpq.
"""

from __future__ import annotations

from offsetstore.consumer.consumer import Consumer

__all__ = ["Consumer"]
