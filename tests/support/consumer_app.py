"""Functions for ``offsetstore consume``, as an application has them; CONSUMER_APP in the environment says with what."""

from __future__ import annotations

import json
import os
from typing import Any

from offsetstore import Flush, OffsetStore
from offsetstore.consumer import Consumer
from tests.support.consumer_job import consumer_of


def consumer() -> Consumer:
    """Make the consumer of `tests.support.consumer_job`."""
    given: dict[str, Any] = json.loads(os.environ["CONSUMER_APP"])
    return consumer_of(
        OffsetStore.connect(),
        given["bootstrap"],
        given["topic"],
        kafka=given.get("kafka"),
        flush=Flush(rows=given.get("rows", 100), seconds=given.get("seconds", 0.2)),
        drain=40.0,
    )


def nothing() -> None:
    """Return no consumer."""
