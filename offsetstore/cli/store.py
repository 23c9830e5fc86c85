"""``offsetstore store``: what became of the store whose tables are in another database than before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offsetstore.cli import options
from offsetstore.cli.output import print_json, print_lines

if TYPE_CHECKING:
    from offsetstore.protocol.store_facts import StoreIdentity


@click.group()
def store() -> None:
    """Say whether the store was moved to this database, or copied."""


@store.command()
@options.reason_option
@options.database_options
@options.format_option
def moved(*, reason: str, url: str | None, schema: str | None, format_: str) -> None:
    """Say that the store was moved: its jobs go on in this database.

    For a start that ended in StoreMoved after pg_upgrade, a switch to a logical replica, or a restore in place of the
    lost database. No job may run on the other database any more: the two would take each other's offsets for their
    own. Only the owner of the tables may say so. If the store is at home already, nothing is written.

    \b
    Exit codes:
      0  done, or at home already
      2  wrong usage
      3  the database can't be reached or refuses, or the role may not do that

    \b
    Keys of --format json:
      store_id, home

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore store moved --reason "pg_upgrade to 18, ticket 17"
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    with options.open_store(url, schema) as opened:
        after = opened.moved(reason=reason)
    _print(after, format_, f"Store {after.store_id} is at home in this database.", "Start its jobs.")


@store.command()
@options.reason_option
@options.database_options
@options.format_option
def new_id(*, reason: str, url: str | None, schema: str | None, format_: str) -> None:
    """Say that this database is a copy: it becomes a store of its own.

    For a start that ended in StoreMoved in a copy whose original goes on, and for a copy of the server's files, which
    can't be told from its original. Jobs that run in this database are fenced. What their groups have in Kafka is the
    original's: start each with a kafka_group= of its own. Only the owner of the tables may say so, and it can't be
    taken back.

    \b
    Exit codes:
      0  done
      2  wrong usage
      3  the database can't be reached or refuses, or the role may not do that

    \b
    Keys of --format json:
      store_id, home

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore store new-id --reason "staging, copied for a rehearsal"
    """  # noqa: D301 - as above
    with options.open_store(url, schema) as opened:
        after = opened.new_id(reason=reason)
    _print(
        after,
        format_,
        f"This database is store {after.store_id} now.",
        "Give each of its jobs a kafka_group= of its own.",
    )


def _print(after: StoreIdentity, format_: str, *lines: str) -> None:
    if format_ == "json":
        print_json({"store_id": str(after.store_id), "home": after.home})
    else:
        print_lines(*lines)
