"""One cycle for every kind of job; neither Spark nor Kafka is imported here."""
