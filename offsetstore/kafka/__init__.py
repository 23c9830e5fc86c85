"""Kafka, over confluent-kafka: the only package that imports it."""

from offsetstore.kafka.broker import Broker

__all__ = ["Broker"]
