"""An answer goes out at once, also its last part."""

from __future__ import annotations

import time
from statistics import median

import httpx
import pytest


@pytest.mark.behaviour("DASH-1")
def test_no_part_of_an_answer_waits_for_an_acknowledgement(client: httpx.Client) -> None:
    def seconds() -> float:
        before = time.monotonic()
        client.get("/")
        return time.monotonic() - before

    # Linux delays an ACK by 40 ms, but not on a new connection.
    assert median(seconds() for _ in range(40)) < 0.03
