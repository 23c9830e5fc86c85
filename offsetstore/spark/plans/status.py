"""Whether a sink's query runs, and when it last looked for records; asked from outside of its batches.

A `StreamingQueryListener` would be told the same, but a query posts its events to the session that it was started in,
which the sink does not know before the first batch; each is a call from Java into the driver's Python; and it says
nothing while a trigger hangs. So Spark's own state is read, as `offsetstore.spark.plans.query` does.
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JNetworkError  # pyright: ignore[reportMissingTypeStubs]
from pyspark.sql import SparkSession

from offsetstore.protocol.events import QueryStatus
from offsetstore.spark.plans.scala import simple_name
from offsetstore.store.claim import Claim

_log = logging.getLogger(__name__)

_NONE = QueryStatus(is_active=False)


class SinkQuery:
    """The query of one sink, before its first batch too; see `WatchedQuery`."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._execution: Any = None
        self._has_warned = False

    def found(self, execution: Any) -> None:
        """Keep Spark's own object for the query, which its batches know."""
        self._execution = execution

    def status(self) -> QueryStatus:
        """Ask Spark.

        :raises Exception: Java does not answer.
        """
        session: Any = SparkSession._instantiatedSession  # pyright: ignore[reportPrivateUsage] # noqa: SLF001 - another thread than the session's
        if session is None:
            return _NONE
        pid = int(session._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001 - py4j's gateway
        try:
            return self._read(session, pid)
        except Py4JNetworkError:
            raise
        except Exception as error:  # noqa: BLE001 - Spark has changed, or the query ends meanwhile: Java may be well
            session._jvm.java.lang.System.nanoTime()  # noqa: SLF001 - raises if it is Java that is gone
            if not self._has_warned:
                self._has_warned = True
                _log.warning("could not read the state of the streaming query: %s", type(error).__name__)
            return QueryStatus(is_active=None, pid=pid)

    def _read(self, session: Any, pid: int) -> QueryStatus:
        queries = session._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
        known = self._execution
        execution = queries.get(known.id()) if known is not None else self._probable(queries)
        if execution is None:
            has_failed = None if known is None else bool(known.exception().isDefined())
            return QueryStatus(is_active=False, pid=pid, has_failed=has_failed)
        context = execution.getLatestExecutionContext()  # null until the query has read its checkpoint
        trigger = None if context is None else int(context.currentTriggerStartTimestamp())
        return QueryStatus(is_active=True, trigger=trigger, interval=_interval(execution.trigger()), pid=pid)

    def _probable(self, queries: Any) -> Any:
        """The one with the claim's own checkpoint; if its checkpoint is not the claim's, any that runs."""
        claim = self._claim
        own = claim.checkpoint_name if claim.checkpoint_base is not None and not claim.keeps_checkpoint else ""
        for execution in queries.values():
            if own in str(execution.resolvedCheckpointRoot()):
                return execution
        return None


def _interval(trigger: Any) -> float:
    return int(trigger.intervalMs()) / 1000 if simple_name(trigger) == "ProcessingTimeTrigger" else 0.0
