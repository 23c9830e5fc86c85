"""Large batches need no place of their own any more.

Revision: 0009
After: 0008
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# It stays if it is not empty or belongs to another role, or if another store of the database may still use it.
_DROP = """
DO $$ BEGIN
    IF (SELECT count(*) FROM pg_catalog.pg_class WHERE relname = 'offsetstore_version' AND relkind = 'r') <= 1 THEN
        DROP SCHEMA IF EXISTS offsetstore_staging;
    END IF;
EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN
    NULL;
END $$
"""

_CREATE = """
DO $$ BEGIN
    IF to_regnamespace('offsetstore_staging') IS NULL
       AND has_database_privilege(current_database(), 'CREATE') THEN
        CREATE SCHEMA offsetstore_staging;
    END IF;
END $$
"""


def upgrade() -> None:
    """Drop the schema of the staging tables, which earlier code can do without: then it stages no large batches."""
    op.execute(_DROP)


def downgrade() -> None:
    """Create it, as 0002 does; `offsetstore grants` of the earlier version grants it again."""
    op.execute(_CREATE)
