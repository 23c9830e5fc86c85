"""All groups' lag and state for Prometheus, from the database and Kafka; no job needs a port. See docs/exporter.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from offsetstore.errors import BrokerError, ConfigurationError, OffsetStoreError
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.group_state import Lag
from offsetstore.operations.group_status import standing, state_of
from offsetstore.protocol.arguments import check_seconds, check_whole
from offsetstore.protocol.letters import OPEN
from offsetstore.protocol.outbox import OutboxState
from offsetstore.protocol.ports import BrokerOverview
from offsetstore.runtime.functions import without_frames
from offsetstore.text import logger

_log = logger(__name__)

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

MAX_PARTITION_SERIES: Final = 50_000


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric: its name, what it is, and the names of its labels."""

    name: str
    what: str
    labels: tuple[str, ...] = ()


_TOPIC = ("topic",)
_GROUP = ("consumergroup",)
_GROUP_TOPIC = ("consumergroup", "topic")

# kafka_exporter's names and labels.
PARTITIONS: Final = Gauge("kafka_topic_partitions", "The topic's partitions.", _TOPIC)
END: Final = Gauge("kafka_topic_partition_current_offset", "The partition's high watermark.", ("topic", "partition"))
BEGINNING: Final = Gauge("kafka_topic_partition_oldest_offset", "The partition's first offset.", ("topic", "partition"))
STORED: Final = Gauge(
    "kafka_consumergroup_current_offset", "The stored next offset.", ("consumergroup", "topic", "partition")
)
RECORDS: Final = Gauge(
    "kafka_consumergroup_lag",
    "Offsets from the stored one to the high watermark.",
    ("consumergroup", "topic", "partition"),
)
RECORDS_SUM: Final = Gauge("kafka_consumergroup_lag_sum", "The partitions' lags together.", _GROUP_TOPIC)

