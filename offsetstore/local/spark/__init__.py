"""Spark on this machine, with what it needs to read Kafka."""
