"""The settings that the demo's jobs read from their environment. It imports no Spark, as the supervisor needs none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from offsetstore.demo.flights import BOOTSTRAP, TOPIC
from offsetstore.errors import ConfigurationError

URL: Final = "OFFSETSTORE_URL"
CHECKPOINTS: Final = "OFFSETSTORE_DEMO_CHECKPOINTS"
BATCH: Final = "OFFSETSTORE_DEMO_BATCH"
DEAD_LETTERS: Final = "OFFSETSTORE_DEMO_DEAD_LETTERS"
"""``1``: the exactly-once job keeps flights that can't be written as dead letters."""
REQUIRED: Final = frozenset({URL, BOOTSTRAP})
"""The others have defaults."""
PAUSE: Final = "OFFSETSTORE_DEMO_PAUSE"
"""``point:nth``: stops the job there, in its nth batch, to be killed."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Where a job reads and writes, how many records a micro-batch may have, and whether some become dead letters."""

    url: str
    bootstrap_servers: str
    checkpoints: Path
    batch: int
    dead_letters: bool = False

    @classmethod
    def from_environment(cls) -> Self:
        """Read the settings.

        :raises ConfigurationError: one of `REQUIRED` is not set.
        """
        if missing := sorted(name for name in REQUIRED if not os.environ.get(name)):
            raise ConfigurationError(
                "the demo's job needs more settings",
                found=f"no {', '.join(missing)}",
                expected="both, in the environment",
            )
        return cls(
            os.environ[URL],
            os.environ[BOOTSTRAP],
            Path(os.environ.get(CHECKPOINTS, "checkpoints")),
            int(os.environ.get(BATCH, "14033")),
            os.environ.get(DEAD_LETTERS) == "1",
        )

    def environment(self) -> dict[str, str]:
        """Return the variables that `from_environment` reads these settings from."""
        return {
            URL: self.url,
            BOOTSTRAP: self.bootstrap_servers,
            CHECKPOINTS: str(self.checkpoints),
            BATCH: str(self.batch),
            DEAD_LETTERS: "1" if self.dead_letters else "",
        }

    def kafka_options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": TOPIC,
            "maxOffsetsPerTrigger": str(self.batch),
        }


def pause() -> tuple[str, int]:
    """Read from `PAUSE` where the job is to stop, and in which batch: by default in batch 0, which never comes."""
    point, _, nth = os.environ.get(PAUSE, "").partition(":")
    return point, int(nth or 0)
