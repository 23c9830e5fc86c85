"""PostgreSQL as the store's database: the adapter, over SQLAlchemy, psycopg and Alembic."""