# Our own.
TOPIC_UP: Final = Gauge("offsetstore_topic_up", "1 if Kafka returned the topic and all its partitions.", _TOPIC)
OPEN_TRANSACTIONS: Final = Gauge(
    "offsetstore_topic_open_transaction_offsets", "Offsets from last stable offsets to high watermarks.", _TOPIC
)
SECONDS: Final = Gauge(
    "offsetstore_group_lag_seconds", "The age of the oldest unread record, 0 if all are read.", _GROUP_TOPIC
)
KNOWN: Final = Gauge(
    "offsetstore_group_lag_known", "1 if the lag in records is known, 0 if Kafka answered without it.", _GROUP_TOPIC
)
HEADROOM: Final = Gauge(
    "offsetstore_group_headroom_offsets", "Offsets that retention can remove before an unread one.", _GROUP_TOPIC
)
ADVANCED: Final = Gauge(
    "offsetstore_group_last_advance_timestamp_seconds", "When a stored offset last changed.", _GROUP
)
MIRROR: Final = Gauge(
    "offsetstore_group_mirror_lag_offsets", "Offsets by which the copies in Kafka are behind.", _GROUP
)
# Not kafka_exporter's count: only whether there are any can be asked for safely (decision 0037).
MEMBERS: Final = Gauge("offsetstore_group_has_kafka_members", "1 if a consumer has joined the group in Kafka.", _GROUP)
LIVE: Final = Gauge("offsetstore_group_live", "1 if a job owns the group and sends heartbeats.", _GROUP)
FLEET: Final = Gauge(
    "offsetstore_group_members", "Processes of the fleet that has the group and send heartbeats.", _GROUP
)
STATE: Final = Gauge(
    "offsetstore_group_state",
    "1, with the group's state: live, paused, stalled, silent, ended, failed or fenced.",
    ("consumergroup", "state"),
)
PAUSED: Final = Gauge("offsetstore_group_paused", "1 if the group is paused.", _GROUP)
EPOCH: Final = Gauge("offsetstore_group_claim_epoch", "The epoch of the last claim.", _GROUP)
HEARTBEAT: Final = Gauge(
    "offsetstore_group_heartbeat_age_seconds", "Since the last heartbeat, unless the job has left.", _GROUP
)
BATCH: Final = Gauge(
    "offsetstore_group_batch_started_timestamp_seconds", "When the batch in flight began, 0 if there is none.", _GROUP
)
UNREAD: Final = Gauge(
    "offsetstore_group_unread_partitions", "Partitions of the group's topics without a stored offset.", _GROUP
)
BEYOND: Final = Gauge(
    "offsetstore_group_beyond_end_offsets", "Offsets by which stored ones are beyond the logs' ends.", _GROUP_TOPIC
)
STANDING: Final = Gauge(
    "offsetstore_group_standing_partitions",
    "Partitions that have stood for 15 minutes, with unread records, while others advanced.",
    _GROUP,
)
SUSPECT: Final = Gauge(
    "offsetstore_group_suspect_partitions", "Partitions whose log is known to have lost records.", _GROUP
)
PINNED: Final = Gauge("offsetstore_group_pinned_partitions", "Partitions that a decision has set.", _GROUP)
LETTERS: Final = Gauge(
    "offsetstore_group_dead_letters", "Dead letters that are open, by state.", ("consumergroup", "state")
)
OUTBOX_ROWS: Final = Gauge("offsetstore_outbox_rows", "Rows not known to be in Kafka, of the first 100,000.", _GROUP)
OUTBOX_AGE: Final = Gauge("offsetstore_outbox_oldest_seconds", "The age of the oldest of these, 0 without any.", _GROUP)
OUTBOX_FIRST: Final = Gauge("offsetstore_outbox_first_row", "The id of the first of these, 0 without any.", _GROUP)
OUTBOX_REFUSED: Final = Gauge("offsetstore_outbox_refused_rows", "Rows that Kafka refuses.", _GROUP)
OUTBOX_SENT: Final = Gauge("offsetstore_outbox_sent_rows", "Rows that relays have sent in all; it only grows.")
RELAY: Final = Gauge(
    "offsetstore_relay_state",
    "1, with the relay's state: live, stalled, silent, ended, failed, fenced, unknown, or none if rows wait.",
    ("state",),
)
OLDEST_TRANSACTION: Final = Gauge(
    "offsetstore_oldest_transaction_seconds", "How long the database's oldest open transaction has run."
)
SKEW: Final = Gauge("offsetstore_database_clock_skew_seconds", "How far the database's clock is ahead of this one's.")
UP: Final = Gauge("offsetstore_exporter_up", "1 if the target answered the last refresh.", ("target",))
DURATION: Final = Gauge("offsetstore_exporter_refresh_duration_seconds", "How long the last refresh took.")
REFRESHED: Final = Gauge("offsetstore_exporter_last_refresh_timestamp_seconds", "When the last refresh ended.")
LEFT_OUT: Final = Gauge(
    "offsetstore_exporter_partition_series_left_out",
    "Per-partition series that were omitted because there are too many.",
)


class Exposition:
    """The samples of one scrape, by metric, in Prometheus' text format: thirty times as fast as prometheus_client's."""

    def __init__(self) -> None:
        self._samples: dict[Gauge, list[str]] = {}

    def add(self, gauge: Gauge, value: float | None, *labels: str) -> None:
        """Add a sample, unless its value is ``None``. ``labels`` are the values of the gauge's labels, in order."""
        if value is None:
            return
        pairs = ",".join([f'{name}="{_escaped(label)}"' for name, label in zip(gauge.labels, labels, strict=True)])
        number = repr(value) if isinstance(value, float) else str(int(value))
        self._samples.setdefault(gauge, []).append(
            f"{gauge.name}{{{pairs}}} {number}\n" if pairs else f"{gauge.name} {number}\n"
        )

    def text(self) -> bytes:
        """Return the text, with the samples of each metric together, as the format requires."""
        parts: list[str] = []
        for gauge, samples in self._samples.items():
            parts += [f"# HELP {gauge.name} {gauge.what}\n# TYPE {gauge.name} gauge\n", *samples]
        return "".join(parts).encode(errors="replace")


# Bounded, since names come and go.
@lru_cache(1 << 16)
def _escaped(label: str) -> str:
    return label.translate(_ESCAPES)


