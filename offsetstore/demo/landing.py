"""Both tables from one task: the demo's function for `Execute` if each Kafka partition has its own transaction.

The flights are copied in as they come. Their sums are collected on the way, and added at the end in the order of their
key, so that all tasks lock shared rows in one order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from offsetstore.demo.tables import ADDED, KEY, OURS, WORST
from offsetstore.writers import Append, Upsert

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection

_compute: Final = cast("Any", pc)
_TOTALS: Final = [*((name, "sum") for name in ADDED), (WORST, "max")]


def land(connection: Connection, batches: Iterable[pa.RecordBatch]) -> None:
    """Append the flights, and add them to their carriers' months."""
    delays: list[pa.Table] = []
    Append(OURS.flights).write(connection, _counted(batches, delays))
    total = _total(pa.concat_tables(delays))
    Upsert(OURS.carrier_delays, key=KEY, add=ADDED, greatest=[WORST]).write(connection, total.to_batches())


def _counted(batches: Iterable[pa.RecordBatch], delays: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Pass the batches on, and put the sums of each into ``delays``."""
    for batch in batches:
        flights: Any = batch
        columns = {
            **{name: flights[name] for name in KEY},
            "flights": pa.repeat(1, batch.num_rows),
            "cancelled": flights["dep_time"].is_null().cast(pa.int64()),
            "departure_delay": _compute.fill_null(flights["dep_delay"], 0),
            "arrival_delay": _compute.fill_null(flights["arr_delay"], 0),
            WORST: flights["arr_delay"],
        }
        delays.append(_total(pa.table(columns)))
        yield batch


def _total(delays: pa.Table) -> pa.Table:
    """Add up by carrier and month; the columns keep their names."""
    total = cast("Any", delays).group_by(list(KEY)).aggregate(_TOTALS)
    return total.rename_columns([name.removesuffix("_sum").removesuffix("_max") for name in total.column_names])
