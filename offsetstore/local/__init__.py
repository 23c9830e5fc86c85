"""PostgreSQL, Kafka and Spark on one machine, without Docker: from packages, cached."""
