"""What ``dead-letters show`` writes of a record."""

from __future__ import annotations

import pytest

from offsetstore.cli.dead_letters import _time_of
from offsetstore.protocol.letters import Payload


@pytest.mark.behaviour("DX-1")
@pytest.mark.parametrize(
    ("time", "kind", "shown"),
    [
        (1_795_941_562_798, 0, "2026-11-29T08:39:22.798+00:00 (CreateTime)"),
        (0, 1, "1970-01-01T00:00:00.000+00:00 (LogAppendTime)"),
        (-1, -1, "1969-12-31T23:59:59.999+00:00"),
        (2**63 - 1, 0, "9223372036854775807 (CreateTime)"),
        (-(2**63), None, "-9223372036854775808"),
        (None, None, "none"),
    ],
)
def test_a_record_s_time_is_a_date_with_kafka_s_word_for_whose_it_is(
    time: int | None, kind: int | None, shown: str
) -> None:
    assert _time_of(Payload(None, None, (), time, kind)) == shown