class Exporter:
    """Reads the database and Kafka at intervals, and keeps the text that a scrape gets.

    What could not be read in the last refresh has no series: an old number would look like a new one.

    :param connect: connects to the store. It is called until it succeeds; the exporter closes the store.
    :param broker: asked for log ends, committed offsets and members. It is left open.
    :param kafka_groups: Kafka's names of groups that have a different one there, by the name in the store.
    :param max_partition_series: above this number, all per-partition series are omitted.
    """

    def __init__(
        self,
        connect: Callable[[], OffsetStore],
        broker: BrokerOverview,
        *,
        kafka_groups: Mapping[str, str] | None = None,
        max_partition_series: int = MAX_PARTITION_SERIES,
    ) -> None:
        self.text = b""
        """What a scrape gets; empty before the first refresh."""
        self._connect = connect
        self._broker = broker
        self._kafka_groups = kafka_groups or {}
        check_whole("max_partition_series", max_partition_series, "series")
        self._max_partition_series = max_partition_series
        self._store: OffsetStore | None = None
        self._troubles: dict[str, str] = {}

    def run(self, interval: float, stop: threading.Event) -> None:
        """Refresh every ``interval`` seconds until ``stop`` is set. No error ends it; they are logged."""
        check_seconds("interval", interval)
        while not stop.is_set():
            began = time.monotonic()
            try:
                self.refresh()
            except Exception as error:  # noqa: BLE001 - it must go on, and an unknown error's text may hold values
                # Its frames would keep what the refresh has read until the next garbage collection (decision 0100).
                self._tell("refresh", type(without_frames(error)).__name__)
                self._write(Exposition(), began, is_store_up=False, is_kafka_up=False)
            else:
                self._tell("refresh", None)
            stop.wait(max(0.0, interval - (time.monotonic() - began)))

    def refresh(self) -> None:
        """Read the database, then Kafka, and write `text`.

        :raises ConfigurationError: a setting is invalid.
        """
        began, page = time.monotonic(), Exposition()
        lag = self._read_lag()
        if lag is None:
            is_kafka_up = self._asks_kafka()
        else:
            is_kafka_up = lag.kafka is not None and lag.broker_error is None
            self._tell("Kafka", None if lag.broker_error is None else lag.broker_error.what)
            _add_store(page, lag)
            _add_groups(page, lag)
            _add_outbox(page, lag)
            _add_topics(page, lag)
            self._add_partitions(page, lag)
        self._write(page, began, is_store_up=lag is not None, is_kafka_up=is_kafka_up)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _write(self, page: Exposition, began: float, *, is_store_up: bool, is_kafka_up: bool) -> None:
        page.add(UP, is_store_up, "database")
        page.add(UP, is_kafka_up, "kafka")
        page.add(DURATION, time.monotonic() - began)
        page.add(REFRESHED, time.time())
        self.text = page.text()

    def _read_lag(self) -> Lag | None:
        try:
            if self._store is None:
                self._store = self._connect()
            lag = self._store.lag(None, self._broker, kafka_groups=self._kafka_groups)
        except ConfigurationError:
            raise
        except OffsetStoreError as error:
            self._tell("the database", without_frames(error).what)
            return None
        self._tell("the database", None)
        return lag

    def _asks_kafka(self) -> bool:
        try:
            self._broker.snapshot({})
        except BrokerError as error:
            self._tell("Kafka", without_frames(error).what)
            return False
        self._tell("Kafka", None)
        return True

    def _tell(self, target: str, trouble: str | None) -> None:
        """Log a problem when it begins or changes, and when it ends (``None``)."""
        if trouble != self._troubles.get(target):
            if trouble is None:
                _log.warning("%s: in order again", target)
            else:
                _log.warning("%s: %s", target, trouble)
        if trouble is None:
            self._troubles.pop(target, None)
        else:
            self._troubles[target] = trouble

    def _add_partitions(self, page: Exposition, lag: Lag) -> None:
        logs = sum(len(topic.partitions) for topic in lag.topics.values())
        series = 2 * (logs + sum(map(len, lag.store.partitions.values())))
        is_too_many = series > self._max_partition_series
        page.add(LEFT_OUT, series if is_too_many else 0)
        # All of them, not some: a sum over half of the partitions would be a wrong number (decision 0037).
        if is_too_many:
            return
        for name, topic in lag.topics.items():
            for number, log in topic.partitions.items():
                page.add(END, log.end, name, str(number))
                page.add(BEGINNING, log.beginning, name, str(number))
        for group, state in lag.groups.items():
            for tp, partition in state.partitions.items():
                if partition.stored is not None:
                    page.add(STORED, partition.stored.next_offset, group, tp.topic, str(tp.partition))
                    page.add(RECORDS, partition.lag, group, tp.topic, str(tp.partition))


