"""The target table: what its catalogue says, and how rows go into it by SQL."""
