"""A real PostgreSQL without installation."""

from offsetstore.local.postgres.server import PostgresServer

__all__ = ["PostgresServer"]
