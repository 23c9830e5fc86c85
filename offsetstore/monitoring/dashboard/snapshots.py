"""What all pages share: how far the groups are behind, measured at intervals, so that no page waits for Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from offsetstore.errors import MissingPrivilege, OffsetStoreError
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.group_state import Lag
from offsetstore.operations.group_status import GroupStatus
from offsetstore.operations.samples import Sample, rates
from offsetstore.postgres.errors import of_database
from offsetstore.protocol.ports import BrokerOverview
from offsetstore.runtime.background import Background
from offsetstore.runtime.functions import without_frames
from offsetstore.text import logger

_log = logger(__name__)

INTERVAL: Final = 10.0
"""Seconds from one snapshot to the next."""

_LATE: Final = timedelta(seconds=3 * INTERVAL)
_NO_SAMPLES: Final = "no samples for curves are kept: "
_PATIENCE: Final = 5.0
_UNTIL_GRANTED: Final = 300.0  # seconds after which a role that may not write samples tries again


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The last lag that could be measured.

    :param lag: ``None`` before the first one.
    :param taken_at: when it was measured, by this machine's clock.
    :param trouble: why it is older than it should be, or lacks Kafka's part, in our own words.
    :param has_database: whether the database has answered since.
    :param groups: the status of each group in it.
    :param samples: what is kept of it for curves.
    """

    lag: Lag | None = None
    taken_at: datetime | None = None
    trouble: str | None = None
    has_database: bool = True
    groups: Mapping[str, GroupStatus] = field(default_factory=dict["str", "GroupStatus"])
    samples: Mapping[str, Sample] = field(default_factory=dict["str", "Sample"])


class Snapshots:
    """Takes a snapshot every `INTERVAL` seconds in a daemon thread, and adds it to the samples in the database.

    :param store: it is left open, as is the broker.
    :param kafka_groups: Kafka's names of groups that have a different one there, by the name in the store.
    """

    def __init__(
        self, store: OffsetStore, broker: BrokerOverview, *, kafka_groups: Mapping[str, str] | None = None
    ) -> None:
        self._store = store
        self._broker = broker
        self._kafka_groups = kafka_groups or {}
        self._latest = Snapshot()
        self._told: set[str] = set()
        self._refused: tuple[MissingPrivilege, float] | None = None  # and until when it is not tried again
        self._guard = threading.Lock()
        self._waiting = threading.Lock()  # for the guard
        self._turns: Background | None = None

    def start(self) -> None:
        """Take the first snapshot now, and go on."""
        self.refresh()
        self._turns = Background("offsetstore-snapshots", self.refresh, lambda: INTERVAL)
        self._turns.start()

    def close(self) -> None:
        if self._turns is not None:
            self._turns.stop(_PATIENCE)

    def latest(self) -> Snapshot:
        """Return the last snapshot, without waiting: if the next one hangs, the last one says that it is old."""
        latest = self._latest
        if latest.trouble is None and latest.taken_at is not None and datetime.now(UTC) - latest.taken_at > _LATE:
            return replace(latest, trouble=f"no answer from the database or Kafka since {latest.taken_at:%H:%M:%S} UTC")
        return latest

    def take(self) -> None:
        """Take a snapshot now. If the database does not answer, the last one is kept, and says why."""
        with self._guard:
            self._take()

    def _take(self) -> None:
        now = datetime.now(UTC)
        try:
            lag = self._store.lag(None, self._broker, kafka_groups=self._kafka_groups)
        except OffsetStoreError as error:
            without_frames(error)
            self._latest = replace(self._latest, trouble=error.what, has_database=False)
            self._tell(error.what)
            return
        error = lag.broker_error
        samples, before = lag.samples(), self._latest.samples
        groups = {name: GroupStatus.of(state, _rate(name, before, samples)) for name, state in lag.groups.items()}
        self._latest = Snapshot(lag, now, None if error is None else error.what, groups=groups, samples=samples)
        failed = self._record(lag) if lag.kafka is not None else None
        if error is not None:
            self._tell(error.what)
        if failed is not None:
            self._tell(f"{_NO_SAMPLES}{failed}")
        if error is None:
            self._told.intersection_update(() if failed is None else {f"{_NO_SAMPLES}{failed}"})

    def _record(self, lag: Lag) -> OffsetStoreError | None:
        """Add the lag to the samples. Without them there are no curves, but pages show all else."""
        if self._refused is not None and time.monotonic() < self._refused[1]:
            return self._refused[0]
        try:
            self._store.record_samples(lag)
        except MissingPrivilege as error:
            self._refused = without_frames(error), time.monotonic() + _UNTIL_GRANTED
            return error
        except OffsetStoreError as error:
            return without_frames(error)
        return None

    def refresh(self) -> bool:
        """Take a snapshot now, and note any error; return ``True``. While one call waits, others do nothing."""
        if not self._waiting.acquire(blocking=False):
            return True
        try:
            with self._guard:
                # From now on another call has to wait: this snapshot may lack what is decided meanwhile.
                self._waiting.release()
                self._take()
        except Exception as error:  # noqa: BLE001 - it must go on, and an unknown error's text may hold values
            ours = of_database(without_frames(error))
            trouble = type(error).__name__ if ours is None else ours.what
            self._latest = replace(self._latest, trouble=trouble, has_database=ours is None)
            with suppress(Exception):
                self._tell(trouble)
        return True

    def _tell(self, trouble: str) -> None:
        """Log a problem once, until there is none."""
        if trouble not in self._told:
            self._told.add(trouble)
            _log.warning("%s", trouble)


def _rate(name: str, *taken: Mapping[str, Sample]) -> float | None:
    """Offsets a second between the samples, ``None`` if the group was claimed or reset meanwhile."""
    samples = [snapshot[name] for snapshot in taken if name in snapshot]
    is_one_claim = len({sample.epoch for sample in samples}) == 1
    return rates(samples, timedelta(seconds=INTERVAL))[-1].records if is_one_claim else None
