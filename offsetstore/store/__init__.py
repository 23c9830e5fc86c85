"""The store and its transaction; with `offsetstore.writers`, all there is of SQL."""
