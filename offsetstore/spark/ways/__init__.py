"""The ways to write a micro-batch: in one transaction, in one for each Kafka partition, or with a kept checkpoint."""
