"""Spark's and Java's settings, translated for librdkafka."""
