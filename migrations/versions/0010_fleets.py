"""Fleets: claims that several processes share.

Revision: 0010
After: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

NAME = sa.Text(collation="C")


def upgrade() -> None:
    """Add the columns, which are NULL, so that no table is rewritten, and the table, which is empty.

    Earlier code leaves the columns as they are when it claims a group: they count only while ``fleet_id`` is the
    ``claim_id`` of the row.
    """
    op.add_column("consumer_groups", sa.Column("fleet", sa.Text))
    op.add_column("consumer_groups", sa.Column("fleet_id", sa.Uuid))
    op.create_table(
        "group_members",
        sa.Column("consumer_group", NAME, nullable=False),
        sa.Column("member_id", sa.Uuid, nullable=False),
        sa.Column("fleet_id", sa.Uuid, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("joined_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.PrimaryKeyConstraint("consumer_group", "member_id", name="group_members_pkey"),
        postgresql_with={"fillfactor": 80},
    )


def downgrade() -> None:
    """Drop them. Version 0009 takes a fleet for a job, which its claims fence."""
    op.drop_table("group_members")
    op.drop_column("consumer_groups", "fleet_id")
    op.drop_column("consumer_groups", "fleet")
