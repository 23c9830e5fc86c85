"""Alembic runs this file; all that it does is in `offsetstore.store.migrate`."""

from alembic import context

from offsetstore.store.migrate import run_environment

run_environment(context)
