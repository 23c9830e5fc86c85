"""``offsetstore store``: what became of the store whose tables are in another database than before."""

from __future__ import annotations

from typing import Final

import click

from offsetstore.cli.asking import Decide, decide_options

_KEYS: Final = "store_id=identity.store_id home=identity.home executed plan=digest groups[group=@ live=is_live]"


@click.group()
def store() -> None:
    """Say whether the store was moved to this database, or copied."""


@store.command()
@decide_options()
def moved(*, decide: Decide) -> None:
    """Say that the store was moved: its jobs go on in this database.

    For a start that ended in StoreMoved after pg_upgrade, a switch to a logical replica, or a restore in place of the
    lost database. No job may run on the other database any more: the two would take each other's offsets for their
    own. Only the owner of the tables may say so. If the store is at home already, nothing is written.

    Exit code 1 if the plan is not --if-plan (the new one is printed).

    \b
    Keys of --format json:
      store_id, home, executed, plan (for --if-plan)
      groups[]  group, live: those whose history records it

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore store moved --reason "pg_upgrade to 18, ticket 17" --execute
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    decide(_KEYS, lambda opened: opened.moved(**decide.how))


@store.command()
@decide_options()
def new_id(*, decide: Decide) -> None:
    """Say that this database is a copy: it becomes a store of its own.

    For a start that ended in StoreMoved in a copy whose original goes on, and for a copy of the server's files, which
    can't be told from its original. Jobs that run in this database are fenced. What their groups have in Kafka is the
    original's: start each with a kafka_group= of its own. Only the owner of the tables may say so, and it can't be
    taken back.

    Exit code 1 if the plan is not --if-plan (the new one is printed).

    \b
    Keys of --format json:
      store_id, home, executed, plan (for --if-plan)
      groups[]  group, live: those that it fences

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore store new-id --reason "staging, copied for a rehearsal"
          --execute
    """  # noqa: D301 - as above
    decide(_KEYS, lambda opened: opened.new_id(**decide.how))
