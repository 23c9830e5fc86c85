"""What a user would take instead: timed, and killed under way. See docs/comparison.md."""
