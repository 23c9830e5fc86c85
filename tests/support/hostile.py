"""Defaults of a role or a database on which the texts depend that a client and the server exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import psycopg
from psycopg import sql

HOSTILE: Final = {
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",  # or the server's log has a line for each string
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "array_nulls": "off",
    "client_encoding": "LATIN1",
    "xmloption": "document",
    "lc_monetary": "POSIX",
    "search_path": "elsewhere, public",
    "TimeZone": "Asia/Kathmandu",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
}


def set_defaults(url: str, whose: str, settings: Mapping[str, str]) -> None:
    """Let the connections of the URL's ``"ROLE"``, or to its ``"DATABASE"``, begin with these settings."""
    with psycopg.connect(url, autocommit=True) as connection:
        name = connection.info.user if whose == "ROLE" else connection.info.dbname
        for setting, value in settings.items():
            # A list, such as a search path, must not become one quoted name.
            listed = sql.SQL(", ").join(map(sql.Literal, value.split(", ")))
            alter = sql.SQL("ALTER ROLE {} SET {} = {}" if whose == "ROLE" else "ALTER DATABASE {} SET {} = {}")
            connection.execute(alter.format(sql.Identifier(name), sql.Identifier(setting), listed))
