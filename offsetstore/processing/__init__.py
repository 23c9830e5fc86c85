"""The engine of every kind of job. It imports neither Spark nor Kafka."""
