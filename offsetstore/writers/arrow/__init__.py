"""Arrow batches on their way into COPY."""
