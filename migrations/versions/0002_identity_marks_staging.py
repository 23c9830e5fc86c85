"""Who this store is, when a row was pinned, the last batch of each stateful query, and a place for large batches.

Revision: 0002
After: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# The same after the tables were dropped and made again, so that a lost store recognises its own copies in Kafka; and
# kept from then on, through a pg_upgrade or a restore into another cluster, which have another system identifier. Where
# the role may not call the function, which is tried, the id is drawn.
_IDENTITY = """
DO $$
DECLARE
    id uuid := gen_random_uuid();
BEGIN
    BEGIN
        id := CAST(substr(encode(sha256(convert_to(
            concat_ws(':', 'offsetstore',
                      (SELECT system_identifier FROM pg_catalog.pg_control_system()),
                      (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()),
                      current_schema()),
            'UTF8')), 'hex'), 1, 32) AS uuid);
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    INSERT INTO store_identity (store_id) VALUES (id);
END $$
"""

# A role that may not make schemas gets everything but large batches; the sink then says what is missing.
_STAGING = """
DO $$ BEGIN
    IF to_regnamespace('offsetstore_staging') IS NULL
       AND has_database_privilege(current_database(), 'CREATE') THEN
        CREATE SCHEMA offsetstore_staging;
    END IF;
END $$
"""


def upgrade() -> None:
    """Create the tables, and the schema of the staging tables unless another store of this database has it."""
    op.create_table(
        "store_identity",
        sa.Column("singleton", sa.Boolean, server_default=sa.true(), nullable=False),
        sa.Column("store_id", sa.Uuid, nullable=False),
        sa.PrimaryKeyConstraint("singleton", name="store_identity_pkey"),
        sa.CheckConstraint("singleton", name="store_identity_singleton_check"),
    )
    op.execute(_IDENTITY)
    # Rows that are pinned already were pinned before there were copies in Kafka.
    op.add_column(
        "kafka_partitions", sa.Column("pinned_epoch", sa.BigInteger, server_default=sa.text("0"), nullable=False)
    )
    op.create_table(
        "batch_marks",
        sa.Column("consumer_group", sa.Text(collation="C"), nullable=False),
        sa.Column("query_id", sa.Uuid, nullable=False),
        sa.Column("batch_id", sa.BigInteger, nullable=False),
        sa.Column(
            "updated_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("consumer_group", "query_id", name="batch_marks_pkey"),
        postgresql_with={"fillfactor": 80},
    )
    op.execute(_STAGING)


def downgrade() -> None:
    """Drop them; the schema stays where another store of this database, or a large batch, still has tables in it."""
    op.drop_table("batch_marks")
    op.drop_column("kafka_partitions", "pinned_epoch")
    op.drop_table("store_identity")
    op.execute("""
        DO $$ BEGIN
            DROP SCHEMA IF EXISTS offsetstore_staging;
        EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN
            NULL;
        END $$
    """)
