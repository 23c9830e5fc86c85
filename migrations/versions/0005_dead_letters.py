"""Dead letters, and the failed attempts at records.

Revision: 0005
After: 0004
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

NAME = sa.Text(collation="C")
OPEN = "state IN ('dead', 'requested')"


def upgrade() -> None:
    """Add both tables; they are empty."""
    op.create_table(
        "dead_letters",
        sa.Column("consumer_group", NAME, nullable=False),
        sa.Column("topic", NAME, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("record_offset", sa.BigInteger, nullable=False),
        sa.Column("topic_id", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("key", sa.LargeBinary),
        sa.Column("value", sa.LargeBinary),
        sa.Column("headers", JSONB),
        sa.Column("timestamp_ms", sa.BigInteger),
        sa.Column("timestamp_type", sa.SmallInteger),
        sa.Column("error_class", sa.Text, nullable=False),
        sa.Column("sqlstate", sa.Text),
        sa.Column("table_name", sa.Text),
        sa.Column("constraint_name", sa.Text),
        sa.Column("column_name", sa.Text),
        sa.Column("error_text", sa.Text),
        sa.Column("traceback", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("times", sa.Integer, nullable=False, server_default=sa.text("1")),
        sa.Column("sequence", sa.LargeBinary),
        sa.Column("forced", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("trace_id", sa.Text),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("decided_at", sa.DateTime(timezone=True)),
        sa.Column("actor", sa.Text),
        sa.Column("reason", sa.Text),
        sa.PrimaryKeyConstraint(
            "consumer_group", "topic", "partition", "record_offset", "topic_id", name="dead_letters_pkey"
        ),
        sa.CheckConstraint(
            "state IN ('dead', 'requested', 'replayed', 'discarded', 'superseded')", name="dead_letters_state_check"
        ),
        sa.CheckConstraint("cause IN ('rejected', 'refused', 'raised', 'sequence')", name="dead_letters_cause_check"),
        sa.CheckConstraint("payload IN ('kept', 'left out', 'erased')", name="dead_letters_payload_check"),
    )
    op.create_index(
        "dead_letters_sequence_idx",
        "dead_letters",
        ["consumer_group", "sequence", "record_offset"],
        postgresql_where=sa.text(f"sequence IS NOT NULL AND {OPEN}"),
    )
    op.create_index(
        "dead_letters_requested_idx",
        "dead_letters",
        ["consumer_group", "topic", "partition", "record_offset"],
        postgresql_where=sa.text("state = 'requested'"),
    )
    op.create_index(
        "dead_letters_list_idx",
        "dead_letters",
        ["consumer_group", "state", "created_at", "topic", "partition", "record_offset"],
    )
    op.create_table(
        "failures",
        sa.Column("consumer_group", NAME, nullable=False),
        sa.Column("topic", NAME, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("record_offset", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("errors", JSONB, nullable=False),
        sa.Column("first_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.PrimaryKeyConstraint("consumer_group", "topic", "partition", "record_offset", name="failures_pkey"),
        postgresql_with={"fillfactor": 80},
    )


def downgrade() -> None:
    """Drop both. The letters' records are then in no table."""
    op.drop_table("failures")
    op.drop_table("dead_letters")
