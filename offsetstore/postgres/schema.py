"""The tables, for Alembic; the statements that use them are beside the sessions and the operations.

``kafka_partitions`` has no index but its key and leaves room in its pages, so that an advance is a HOT update: it
touches no index. Text keys collate ``"C"``, so that locks are taken in the same order under every locale.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    false,
    func,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

HEAD = "0012"
"""The Alembic revision that this version works with.

Its number says what it does to earlier code (decision 0056). One that *expands* only adds what earlier code can do
without, and counts on: 0012. One that *contracts*, and takes away or changes what earlier code needs, begins another
series: 1.0013; the next one that expands is then 1.0014. Code runs on its own revision and on later ones of its series.
"""

VERSION_TABLE = "offsetstore_version"
"""Our own version table, so that an application's Alembic and ours can share a database."""

INDEXED = 40
"""Characters of an error's names that the index holds: an entry has at most 2,704 bytes, and every letter must fit."""

metadata = MetaData()


def quoted(identifier: str) -> str:
    """Quote any name for SQL; unlike SQLAlchemy, without doubling percent signs."""
    return '"' + identifier.replace('"', '""') + '"'


_NAME = Text(collation="C")


def _timestamp(name: str) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp())


kafka_partitions = Table(
    "kafka_partitions",
    metadata,
    Column("consumer_group", _NAME, nullable=False),
    Column("topic", _NAME, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("metadata", Text),
    Column("topic_id", Text),
    Column("cluster_id", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("claim_id", Uuid, nullable=False),
    # Each advance writes a new one, by which a COMMIT without an answer is looked up (decision 0005).
    Column("transaction_id", Uuid),
    Column("pinned", Boolean, nullable=False, server_default=false()),
    _timestamp("created_at"),
    _timestamp("updated_at"),
    Column("pinned_epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("contested", Boolean, nullable=False, server_default=false()),
    # The pair shows whether the log was truncated; what a claim saw of a loss stays after the log has grown again
    # (decision 0049).
    Column("epoch_offset", BigInteger),
    Column("leader_epoch", Integer),
    Column("suspect", Text),
    Column("suspect_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("consumer_group", "topic", "partition", name="kafka_partitions_pkey"),
    CheckConstraint("partition >= 0", name="kafka_partitions_partition_check"),
    CheckConstraint("next_offset >= 0", name="kafka_partitions_next_offset_check"),
    postgresql_with={"fillfactor": 80},
)

consumer_groups = Table(
    "consumer_groups",
    metadata,
    Column("consumer_group", _NAME, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("claim_id", Uuid, nullable=False),
    Column("owner", Text, nullable=False),
    _timestamp("claimed_at"),
    Column("paused_at", DateTime(timezone=True)),
    Column("paused_until", DateTime(timezone=True)),
    Column("pause_reason", Text),
    Column("fleet", Text),
    Column("fleet_id", Uuid),
    PrimaryKeyConstraint("consumer_group", name="consumer_groups_pkey"),
)
"""``fleet`` says whose claim it is if several processes share it, and counts only while ``fleet_id`` is ``claim_id``:
earlier code, which knows neither, claims the group and leaves them."""

group_members = Table(
    "group_members",
    metadata,
    Column("consumer_group", _NAME, nullable=False),
    Column("member_id", Uuid, nullable=False),
    Column("fleet_id", Uuid, nullable=False),
    Column("owner", Text, nullable=False),
    _timestamp("joined_at"),
    _timestamp("beat_at"),
    PrimaryKeyConstraint("consumer_group", "member_id", name="group_members_pkey"),
    postgresql_with={"fillfactor": 80},
)
"""Who shares a group's claim. A member has the partitions whose ``claim_id`` is its id."""

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("claim_id", Uuid, nullable=False),
    _timestamp("beat_at"),
    PrimaryKeyConstraint("claim_id", name="heartbeats_pkey"),
)

offset_history = Table(
    "offset_history",
    metadata,
    Column("id", BigInteger, Identity(always=True), nullable=False),
    Column("consumer_group", _NAME, nullable=False),
    Column("topic", _NAME),
    Column("partition", Integer),
    Column("event", Text, nullable=False),
    Column("from_offset", BigInteger),
    Column("to_offset", BigInteger),
    Column("epoch", BigInteger, nullable=False),
    Column("claim_id", Uuid, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    _timestamp("at"),
    # ``actor`` is what a client says, this what the database knows: jobs may not write it (decision 0041).
    Column("db_role", Text, server_default=text("SESSION_USER")),
    PrimaryKeyConstraint("id", name="offset_history_pkey"),
    Index("offset_history_consumer_group_idx", "consumer_group", "id"),
)

batch_marks = Table(
    "batch_marks",
    metadata,
    Column("consumer_group", _NAME, nullable=False),
    Column("query_id", Uuid, nullable=False),
    Column("batch_id", BigInteger, nullable=False),
    _timestamp("updated_at"),
    PrimaryKeyConstraint("consumer_group", "query_id", name="batch_marks_pkey"),
    postgresql_with={"fillfactor": 80},
)

store_identity = Table(
    "store_identity",
    metadata,
    Column("singleton", Boolean, nullable=False, server_default=true()),
    Column("store_id", Uuid, nullable=False),
    # The server's system identifier and the database's oid: both differ in a copy made row by row (decision 0050).
    Column("home", Text),
    PrimaryKeyConstraint("singleton", name="store_identity_pkey"),
    CheckConstraint("singleton", name="store_identity_singleton_check"),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("consumer_group", _NAME, nullable=False),
    Column("topic", _NAME, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("record_offset", BigInteger, nullable=False),
    Column("topic_id", Text, nullable=False, server_default=text("''")),
    Column("state", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("key", LargeBinary),
    Column("value", LargeBinary),
    Column("headers", JSONB),
    Column("timestamp_ms", BigInteger),
    Column("timestamp_type", SmallInteger),
    Column("error_class", Text, nullable=False),
    Column("sqlstate", Text),
    Column("table_name", Text),
    Column("constraint_name", Text),
    Column("column_name", Text),
    Column("error_text", Text),
    Column("traceback", Text),
    Column("attempts", Integer, nullable=False),
    Column("times", Integer, nullable=False, server_default=text("1")),
    Column("sequence", LargeBinary),
    Column("forced", Boolean, nullable=False, server_default=false()),
    Column("trace_id", Text),
    _timestamp("created_at"),
    Column("decided_at", DateTime(timezone=True)),
    Column("actor", Text),
    Column("reason", Text),
    PrimaryKeyConstraint("consumer_group", "topic", "partition", "record_offset", "topic_id", name="dead_letters_pkey"),
    CheckConstraint(
        "state IN ('dead', 'requested', 'replayed', 'discarded', 'superseded')", name="dead_letters_state_check"
    ),
    CheckConstraint("cause IN ('rejected', 'refused', 'raised', 'sequence')", name="dead_letters_cause_check"),
    CheckConstraint("payload IN ('kept', 'left out', 'erased')", name="dead_letters_payload_check"),
    Index(
        "dead_letters_sequence_idx",
        "consumer_group",
        "sequence",
        "record_offset",
        postgresql_where=text("sequence IS NOT NULL AND state IN ('dead', 'requested')"),
    ),
    Index(
        "dead_letters_requested_idx",
        "consumer_group",
        "topic",
        "partition",
        "record_offset",
        postgresql_where=text("state = 'requested'"),
    ),
    Index("dead_letters_list_idx", "consumer_group", "state", "created_at", "topic", "partition", "record_offset"),
    # For decisions about all letters of one error; whole names might not fit into an entry (decision 0036).
    Index(
        "dead_letters_error_idx",
        "consumer_group",
        *(
            text(f"left(coalesce({name}, ''), {INDEXED})")
            for name in ("constraint_name", "column_name", "table_name", "sqlstate", "error_class")
        ),
        "payload",
    ),
)
"""Records that could not be written; ``payload`` tells a missing key or value from one that is not kept."""

failures = Table(
    "failures",
    metadata,
    Column("consumer_group", _NAME, nullable=False),
    Column("topic", _NAME, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("record_offset", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("errors", JSONB, nullable=False),
    _timestamp("first_at"),
    _timestamp("last_at"),
    PrimaryKeyConstraint("consumer_group", "topic", "partition", "record_offset", name="failures_pkey"),
    postgresql_with={"fillfactor": 80},
)


def _of_runs() -> list[Column[Any]]:
    """The columns of both tables of runs, in the same order."""
    return [
        Column("consumer_group", _NAME, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("claim_id", Uuid, nullable=False),
        Column("owner", Text, nullable=False),
        Column("topics", ARRAY(Text), nullable=False),
        Column("versions", JSONB, nullable=False),
        _timestamp("started_at"),
        _timestamp("seen_at"),
        Column("ended_at", DateTime(timezone=True)),
        Column("ending", Text),
        Column("phase", Text, nullable=False, server_default=text("'starting'")),
        _timestamp("phase_since"),
        Column("batch_id", BigInteger),
        Column("batch_offsets", BigInteger),
        Column("last_batch_at", DateTime(timezone=True)),
        Column("counters", JSONB, nullable=False, server_default=text("'{}'")),
        Column("memory_bytes", BigInteger),
        Column("mirrored_at", DateTime(timezone=True)),
        Column("mirror_error", Text),
        Column("query_id", Uuid),
        Column("application_id", Text),
        Column("ui_url", Text),
    ]


job_runs = Table(
    "job_runs",
    metadata,
    *_of_runs(),
    # An epoch, unlike a claim's id, orders the runs: one index serves the list and the trimming (decision 0041).
    PrimaryKeyConstraint("consumer_group", "epoch", name="job_runs_pkey"),
    CheckConstraint("ending IN ('closed', 'failed', 'fenced')", name="job_runs_ending_check"),
    postgresql_with={"fillfactor": 80},
)
"""A row for each claim; only its own job writes it, so that no claim waits for the job before it."""

member_runs = Table(
    "member_runs",
    metadata,
    *_of_runs(),
    PrimaryKeyConstraint("consumer_group", "claim_id", name="member_runs_pkey"),
    CheckConstraint("ending IN ('closed', 'failed', 'fenced')", name="member_runs_ending_check"),
    Index("member_runs_epoch_idx", "consumer_group", "epoch", "started_at"),
    postgresql_with={"fillfactor": 80},
)
"""The same for each member of a fleet. Members share an epoch: ``claim_id`` is the member's id."""

job_errors = Table(
    "job_errors",
    metadata,
    Column("id", BigInteger, Identity(always=True), nullable=False),
    Column("consumer_group", _NAME, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("source", Text, nullable=False),
    Column("error_class", Text, nullable=False),
    Column("error_text", Text),
    Column("sqlstate", Text),
    Column("topic", _NAME),
    Column("partition", Integer),
    Column("batch_id", BigInteger),
    Column("ranges", Text),
    Column("times", BigInteger, nullable=False),
    _timestamp("at"),
    PrimaryKeyConstraint("id", name="job_errors_pkey"),
    Index("job_errors_consumer_group_idx", "consumer_group", "id"),
)
"""Errors of jobs. ``error_text`` is kept of our own errors alone: others may quote the values of rows."""

samples = Table(
    "samples",
    metadata,
    Column("consumer_group", _NAME, nullable=False),
    Column("resolution", Integer, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("stored", BigInteger, nullable=False),
    Column("log_end", BigInteger),
    Column("lag", BigInteger),
    Column("lag_seconds", Double),
    Column("headroom", BigInteger),
    Column("batches", BigInteger),
    Column("batch_seconds", Double),
    Column("rows", BigInteger),
    Column("memory", BigInteger),
    Column("epoch", BigInteger, nullable=False),
    PrimaryKeyConstraint("consumer_group", "resolution", "slot", name="samples_pkey"),
    postgresql_with={"fillfactor": 50},
)
"""Rings of slots, see `offsetstore.operations.samples`. A page has room for a second version of each of its rows: one
statement writes a slot of all groups, and these are on the same pages."""

outbox = Table(
    "outbox",
    metadata,
    Column("id", BigInteger, Identity(always=True, cache=1), nullable=False),
    Column("consumer_group", _NAME, nullable=False),
    Column("topic", _NAME, nullable=False),
    Column("key", LargeBinary),
    Column("value", LargeBinary),
    Column("headers", JSONB),
    _timestamp("created_at"),
    PrimaryKeyConstraint("id", name="outbox_pkey"),
)
"""Records for Kafka, in the order of their ids. Ids must be taken one at a time: with a cache, a session could give a
later transaction a lower id, and a key's records would be in another order than its commits."""

outbox_refused = Table(
    "outbox_refused",
    metadata,
    Column("id", BigInteger, autoincrement=False, nullable=False),
    Column("consumer_group", _NAME, nullable=False),
    Column("topic", _NAME, nullable=False),
    Column("key", LargeBinary),
    Column("value", LargeBinary),
    Column("headers", JSONB),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("error", Text, nullable=False),
    _timestamp("refused_at"),
    PrimaryKeyConstraint("id", name="outbox_refused_pkey"),
)
"""Rows that Kafka refuses, set aside until a person decides."""

outbox_relays = Table(
    "outbox_relays",
    metadata,
    Column("shard", Integer, autoincrement=False, nullable=False),
    Column("token", Uuid, nullable=False),
    Column("owner", Text, nullable=False),
    _timestamp("taken_at"),
    Column("batch", BigInteger),
    Column("ids", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    Column("cluster_id", Text),
    Column("word", Text),
    Column("word_before", Text),
    Column("sent", BigInteger, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("shard", name="outbox_relays_pkey"),
    postgresql_with={"fillfactor": 50},
)
"""The relay that may write, and its last batch: the number, and the ids of its rows until they are known to be in
Kafka. There is no number before the first start. ``word`` is in Kafka too, with the number.
``sent`` counts all rows that relays have sent and deleted."""

relay_runs = Table(
    "relay_runs",
    metadata,
    Column("run_id", Uuid, nullable=False),
    Column("owner", Text, nullable=False),
    _timestamp("started_at"),
    _timestamp("seen_at"),
    Column("sent_at", DateTime(timezone=True)),
    Column("error", Text),
    Column("ended_at", DateTime(timezone=True)),
    Column("ending", Text),
    PrimaryKeyConstraint("run_id", name="relay_runs_pkey"),
    CheckConstraint("ending IN ('closed', 'failed', 'fenced')", name="relay_runs_ending_check"),
    postgresql_with={"fillfactor": 50},
)
"""A row for each start of a relay, written by that relay alone; not beside its token, whose row its batches lock."""
