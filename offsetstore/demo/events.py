"""The events that a job reports: one JSON object per line, on standard output."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from offsetstore.spark.plans.query import RunningQuery

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    Write: TypeAlias = Callable[[DataFrame, int], None]

Kind: TypeAlias = Literal["started", "begun", "done", "reached"]
Ranges: TypeAlias = "dict[str, tuple[int, int]]"


@dataclass(frozen=True, slots=True)
class Event:
    """``started``: Spark runs, ``jvm`` is its process. ``begun`` and ``done``: a micro-batch. ``reached``: a point.

    ``at`` is in seconds of the system-wide monotonic clock.
    """

    kind: Kind
    batch: int = -1
    ranges: Ranges = field(default_factory=dict[str, tuple[int, int]])
    point: str = ""
    jvm: int = 0
    at: float = field(default_factory=time.monotonic)


def tell(event: Event) -> None:
    """Print the event."""
    print(json.dumps({"demo": asdict(event)}), flush=True)  # noqa: T201 - this is the output


def parse_event(line: str) -> Event | None:
    """Read one back; ``None`` for any other line."""
    if not line.startswith('{"demo": '):
        return None
    found = json.loads(line)["demo"]
    found["ranges"] = {name: (first, until) for name, (first, until) in found["ranges"].items()}
    return Event(**found)


def told(write: Write) -> Write:
    """Wrap a function for ``foreachBatch`` so that it reports each batch: its id, its ranges, and when it is done."""

    def tell_and_write(batch: DataFrame, batch_id: int) -> None:
        ranges = RunningQuery.of(batch).ranges()
        tell(Event("begun", batch_id, {str(tp): (range_.from_, range_.until) for tp, range_ in ranges.items()}))
        write(batch, batch_id)
        tell(Event("done", batch_id))

    return tell_and_write


PAUSE = "OFFSETSTORE_DEMO_PAUSE"


class Pauses:
    """The other job's failpoints: ``OFFSETSTORE_DEMO_PAUSE=point:nth`` stops it there, to be killed."""

    def __init__(self) -> None:
        self._wanted, _, nth = os.environ.get(PAUSE, "").partition(":")
        self._left = int(nth or 0)

    def reach(self, point: str) -> None:
        """Stop here forever, if this is the point and the pass to stop at."""
        if point != self._wanted:
            return
        self._left -= 1
        if self._left == 0:
            tell(Event("reached", point=point))
            while True:
                time.sleep(3600)
