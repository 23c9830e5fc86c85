"""What runs in Spark's tasks, and what it needs there."""
