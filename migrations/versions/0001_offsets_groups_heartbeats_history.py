"""Offsets, consumer groups, heartbeats and history.

Written out rather than taken from `offsetstore.postgres.schema`: a migration says what the tables were at its time.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NAME = sa.Text(collation="C")


def _timestamp(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp())


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "kafka_partitions",
        sa.Column("consumer_group", _NAME, nullable=False),
        sa.Column("topic", _NAME, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("topic_id", sa.Text),
        sa.Column("cluster_id", sa.Text),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("claim_id", sa.Uuid, nullable=False),
        sa.Column("transaction_id", sa.Uuid),
        sa.Column("pinned", sa.Boolean, nullable=False, server_default=sa.false()),
        _timestamp("created_at"),
        _timestamp("updated_at"),
        sa.PrimaryKeyConstraint("consumer_group", "topic", "partition", name="kafka_partitions_pkey"),
        sa.CheckConstraint("partition >= 0", name="kafka_partitions_partition_check"),
        sa.CheckConstraint("next_offset >= 0", name="kafka_partitions_next_offset_check"),
        postgresql_with={"fillfactor": 80},
    )
    op.create_table(
        "consumer_groups",
        sa.Column("consumer_group", _NAME, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("claim_id", sa.Uuid, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        _timestamp("claimed_at"),
        sa.PrimaryKeyConstraint("consumer_group", name="consumer_groups_pkey"),
    )
    op.create_table(
        "heartbeats",
        sa.Column("claim_id", sa.Uuid, nullable=False),
        _timestamp("beat_at"),
        sa.PrimaryKeyConstraint("claim_id", name="heartbeats_pkey"),
    )
    op.create_table(
        "offset_history",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("consumer_group", _NAME, nullable=False),
        sa.Column("topic", _NAME),
        sa.Column("partition", sa.Integer),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("from_offset", sa.BigInteger),
        sa.Column("to_offset", sa.BigInteger),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("claim_id", sa.Uuid, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        _timestamp("at"),
        sa.PrimaryKeyConstraint("id", name="offset_history_pkey"),
    )
    op.create_index("offset_history_consumer_group_idx", "offset_history", ["consumer_group", "id"])


def downgrade() -> None:
    """Drop the tables, and the offsets with them."""
    op.drop_table("offset_history")
    op.drop_table("heartbeats")
    op.drop_table("consumer_groups")
    op.drop_table("kafka_partitions")
