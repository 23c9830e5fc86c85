"""How far one run of a job has come, by the events it reports, and whether it is time to kill it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsetstore.demo.kills import JDBC_WRITE, RANDOM

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetstore.demo.events import Event
    from offsetstore.demo.kills import Kill


@dataclass(slots=True)
class Progress:
    """Progress of one run. ``batch`` is the one that has begun and is not done, ``last`` the one that began last."""

    begun: int = 0
    done: int = 0
    batch: Event | None = None
    last: Event | None = None
    seconds: float = 0.0
    """How long the previous batch took."""
    reached: str = ""

    def take(self, event: Event) -> None:
        """Note an event of the job."""
        match event.kind:
            case "begun":
                self.begun += 1
                self.batch = self.last = event
            case "done" if self.batch is not None:
                self.done += 1
                self.seconds, self.batch = event.at - self.batch.at, None
            case "reached":
                self.reached = event.point
            case _:
                pass

    def is_near(self, kill: Kill) -> bool:
        """Whether the job has reached the batch in which it is to be killed, and has to be watched closely."""
        return kill.meets_it_running and self.begun >= kill.nth and self.batch is not None

    def is_time(self, kill: Kill, jdbc_writes: Callable[[], bool]) -> bool:
        """Whether to send the signal now.

        A random time is a share of the previous batch's. If this batch is quicker than that, the next one is tried.
        """
        if not kill.meets_it_running:
            return self.reached == kill.point
        if self.batch is None or not self.is_near(kill):
            return False
        if kill.point == JDBC_WRITE:
            return jdbc_writes()
        assert kill.point == RANDOM
        return time.monotonic() >= self.batch.at + kill.fraction * self.seconds
