"""A shop that keeps its payments and refunds: a Spark job, a consumer, and the tables of both."""
