"""What Spark's plans tell about a query and its batches."""
