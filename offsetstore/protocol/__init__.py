"""The rules of exactly-once: offsets, ranges, decisions, and the ports to everything else. No I/O."""
