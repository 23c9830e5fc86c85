"""A real Kafka broker without Docker."""

from offsetstore.local.kafka.server import KafkaBroker

__all__ = ["KafkaBroker"]