def _add_store(page: Exposition, lag: Lag) -> None:
    page.add(OLDEST_TRANSACTION, lag.store.oldest_transaction.total_seconds())
    page.add(SKEW, lag.clock_skew)
    page.add(OUTBOX_SENT, lag.store.outbox_sent)
    if lag.store.relay is not None:
        page.add(RELAY, 1, lag.store.relay.state)
    elif any(outbox.rows for outbox in lag.store.outbox.values()):
        page.add(RELAY, 1, "none")


def _add_outbox(page: Exposition, lag: Lag) -> None:
    # Also of names without a group: rows of an application have its source (decision 0107).
    for name in {**lag.groups, **lag.store.outbox}:
        outbox = lag.store.outbox.get(name, OutboxState())
        page.add(OUTBOX_ROWS, outbox.rows, name)
        age = None if outbox.oldest is None else (lag.store.at - outbox.oldest).total_seconds()
        page.add(OUTBOX_AGE, age or 0, name)
        page.add(OUTBOX_FIRST, outbox.row or 0, name)
        page.add(OUTBOX_REFUSED, outbox.refused, name)


def _add_groups(page: Exposition, lag: Lag) -> None:
    for group, state in lag.groups.items():
        owner, rows = state.owner, state.rows
        page.add(STATE, 1, group, state_of(state))
        page.add(LIVE, owner.is_live, group)
        if owner.fleet is not None:
            page.add(FLEET, sum(member.is_live for member in state.members), group)
        page.add(PAUSED, owner.pause is not None, group)
        page.add(EPOCH, owner.token.epoch, group)
        page.add(HEARTBEAT, None if owner.alive_for is None else owner.alive_for.total_seconds(), group)
        if state.run is not None and state.run.ending is None:
            page.add(BATCH, 0 if state.run.batch_since is None else state.run.batch_since.timestamp(), group)
        changed = [row.updated_at for row in rows.values() if row.updated_at is not None]
        page.add(ADVANCED, max(changed).timestamp() if changed else None, group)
        page.add(PINNED, sum(row.pinned for row in rows.values()), group)
        page.add(SUSPECT, sum(row.suspect is not None for row in rows.values()), group)
        for letter_state in OPEN:
            page.add(LETTERS, state.dead_letters.get(letter_state, 0), group, letter_state)
        if state.kafka is not None:
            page.add(STANDING, len(standing(state)), group)
            page.add(UNREAD, state.without_offset, group)
            page.add(MEMBERS, state.kafka.has_members, group)
            page.add(MIRROR, state.mirror_lag, group)
        for name, topic in state.topics.items():
            # A missing series fires no alert, so this one is there where the lag is not (decision 0043).
            if state.kafka is not None:
                page.add(KNOWN, topic.lag is not None, group, name)
            page.add(RECORDS_SUM, topic.lag, group, name)
            page.add(SECONDS, topic.lag_seconds, group, name)
            page.add(HEADROOM, topic.headroom, group, name)
            if any(part.stored is not None and part.log is not None for part in topic.partitions.values()):
                page.add(BEYOND, topic.beyond_end, group, name)


def _add_topics(page: Exposition, lag: Lag) -> None:
    for name, topic in lag.topics.items():
        page.add(TOPIC_UP, topic.error is None, name)
        if topic.partition_count:
            page.add(PARTITIONS, topic.partition_count, name)
            open_ = sum(log.end - log.last_stable for log in topic.partitions.values())
            page.add(OPEN_TRANSACTIONS, open_, name)
