"""The target table: what the catalogue says about it, and the SQL that writes rows to it."""
