"""What becomes of the flights without Spark: in a consumer's process, and in a task of the job. And where they go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.json import ParseOptions, read_json

from offsetstore.demo.day_totals import DAY, add_day_totals
from offsetstore.demo.tables import ADDED, COLUMNS, KEY, OURS, WORST
from offsetstore.protocol.ports import Writer
from offsetstore.protocol.work import Work
from offsetstore.writers import Append, Execute, Upsert

_compute: Final = cast("Any", pc)
_TOTALS: Final = [*((name, "sum") for name in ADDED), (WORST, "max")]
_TYPES: Final[dict[str, pa.DataType]] = {
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "text": pa.string(),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_SCHEMA: Final = pa.schema([(name, _TYPES[type_]) for name, type_ in COLUMNS.items()])


def writers(*, has_day_totals: bool) -> dict[str, Writer]:
    """Return the writer of each output: the job's and the consumer's."""
    into: dict[str, Writer] = {
        "flights": Append(OURS.flights),
        "carrier_delays": Upsert(OURS.carrier_delays, key=KEY, add=ADDED, greatest=[WORST]),
    }
    return into | {"day_totals": Execute(add_day_totals)} if has_day_totals else into


def parse(records: pa.RecordBatch) -> pa.RecordBatch:
    """Turn Kafka's records into flights, as `computation.parse` does."""
    lines = cast("list[bytes]", cast("Any", records)["value"].to_pylist())
    options = ParseOptions(explicit_schema=_SCHEMA)
    return _one(read_json(BytesIO(b"\n".join(lines)), parse_options=options) if lines else _SCHEMA.empty_table())


def carrier_delays(flights: pa.RecordBatch) -> pa.RecordBatch:
    """Add up the flights by carrier and month, as `computation.carrier_delays` does."""
    return _one(_delays(flights))


def day_totals(flights: pa.RecordBatch) -> pa.RecordBatch:
    """Count the flights by day, as `computation.day_totals` does."""
    table = cast("Any", pa.Table.from_batches([flights])).select([*DAY])
    counted = table.group_by([*DAY]).aggregate([([], "count_all")])
    return _one(counted.rename_columns([*DAY, "flights"]))


def land(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Write both tables from one task, if each Kafka partition has its own transaction.

    The flights are copied in as they come. Their sums are collected on the way, and added at the end in the order of
    their key, so that all tasks lock shared rows in one order.
    """
    into = writers(has_day_totals=False)
    delays: list[pa.Table] = []
    into["flights"].write(work, _counted(batches, delays))
    into["carrier_delays"].write(work, _total(pa.concat_tables(delays)).to_batches())


def _counted(batches: Iterable[pa.RecordBatch], delays: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Pass the batches on, and put the sums of each into ``delays``."""
    for batch in batches:
        delays.append(_delays(batch))
        yield batch


def _delays(batch: pa.RecordBatch) -> pa.Table:
    flights: Any = batch
    columns = {
        **{name: flights[name] for name in KEY},
        "flights": pa.repeat(1, batch.num_rows),
        "cancelled": flights["dep_time"].is_null().cast(pa.int64()),
        "departure_delay": _compute.fill_null(flights["dep_delay"], 0),
        "arrival_delay": _compute.fill_null(flights["arr_delay"], 0),
        WORST: flights["arr_delay"],
    }
    return _total(pa.table(columns))


def _total(delays: pa.Table) -> pa.Table:
    """Add up by carrier and month; the columns keep their names."""
    total = cast("Any", delays).group_by(list(KEY)).aggregate(_TOTALS)
    return total.rename_columns([name.removesuffix("_sum").removesuffix("_max") for name in total.column_names])


def _one(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
