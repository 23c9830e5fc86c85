"""What one process of ``offsetstore consume`` tells its supervisor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from offsetstore.cli.consume_process import Reporter
from offsetstore.monitoring.processes import Report
from offsetstore.testing import InMemoryOffsetStore


@pytest.mark.behaviour("CONS-11")
def test_later_reports_do_not_take_back_that_another_process_may_join() -> None:
    """The thread reports until the process is gone, which the user's own threads may hold up."""
    sent: list[Report] = []
    with InMemoryOffsetStore() as store:
        consumer = SimpleNamespace(
            longest_poll=300.0, drain=30.0, request=SimpleNamespace(takeover="refuse"), store=store
        )
        connection = SimpleNamespace(send=sent.append)
        reporter = Reporter(cast("Any", connection), cast("Any", consumer), lambda: None, has_metrics=False)
        reporter.send()
        reporter.send(rejoins=True)
        told = len(sent)
        reporter.send()
    assert not sent[0].rejoins
    assert all(report.rejoins for report in sent[told - 1 :])
