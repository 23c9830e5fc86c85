"""``offsetstore store``: what became of the store whose tables are in another database than before."""

from __future__ import annotations

import click

from offsetstore.cli import options
from offsetstore.cli.exits import decide
from offsetstore.cli.output import document, print_digest, print_json, print_lines
from offsetstore.operations.home import StoreDecided
from offsetstore.text import counted


@click.group()
def store() -> None:
    """Say whether the store was moved to this database, or copied."""


@store.command()
@options.execute_options
@options.database_options
@options.format_option
def moved(*, how: options.How, database: options.Database, format_: str) -> None:
    """Say that the store was moved: its jobs go on in this database.

    For a start that ended in StoreMoved after pg_upgrade, a switch to a logical replica, or a restore in place of the
    lost database. No job may run on the other database any more: the two would take each other's offsets for their
    own. Only the owner of the tables may say so. If the store is at home already, nothing is written.

    \b
    Exit codes:
      0  done, or at home already; without --execute: it can be done
      1  the plan is not --if-plan (the new one is printed)
      2  wrong usage
      3  the database can't be reached or refuses, or the role may not do that

    \b
    Keys of --format json:
      store_id, home, executed, plan (for --if-plan)
      groups[]  group, live: those whose history records it

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore store moved --reason "pg_upgrade to 18, ticket 17" --execute
    """  # noqa: D301 - \b is click's mark, and this is how click wants it

    def show(done: StoreDecided) -> None:
        identity, count = done.identity, counted(len(done.groups), "group")
        if format_ == "json":
            print_json(_document(done))
        elif done.executed:
            print_lines(f"Store {identity.store_id} is at home in this database.", "Start its jobs.")
        elif identity.home == identity.here:
            print_lines(f"Store {identity.store_id} is at home in this database already; nothing was written.")
        else:
            print_lines(
                f"Store {identity.store_id} would move from database {identity.home or 'unknown'} to this one, "
                f"{identity.here}, with {count}. No job may run on the other database any more."
            )
            _print_plan(done)

    decide(database, lambda opened: opened.moved(**how), show)


@store.command()
@options.execute_options
@options.database_options
@options.format_option
def new_id(*, how: options.How, database: options.Database, format_: str) -> None:
    """Say that this database is a copy: it becomes a store of its own.

    For a start that ended in StoreMoved in a copy whose original goes on, and for a copy of the server's files, which
    can't be told from its original. Jobs that run in this database are fenced. What their groups have in Kafka is the
    original's: start each with a kafka_group= of its own. Only the owner of the tables may say so, and it can't be
    taken back.

    \b
    Exit codes:
      0  done; without --execute: it can be done
      1  the plan is not --if-plan (the new one is printed)
      2  wrong usage
      3  the database can't be reached or refuses, or the role may not do that

    \b
    Keys of --format json:
      store_id, home, executed, plan (for --if-plan)
      groups[]  group, live: those that it fences

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore store new-id --reason "staging, copied for a rehearsal"
          --execute
    """  # noqa: D301 - as above

    def show(done: StoreDecided) -> None:
        if format_ == "json":
            print_json(_document(done))
        elif done.executed:
            print_lines(
                f"This database is store {done.identity.store_id} now.",
                "Give each of its jobs a kafka_group= of its own.",
            )
        else:
            print_lines(
                f"This database would no longer be store {done.identity.store_id}, but a store of its own, with "
                f"{counted(len(done.groups), 'group')}. This can't be taken back."
            )
            if live := [group for group, owner in done.groups.items() if owner.is_live]:
                print_lines(f"It fences the running jobs of {', '.join(live)}.")
            _print_plan(done)

    decide(database, lambda opened: opened.new_id(**how), show)


def _print_plan(done: StoreDecided) -> None:
    print_lines("Nothing was written. Add --execute to do it.")
    print_digest(done.digest)


def _document(done: StoreDecided) -> dict[str, object]:
    groups = [{"group": group, "live": owner.is_live} for group, owner in done.groups.items()]
    keys = "store_id=identity.store_id home=identity.home executed plan=digest groups"
    return document(done, keys, groups=groups)
