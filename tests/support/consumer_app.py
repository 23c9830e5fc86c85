"""Functions for ``offsetstore consume``, as an application has them; CONSUMER_APP in the environment says with what."""

from __future__ import annotations

import json
import os
from typing import Any

from offsetstore import OffsetStore
from offsetstore.consumer import Consumer
from tests.support.consumer_job import consumer_of


def consumer() -> Consumer:
    """Make the consumer of `tests.support.consumer_job`."""
    given: dict[str, Any] = json.loads(os.environ["CONSUMER_APP"])
    return consumer_of(OffsetStore.connect(), given["bootstrap"], given["topic"], partitions=given["partitions"])


def nothing() -> None:
    """Return no consumer."""
