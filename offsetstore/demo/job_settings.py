"""What the demo's parts share, and the settings that its jobs read from their environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self, TypeAlias, cast, get_args

from offsetstore.errors import ConfigurationError, OffsetStoreError

Atomicity: TypeAlias = Literal["batch", "partition"]

TOPIC: Final = "flights"
PARTITIONS: Final = 4
GROUP: Final = "carrier-delays"
BATCHES: Final = 24
"""The number of micro-batches that the input is cut into, about."""
JDBC_NAME: Final = "demo at-least-once"
"""The ``application_name`` of Spark's JDBC writer, which shows others that it runs."""

URL: Final = "OFFSETSTORE_URL"
BOOTSTRAP: Final = "OFFSETSTORE_DEMO_BOOTSTRAP"
CHECKPOINTS: Final = "OFFSETSTORE_DEMO_CHECKPOINTS"
BATCH: Final = "OFFSETSTORE_DEMO_BATCH"
ATOMICITY: Final = "OFFSETSTORE_DEMO_ATOMICITY"
DEAD_LETTERS: Final = "OFFSETSTORE_DEMO_DEAD_LETTERS"
"""``1``: the exactly-once job keeps flights that can't be written as dead letters."""
OUTBOX: Final = "OFFSETSTORE_DEMO_OUTBOX"
"""``1``: the exactly-once job also produces the days' totals."""
PAUSE: Final = "OFFSETSTORE_DEMO_PAUSE"
"""``point:nth``: stops the job there, to be killed."""
REQUIRED: Final = frozenset({URL, BOOTSTRAP})
"""The others have defaults."""

_DEFAULT_CHECKPOINTS: Final = "checkpoints"
_DEFAULT_BATCH: Final = "14033"


class DemoFailed(OffsetStoreError):
    """The demo itself failed; this says nothing about the jobs."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Where a job reads and writes, how many records a micro-batch may have, and which way of the sink it takes."""

    url: str
    bootstrap_servers: str
    checkpoints: Path
    batch: int
    atomicity: Atomicity = "batch"
    dead_letters: bool = False
    outbox: bool = False

    @classmethod
    def from_environment(cls) -> Self:
        """Read them.

        :raises ConfigurationError: one of `REQUIRED` is not set, or the size of a batch is not a number.
        """
        missing = sorted(name for name in REQUIRED if not os.environ.get(name))
        batch = os.environ.get(BATCH, _DEFAULT_BATCH)
        if missing:
            raise ConfigurationError(
                "the demo's job needs more settings",
                found=f"no {', '.join(missing)}",
                expected="both, in the environment",
            )
        if not batch.isdigit() or batch == "0":
            raise ConfigurationError(
                f"{BATCH} is not a number of records", found=batch, expected="a number, from 1 upwards"
            )
        atomicity = os.environ.get(ATOMICITY, "batch")
        if atomicity not in get_args(Atomicity):
            raise ConfigurationError(
                f"{ATOMICITY} has an unknown value", found=atomicity, expected=" or ".join(get_args(Atomicity))
            )
        checkpoints = Path(os.environ.get(CHECKPOINTS, _DEFAULT_CHECKPOINTS))
        return cls(
            os.environ[URL],
            os.environ[BOOTSTRAP],
            checkpoints,
            int(batch),
            cast("Atomicity", atomicity),
            os.environ.get(DEAD_LETTERS) == "1",
            os.environ.get(OUTBOX) == "1",
        )

    def environment(self) -> dict[str, str]:
        """Return the variables that `from_environment` reads these settings from."""
        return {
            URL: self.url,
            BOOTSTRAP: self.bootstrap_servers,
            CHECKPOINTS: str(self.checkpoints),
            BATCH: str(self.batch),
            ATOMICITY: self.atomicity,
            DEAD_LETTERS: "1" if self.dead_letters else "",
            OUTBOX: "1" if self.outbox else "",
        }

    def kafka_options(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source."""
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": TOPIC,
            "maxOffsetsPerTrigger": str(self.batch),
        }
