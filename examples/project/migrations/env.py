"""An application's env.py whose ``alembic upgrade head`` brings offsetstore's tables along, in the same transaction.

Two lines are offsetstore's, 1 and 2; the rest is as ``alembic init`` writes it.
"""

from __future__ import annotations

import os

from alembic import context
from shop.models import Base
from sqlalchemy import NullPool, create_engine

import offsetstore.migrations

engine = create_engine(os.environ["DATABASE_URL"], poolclass=NullPool)
with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        include_name=offsetstore.migrations.exclude(),  # 1: autogenerate doesn't drop what the models don't have
    )
    with context.begin_transaction():
        offsetstore.migrations.upgrade(connection)  # 2: our tables, to the revision that the installed version needs
        context.run_migrations()
