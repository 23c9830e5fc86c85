"""What exactly-once means: offsets, ranges, decisions, and the ports through which the rest is reached. No I/O."""
