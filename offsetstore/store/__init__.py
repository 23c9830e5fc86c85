"""The store: claims, transactions, reads and administration."""
