"""Exactly-once from Kafka into PostgreSQL without Spark: processes that are members of one consumer group.

Needs the extra ``consumer``: confluent-kafka, pyarrow and pgpq.
"""

from __future__ import annotations

from offsetstore.consumer.consumer import Consumer
from offsetstore.consumer.filters import Context, Delay, Expire, Filter, Kept, SkipIf, Throttle

__all__ = ["Consumer", "Context", "Delay", "Expire", "Filter", "Kept", "SkipIf", "Throttle"]
