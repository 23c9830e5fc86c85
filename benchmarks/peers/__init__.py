"""What a user could use instead: timed, and killed while it runs. See docs/comparison.md."""
