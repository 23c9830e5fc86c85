"""Errors of the server itself, for functions and triggers: whatever the rows, it can't do the work now."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import psycopg

OF_SERVER: Final = {
    "08001": "CREATE EXTENSION postgres_fdw;"
    " CREATE SERVER away FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '1');"
    " CREATE USER MAPPING FOR CURRENT_USER SERVER away;"
    " CREATE FOREIGN TABLE far (number int) SERVER away; PERFORM FROM far;",
    "25006": "PERFORM set_config('transaction_read_only', 'on', true); CREATE TABLE forbidden ();",
    "53400": "PERFORM set_config('temp_file_limit', '0', true), set_config('work_mem', '64kB', true);"
    " PERFORM count(*) FROM (SELECT repeat('x', 1000) FROM generate_series(1, 10000) AS n ORDER BY n % 7) AS sorted;",
    "55P03": "LOCK TABLE held NOWAIT;",
    "57014": "PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(60);",
    "57P01": "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60);",
}
"""Statements of PL/pgSQL, by SQLSTATE. They need the table ``held``."""


@contextmanager
def held(holder: psycopg.Connection) -> Generator[None]:
    """Make the table ``held``, and lock it by this session, which is another one."""
    holder.execute("CREATE TABLE held ()")
    holder.commit()
    holder.execute("LOCK TABLE held IN SHARE MODE")
    yield
    holder.rollback()
