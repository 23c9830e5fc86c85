"""The runs of a job, their errors, and samples of groups; which database role wrote a line of the history.

Dead letters are found by their errors.

Revision: 0006
After: 0005
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

NAME = sa.Text(collation="C")


def upgrade() -> None:
    """Add the tables, which are empty, the column, which is NULL in the lines that are there, and the index."""
    op.create_table(
        "job_runs",
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
        sa.PrimaryKeyConstraint("consumer_group", "epoch", name="job_runs_pkey"),
        sa.CheckConstraint("ending IN ('closed', 'failed', 'fenced')", name="job_runs_ending_check"),
        postgresql_with={"fillfactor": 80},
    )
    op.create_table(
        "job_errors",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("consumer_group", NAME, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("error_class", sa.Text, nullable=False),
        sa.Column("error_text", sa.Text),
        sa.Column("sqlstate", sa.Text),
        sa.Column("topic", NAME),
        sa.Column("partition", sa.Integer),
        sa.Column("batch_id", sa.BigInteger),
        sa.Column("ranges", sa.Text),
        sa.Column("times", sa.BigInteger, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.clock_timestamp()),
        sa.PrimaryKeyConstraint("id", name="job_errors_pkey"),
    )
    op.create_index("job_errors_consumer_group_idx", "job_errors", ["consumer_group", "id"])
    op.create_table(
        "samples",
        sa.Column("consumer_group", NAME, nullable=False),
        sa.Column("resolution", sa.Integer, nullable=False),
        sa.Column("slot", sa.Integer, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stored", sa.BigInteger, nullable=False),
        sa.Column("log_end", sa.BigInteger),
        sa.Column("lag", sa.BigInteger),
        sa.Column("lag_seconds", sa.Double),
        sa.Column("headroom", sa.BigInteger),
        sa.Column("batches", sa.BigInteger),
        sa.Column("batch_seconds", sa.Double),
        sa.Column("rows", sa.BigInteger),
        sa.Column("memory", sa.BigInteger),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("consumer_group", "resolution", "slot", name="samples_pkey"),
        postgresql_with={"fillfactor": 50},
    )
    # The default comes second, so that the lines that are there stay NULL: which role wrote them is not known.
    op.add_column("offset_history", sa.Column("db_role", sa.Text))
    op.alter_column("offset_history", "db_role", server_default=sa.text("SESSION_USER"))
    # Only the beginnings: an entry has 2,704 bytes at most, and a letter must be writable whatever its error says.
    of_errors = ("constraint_name", "column_name", "table_name", "sqlstate", "error_class")
    beginnings = [sa.text(f"left(coalesce({name}, ''), 40)") for name in of_errors]
    op.create_index("dead_letters_error_idx", "dead_letters", ["consumer_group", *beginnings, "payload"])


def downgrade() -> None:
    """Drop them. What past runs did and which role decided are then recorded nowhere."""
    op.drop_index("dead_letters_error_idx", table_name="dead_letters")
    op.drop_column("offset_history", "db_role")
    op.drop_table("samples")
    op.drop_table("job_errors")
    op.drop_table("job_runs")
