"""Whether the group is paused, until when, and why.

Revision: 0004
After: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; they are NULL, so no table is rewritten."""
    op.add_column("consumer_groups", sa.Column("paused_at", sa.DateTime(timezone=True)))
    op.add_column("consumer_groups", sa.Column("paused_until", sa.DateTime(timezone=True)))
    op.add_column("consumer_groups", sa.Column("pause_reason", sa.Text))


def downgrade() -> None:
    """Drop them: paused jobs go on."""
    op.drop_column("consumer_groups", "pause_reason")
    op.drop_column("consumer_groups", "paused_until")
    op.drop_column("consumer_groups", "paused_at")
