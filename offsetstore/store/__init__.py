"""The job's side of the store: claims, transactions, the mirror."""
