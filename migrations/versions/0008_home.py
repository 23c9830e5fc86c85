"""The database that the store's offsets belong to, which tells a copy of it.

Revision: 0008
After: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# NULL where the role may not call the function, which is tried: the store's copies are then not told.
_HOME = """
DO $$
DECLARE
    here text;
BEGIN
    BEGIN
        here := (SELECT CAST(c.system_identifier AS text) || ':' || CAST(d.oid AS text)
                 FROM pg_catalog.pg_control_system() AS c, pg_catalog.pg_database AS d
                 WHERE d.datname = current_database());
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    UPDATE store_identity SET home = here;
END $$
"""


def upgrade() -> None:
    """Add the column, and take this database for the home."""
    op.add_column("store_identity", sa.Column("home", sa.Text))
    op.execute(_HOME)


def downgrade() -> None:
    """Drop it: version 0007 can't tell a copy of the database."""
    op.drop_column("store_identity", "home")
