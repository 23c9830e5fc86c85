"""Execute: the user's own SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore.postgres.errors import refusals
from offsetstore.postgres.session import discard_at_end
from offsetstore.writers.arrow.kafka_column import drop_kafka
from offsetstore.writers.arrow.streaming import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa
    from sqlalchemy import Connection

    from offsetstore.protocol.work import Work


class Execute:
    """Calls a function with the transaction and the rows.

    ::

        def write(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
            for batch in batches:
                work.connection.execute(insert(payments), batch.to_pylist())

    :param function: called once per transaction: for each micro-batch, or with ``atomicity="partition"`` for each Kafka
        partition, on an executor; it is not called without rows. It can iterate over the record batches once. It must
        neither commit nor roll back; what its SQL writes is committed together with the offsets. After a rollback, it
        may be run again on the same rows. Database errors that it raises become ours, or lose what may quote a row; its
        own exceptions are passed on unchanged. The search for a refused record runs it on the driver, on parts of a
        batch; what was accepted before that record is stored. Which tables it writes to, whether they survive a crash,
        and which schema it finds for an unqualified name (executors do not run the listeners of the driver's engine) is
        up to you. The connection is closed when the transaction ends, so that no session state (``SET``, temporary
        tables, advisory locks) is left for the next one; behind PgBouncer use ``SET LOCAL``, since its connections to
        the server stay open.
    """

    def __init__(self, function: Callable[[Work, Iterable[pa.RecordBatch]], object]) -> None:
        self.function = function

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
        :raises SinkError: the database refuses the SQL.
        """
        stream = Stream.of(batches)
        if stream is None:
            return 0
        discard_at_end(work.connection)
        with refusals(None, sql_of=repr(self)):
            self.function(work, map(drop_kafka, stream))
        for _ in stream:
            pass
        return stream.rows
