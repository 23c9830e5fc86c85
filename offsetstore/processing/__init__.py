"""One cycle for every kind of job; imports neither Spark nor Kafka."""
