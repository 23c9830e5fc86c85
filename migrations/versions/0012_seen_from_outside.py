"""The runs of a fleet's members, and those of the relay.

Revision: 0012
After: 0011
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

NAME = sa.Text(collation="C")


def upgrade() -> None:
    """Add the tables, which are empty: members and relays of earlier code have no rows there."""
    op.create_table(
        "member_runs",
        sa.Column("consumer_group", NAME, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("claim_id", sa.Uuid, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("topics", ARRAY(sa.Text), nullable=False),
        sa.Column("versions", JSONB, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("ending", sa.Text),
        sa.Column("phase", sa.Text, nullable=False, server_default=sa.text("'starting'")),
        sa.Column("phase_since", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("batch_id", sa.BigInteger),
        sa.Column("batch_offsets", sa.BigInteger),
        sa.Column("last_batch_at", sa.DateTime(timezone=True)),
        sa.Column("counters", JSONB, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("memory_bytes", sa.BigInteger),
        sa.Column("mirrored_at", sa.DateTime(timezone=True)),
        sa.Column("mirror_error", sa.Text),
        sa.Column("query_id", sa.Uuid),
        sa.Column("application_id", sa.Text),
        sa.Column("ui_url", sa.Text),
        sa.PrimaryKeyConstraint("consumer_group", "claim_id", name="member_runs_pkey"),
        sa.CheckConstraint("ending IN ('closed', 'failed', 'fenced')", name="member_runs_ending_check"),
        postgresql_with={"fillfactor": 80},
    )
    op.create_index("member_runs_epoch_idx", "member_runs", ["consumer_group", "epoch", "started_at"])
    op.create_table(
        "relay_runs",
        sa.Column("run_id", sa.Uuid, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.Column("sent_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.Text),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("ending", sa.Text),
        sa.PrimaryKeyConstraint("run_id", name="relay_runs_pkey"),
        sa.CheckConstraint("ending IN ('closed', 'failed', 'fenced')", name="relay_runs_ending_check"),
        postgresql_with={"fillfactor": 50},
    )


def downgrade() -> None:
    """Drop them. What members of fleets and relays did is then recorded nowhere."""
    op.drop_table("relay_runs")
    op.drop_table("member_runs")
