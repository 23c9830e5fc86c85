"""Execute: the user's own SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore.postgres.session import discard_at_end
from offsetstore.writers.arrow.kafka_column import drop_kafka
from offsetstore.writers.arrow.streaming import Stream
from offsetstore.writers.errors import refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa
    from sqlalchemy import Connection


class Execute:
    """Calls a function with the transaction's connection and the rows.

    :param function: called once a transaction: a micro-batch's, or with ``atomicity="partition"`` a Kafka partition's,
        on an executor; and not at all without rows. The iterable of record batches can be gone through once. The
        function must neither commit nor roll back, and its SQL has no effect without the offsets'. It may be run again
        on the same rows, after a rollback. Errors of the database that leave it become ours, or lose what may quote a
        row; its own exceptions are passed on as they are. The search for a record that was refused runs it on the
        driver, on parts of a batch; what was accepted before that record is stored. Which tables it writes to, whether
        they survive a crash, and where a name without a schema leads it (executors do not run the listeners of the
        driver's engine), is up to you. The connection is closed at the transaction's end, so that nothing of its
        session (``SET``, temporary tables, advisory locks) comes to the next one; behind PgBouncer use ``SET LOCAL``,
        since its connections to the server stay open.
    """

    def __init__(self, function: Callable[[Connection, Iterable[pa.RecordBatch]], object]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"Execute({getattr(self.function, '__qualname__', self.function)})"

    def needs_offset(self, schema: pa.Schema) -> bool:  # noqa: ARG002 - the Protocol's
        """Never: what the function needs of Kafka's coordinates, the transform gives it as columns of its own."""
        return False

    def uses_offset(self, schema: pa.Schema) -> bool:  # noqa: ARG002 - the Protocol's
        """Never: see `needs_offset`."""
        return False

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Nothing can be known beforehand."""

    def write(self, connection: Connection, batches: Iterable[pa.RecordBatch]) -> int:
        """Call the function; return how many rows there were, also where it did not go through them all.

        :raises RowsRefused: the database, or its driver, refuses a row or a value.
        :raises SinkError: it refuses the SQL.
        """
        rows = Stream.of(batches)
        if rows is None:
            return 0
        discard_at_end(connection)
        with refusals(None, sql_of=repr(self)):
            self.function(connection, map(drop_kafka, rows))
        for _ in rows:
            pass
        return rows.rows
