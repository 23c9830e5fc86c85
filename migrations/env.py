"""Alembic runs this file; all that it does is in `offsetstore.postgres.migrate`."""

from alembic import context

from offsetstore.postgres.migrate import run_environment

run_environment(context)
