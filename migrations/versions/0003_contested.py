"""Whether another application used the group in Kafka while the job ran: what it has committed is not adopted.

Revision: 0003
After: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; its default is not written into the rows, so that no table is rewritten."""
    op.add_column("kafka_partitions", sa.Column("contested", sa.Boolean, server_default=sa.false(), nullable=False))


def downgrade() -> None:
    """Drop it: version 0002 adopts what another application has committed, if it is larger."""
    op.drop_column("kafka_partitions", "contested")
