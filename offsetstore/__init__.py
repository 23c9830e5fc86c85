"""Exactly-once from Kafka into a SQL database, on Spark: results and offsets in one database transaction.

Importing this loads neither pyspark nor confluent_kafka: `Broker`, the sink and its writers are loaded at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsetstore import errors
from offsetstore.errors import exit_code
from offsetstore.lazy import load
from offsetstore.offset_store import OffsetStore, resolve_starting_offsets
from offsetstore.offsets import OffsetRange, Pause, StoredOffset, Token, TopicPartition, Watermarks
from offsetstore.operations.group_state import GroupState, Lag, PartitionState, TopicState
from offsetstore.operations.letters import LetterPage, LettersDecided, LettersPruned
from offsetstore.operations.names import DeletedGroup, NewName
from offsetstore.operations.outbox import RefusedDecided, RefusedRow
from offsetstore.operations.pauses import PauseDecided
from offsetstore.operations.people import ListedGroup
from offsetstore.operations.resets import Reset, ShiftBy
from offsetstore.operations.stored_letters import ErrorGroup, LetterFilter
from offsetstore.processing.between import Flush, Tick
from offsetstore.processing.dead_letters import DeadLetter, DeadLetters, Failure, Retry, Skip, Stop
from offsetstore.processing.handling import Handler, Record
from offsetstore.processing.plan import BatchInfo
from offsetstore.protocol.context import current_headers
from offsetstore.protocol.letters import Letter, LetterError, LetterKey, Payload
from offsetstore.protocol.metadata import KEEP, Metadata
from offsetstore.protocol.outbox import OutboxRecord, OutboxState
from offsetstore.protocol.ports import Work
from offsetstore.protocol.replay import Decision, Outcome
from offsetstore.protocol.retries import Retries, Timeouts
from offsetstore.protocol.starting import StartingOffsets, StartPolicy
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction

if TYPE_CHECKING:
    from offsetstore.kafka.broker import Broker
    from offsetstore.relay import Relay
    from offsetstore.spark.sink import TransactionalSink
    from offsetstore.writers import Append, Execute, Outbox, Upsert

__all__ = [
    "KEEP",
    "Append",
    "BatchInfo",
    "Broker",
    "Claim",
    "DeadLetter",
    "DeadLetters",
    "Decision",
    "DeletedGroup",
    "ErrorGroup",
    "Execute",
    "Failure",
    "Flush",
    "GroupState",
    "Handler",
    "Lag",
    "Letter",
    "LetterError",
    "LetterFilter",
    "LetterKey",
    "LetterPage",
    "LettersDecided",
    "LettersPruned",
    "ListedGroup",
    "Metadata",
    "NewName",
    "OffsetRange",
    "OffsetStore",
    "Outbox",
    "OutboxRecord",
    "OutboxState",
    "Outcome",
    "PartitionState",
    "Pause",
    "PauseDecided",
    "Payload",
    "Record",
    "RefusedDecided",
    "RefusedRow",
    "Relay",
    "Reset",
    "Retries",
    "Retry",
    "ShiftBy",
    "Skip",
    "StartPolicy",
    "StartingOffsets",
    "Stop",
    "StoredOffset",
    "Tick",
    "Timeouts",
    "Token",
    "TopicPartition",
    "TopicState",
    "Transaction",
    "TransactionalSink",
    "Upsert",
    "Watermarks",
    "Work",
    "current_headers",
    "errors",
    "exit_code",
    "resolve_starting_offsets",
]

_LAZY = {
    "Broker": ("offsetstore.kafka.broker", "kafka"),
    "TransactionalSink": ("offsetstore.spark.sink", "spark"),
    "Append": ("offsetstore.writers", "consumer or spark"),
    "Execute": ("offsetstore.writers", "consumer or spark"),
    "Outbox": ("offsetstore.writers", "consumer or spark"),
    "Relay": ("offsetstore.relay", "kafka"),
    "Upsert": ("offsetstore.writers", "consumer or spark"),
}


def __getattr__(name: str) -> Any:
    return load(__name__, name, _LAZY)
