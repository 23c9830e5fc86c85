"""The outbox: records for Kafka, rows that Kafka refuses, and the relay.

Revision: 0011
After: 0010
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

NAME = sa.Text(collation="C")


def upgrade() -> None:
    """Add the tables, which are empty."""
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True, cache=1), nullable=False),
        sa.Column("consumer_group", NAME, nullable=False),
        sa.Column("topic", NAME, nullable=False),
        sa.Column("key", sa.LargeBinary),
        sa.Column("value", sa.LargeBinary),
        sa.Column("headers", JSONB),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.PrimaryKeyConstraint("id", name="outbox_pkey"),
    )
    op.create_table(
        "outbox_refused",
        sa.Column("id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("consumer_group", NAME, nullable=False),
        sa.Column("topic", NAME, nullable=False),
        sa.Column("key", sa.LargeBinary),
        sa.Column("value", sa.LargeBinary),
        sa.Column("headers", JSONB),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("refused_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.PrimaryKeyConstraint("id", name="outbox_refused_pkey"),
    )
    op.create_table(
        "outbox_relays",
        sa.Column("shard", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("token", sa.Uuid, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("batch", sa.BigInteger),
        sa.Column("ids", ARRAY(sa.BigInteger), nullable=False, server_default=sa.text("'{}'")),
        sa.Column("cluster_id", sa.Text),
        sa.Column("word", sa.Text),
        sa.Column("word_before", sa.Text),
        sa.Column("sent", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("shard", name="outbox_relays_pkey"),
        postgresql_with={"fillfactor": 50},
    )
    # To compress ten thousand ids, which hardly get smaller, took nine tenths of the statement that writes them.
    op.execute("ALTER TABLE outbox_relays ALTER COLUMN ids SET STORAGE EXTERNAL")


def downgrade() -> None:
    """Drop them. What is in the outbox then never gets into Kafka."""
    op.drop_table("outbox_relays")
    op.drop_table("outbox_refused")
    op.drop_table("outbox")
