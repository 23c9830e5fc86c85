"""The settings that users have at hand, Spark's and Java's, as librdkafka's."""
