"""Execute: the user's own SQL."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from sqlalchemy import Connection

from offsetstore.errors import FunctionFailed, OffsetStoreError, RecordsRejected, RowsRefused, as_raised
from offsetstore.offsets import TopicPartition
from offsetstore.postgres.errors import is_of_server, is_swallowed, refusals, swallowed
from offsetstore.postgres.session import discard_at_end
from offsetstore.protocol.arguments import as_offset
from offsetstore.protocol.letters import Payload, check_reject
from offsetstore.protocol.ports import Work
from offsetstore.protocol.retries import may_pass
from offsetstore.runtime.functions import as_texts, call, chain, tells_of_outage
from offsetstore.writers.arrow.batches import Stream, drop_kafka


class Execute:
    """Calls a function with the transaction and the rows.

    ::

        def write(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
            for batch in batches:
                work.connection.execute(insert(payments), batch.to_pylist())

    :param function: called once per transaction: for each micro-batch or flush, or with ``atomicity="partition"`` for
        each Kafka partition, on an executor; it is not called without rows. It can iterate over the record batches
        once. It must neither commit nor roll back; what its SQL writes is committed together with the offsets. After a
        rollback, it may be run again on the same rows. Database errors that it raises become ours, or lose what may
        quote a row; its own exceptions are passed on unchanged. The search for a refused record runs it on the driver,
        on parts of a batch; what was accepted before that record is stored. Which tables it writes to, whether they
        survive a crash, and which schema it finds for an unqualified name (executors do not run the listeners of the
        driver's engine) is up to you. The connection is closed when the transaction ends, so that no session state
        (``SET``, temporary tables, advisory locks) is left for the next one; behind PgBouncer use ``SET LOCAL``, since
        its connections to the server stay open. It may start processes: a forked one has no way to the store's
        connections. The child of a bare ``os.fork`` must leave by ``os._exit``: if it returned or raised, it would go
        on with the job, on the sockets to Spark that it shares with its parent. An ORM Session works:
        docs/dead-letters-sql.md.
    :param splittable: the function may be given the rows of any records, in their order, again and again: what it did
        was rolled back. A sink with dead letters needs that. An error that it raises is then a record's, except one of
        memory, imports or connections, a timeout, and an `Outage`. With ``atomicity="partition"`` it is then also
        called on the driver, with the rows of several partitions; ``work.ranges`` is empty in a replay.
    """

    marks = True

    def __init__(
        self, function: Callable[[Work, Iterable[pa.RecordBatch]], object], *, splittable: bool = False
    ) -> None:
        self.function = function
        self.splittable = splittable

    def __repr__(self) -> str:
        return f"Execute({getattr(self.function, '__qualname__', self.function)})"

    def uses_kafka_column(self, schema: pa.Schema) -> bool:  # noqa: ARG002 - the Protocol's
        """Never: the function gets all columns anyway."""
        return False

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Do nothing: what the function needs is not known."""

    def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
        """Call the function; return how many rows there were, even if it did not read all of them.

        :raises RowsRefused: the database, or its driver, refuses a row or a value.
        :raises RecordsRejected, FunctionFailed: a splittable function names records, or raises an error.
        :raises SinkError: the database refuses the SQL, or the function has swallowed an error of the database.
        """
        stream = Stream.of(batches)
        if stream is None:
            return 0
        # The function may leave settings, temporary tables or locks in the session (decision 0024).
        discard_at_end(work.connection)
        if self.splittable:
            self._call_split(work, map(drop_kafka, stream))
        else:
            with refusals(None, sql_of=repr(self)):
                call(self.function, work, map(drop_kafka, stream))
        # The function may not have read all rows, and all are counted.
        for _ in stream:
            pass
        return stream.rows

    def _call_split(self, work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        rejecting = _Rejecting(work)
        try:
            with _failing(repr(self)), refusals(None, sql_of=repr(self), is_splittable=True):
                call(self.function, cast("Work", rejecting), batches)
        except RowsRefused:
            if not rejecting.reasons:
                raise
            # It is called again without the records that it has named, and then shows whether others are refused.
        if rejecting.reasons:
            raise RecordsRejected(
                f"{self!r} named {len(rejecting.reasons)} records as dead letters",
                reasons=rejecting.reasons,
                codes=rejecting.codes,
            )


@dataclass
class _Rejecting:
    """The transaction, as a splittable function gets it: collects the records that it names.

    The function is rolled back, and called again without these.
    """

    work: Work
    reasons: dict[tuple[TopicPartition, int], str] = field(default_factory=dict[Any, str])
    codes: dict[tuple[TopicPartition, int], str] = field(default_factory=dict[Any, str])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)

    def dead_letter(
        self,
        tp: TopicPartition,
        offset: int,
        reason: str,
        *,
        code: str | None = None,
        payload: Payload | None = None,  # noqa: ARG002 - the sink has the record itself
    ) -> None:
        """See `offsetstore.protocol.ports.Work`."""
        check_reject(tp, reason, code)
        record = tp, as_offset("offset", offset)
        self.reasons[record] = reason
        if code is not None:
            self.codes[record] = code


@contextmanager
def _failing(whose: str) -> Generator[None]:
    """Turn a function's own error into ours."""
    try:
        yield
    except OffsetStoreError:
        raise
    except Exception as error:
        # An error raised from the database's is the function's, unless that was an outage, or may have been one because
        # an error was swallowed (decision 0047).
        if tells_of_outage(error) or any(may_pass(linked) or is_of_server(linked) for linked in chain(error)):
            raise
        if (last := next(filter(is_swallowed, chain(error)), None)) is not None:
            raise swallowed(last) from error
        name, (text, trace) = type(as_raised(error)).__name__, as_texts(error)
        raise FunctionFailed(f"{whose} raised {name}", error_class=name, text=text, traceback=trace) from error
