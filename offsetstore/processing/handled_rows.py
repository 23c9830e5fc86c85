"""What a handler returns, as Arrow: no value is changed, and a row that doesn't fit fails its record."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, repeat
from typing import Any, Final, cast

import pyarrow as pa

from offsetstore.processing.handler_schemas import columns_of, name_of
from offsetstore.processing.handling import RESULT, HandlerError, Outcome, Row
from offsetstore.processing.unit import UNNAMED
from offsetstore.protocol.letters import writable
from offsetstore.writers.arrow.kinds import check_exact, stored

ONLY: Final = "rows"
"""The field of the only output, which has no name."""

_arrow: Any = pa  # its stubs know too little of some kinds of arrays
_log = logging.getLogger(__name__)


def arrow_rows(
    outcomes: Sequence[Outcome], schemas: Mapping[str, pa.Schema]
) -> tuple[pa.StructArray, Sequence[Outcome]]:
    """The rows of each outcome, see `as_lists`.

    :return: the outcomes too: a record whose rows don't fit the schema has failed.
    """
    try:
        return as_lists([one.rows for one in outcomes], schemas), outcomes
    except Exception as error:  # noqa: BLE001 - the user's own objects
        _log.debug("rows of a handler don't fit its schema: %s", type(error).__name__)
    fitting: list[Outcome] = []
    for one in outcomes:
        try:
            as_lists([one.rows], schemas)
        except Exception as error:  # noqa: BLE001 - the user's own objects
            fitting.append(replace(one, rows=(), error=HandlerError(RESULT, str(error))))
        else:
            fitting.append(one)
    return as_lists([one.rows for one in fitting], schemas), fitting


def as_lists(rows: Sequence[Sequence[Any]], schemas: Mapping[str, pa.Schema]) -> pa.StructArray:
    """The rows of each record as lists, in a column of structs with a field for each output.

    :raises Exception: a row does not fit.
    """
    columns: list[Any] = []
    for name, schema in schemas.items():
        of_output = rows if name == UNNAMED else [[row for of in one for row in of.get(name, ())] for one in rows]
        values = [_values(row, schema.names) for one in of_output for row in one]
        ends = accumulate((len(one) for one in of_output), initial=0)
        by_column: Iterable[Sequence[Any]] = zip(*values, strict=True) if values else repeat(())
        arrays = [_as_column(field, column) for field, column in zip(cast("Any", schema), by_column, strict=False)]
        structs = _arrow.StructArray.from_arrays(arrays, fields=[*columns_of(schema)])
        columns.append(_arrow.ListArray.from_arrays(pa.array([*ends], pa.int32()), structs))
    return _arrow.StructArray.from_arrays(columns, [name or ONLY for name in schemas])


def as_failed(error: HandlerError, attempts: int = 1, *, is_outage: bool = False) -> dict[str, Any]:
    """A handler's failure as `reject_of` takes it; texts that PostgreSQL can't store are cleaned."""
    return {
        "error_class": writable(error.error_class),
        "text": writable(error.text),
        "traceback": error.traceback and writable(error.traceback),
        "attempts": attempts,
        "is_outage": is_outage,
    }


def _as_column(field: Any, values: Sequence[Any]) -> Any:
    if not field.nullable and None in values:
        raise ValueError(f"the column {field.name} is NULL, and its schema does not allow that")
    try:
        check_exact(values, field.type)
        return stored(values, field.type)
    except Exception as error:  # noqa: BLE001 - of many classes
        raise ValueError(f"the column {field.name} ({name_of(field.type)}): {error}") from None


def _values(row: Row, names: Sequence[str]) -> Sequence[object]:
    if isinstance(row, tuple):
        if len(row) != len(names):
            raise ValueError(f"the row has {len(row)} values; expected {len(names)}: {', '.join(names)}")
        return row
    values = [row.get(name) for name in names]
    if unknown := row.keys() - {*names}:
        raise ValueError(f"the schema has no column {', '.join(map(repr, sorted(unknown)))}; it has {', '.join(names)}")
    return values
