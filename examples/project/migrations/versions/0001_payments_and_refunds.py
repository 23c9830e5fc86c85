"""The tables of payments and refunds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "payments",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("payer", sa.String, nullable=False),
        sa.Column("amount", sa.Numeric(12, 2), nullable=False),
        sa.Column("paid_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "refunds",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("payer", sa.String, nullable=False),
        sa.Column("amount", sa.Numeric(12, 2), sa.CheckConstraint("amount > 0"), nullable=False),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("refunds")
    op.drop_table("payments")
