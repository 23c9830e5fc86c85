"""The migrations, at the top of the checkout and inside the wheel, and what an application's own Alembic needs of them.

In the application's ``env.py``::

    context.configure(..., include_name=offsetstore.migrations.exclude())
    with context.begin_transaction():
        offsetstore.migrations.upgrade(connection)
        context.run_migrations()
"""

from offsetstore.postgres.migrate import downgrade, exclude, upgrade

__all__ = ["downgrade", "exclude", "upgrade"]
