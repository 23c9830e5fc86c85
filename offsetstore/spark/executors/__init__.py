"""What runs in Spark's tasks, and what they need for it."""
