"""What tells a log that lost records: the leader epoch beside a stored offset, and evidence of loss.

Revision: 0007
After: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, which are NULL in the rows that are there: no table is rewritten."""
    op.add_column("kafka_partitions", sa.Column("epoch_offset", sa.BigInteger))
    op.add_column("kafka_partitions", sa.Column("leader_epoch", sa.Integer))
    op.add_column("kafka_partitions", sa.Column("suspect", sa.Text))
    op.add_column("kafka_partitions", sa.Column("suspect_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    """Drop them: version 0006 starts in a log that is known to have lost records."""
    op.drop_column("kafka_partitions", "suspect_at")
    op.drop_column("kafka_partitions", "suspect")
    op.drop_column("kafka_partitions", "leader_epoch")
    op.drop_column("kafka_partitions", "epoch_offset")
