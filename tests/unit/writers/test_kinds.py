"""The table of what is exact has each type of this pyarrow, and refuses all others."""

from __future__ import annotations

from array import array
from collections import UserDict
from collections.abc import Callable
from decimal import Decimal
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from offsetstore.errors import ConfigurationError
from offsetstore.processing.handled_rows import arrow_rows, schema_of
from offsetstore.processing.handling import CallOutcome, Record
from offsetstore.processing.outputs import RowsByRecord
from offsetstore.writers import Append
from offsetstore.writers.arrow import kinds
from offsetstore.writers.arrow.casts import find_cast
from offsetstore.writers.arrow.kinds import plain, plain_values
from tests.support.arrow_types import CASES, ID, Case, arrow
from tests.support.type_pairs import COLUMNS

HELD = {"FLOAT": 0.10000000149011612, "MAP": [("k", 1)], "UuidType": ID.bytes}  # as Python shows them
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.of} {case.kind}")


def made(kind: Any, value: Any) -> Any:
    """The value as a handler's column has it, or the error of its record."""
    column: Any
    column, [one] = arrow_rows([CallOutcome(Record("payments", 0, 0), [{"v": value}])], {"": pa.schema([("v", kind)])})
    return one.error or column.to_pylist()[0]["rows"][0]["v"]


@pytest.mark.behaviour("HAND-10", "SINK-26")
def test_each_type_of_pyarrow_has_a_case() -> None:
    given = cast("dict[str, Any]", vars(arrow.lib))
    extensions = {
        name for name, one in given.items() if isinstance(one, type) and issubclass(one, pa.BaseExtensionType)
    }
    ours = {one.of for one in CASES}
    assert ours == {one.name for one in arrow.types.TypesEnum} | extensions - {
        *("BaseExtensionType", "ExtensionType", "UnknownExtensionType")
    }
    assert all(one.kind is None or one.of in {type(one.kind).__name__, _name(one.kind)} for one in CASES)


def _name(kind: Any) -> str:
    return next((one.name for one in arrow.types.TypesEnum if one == kind.id), "")


class Leaves:
    """A value of the user's own class, which is no value of the column."""

    def __eq__(self, _: object) -> bool:
        raise SystemExit(3)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class Unspeakable(ValueError):
    def __str__(self) -> str:
        raise ValueError("no")


class Raises:
    def __eq__(self, _: object) -> bool:
        raise Unspeakable

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@pytest.mark.behaviour("CONS-15", "HAND-10")
@pytest.mark.parametrize("value", [Leaves(), Raises()], ids=["leaves", "raises"])
def test_a_value_that_leaves_when_it_is_looked_at_fails_its_record_alone(value: object) -> None:
    column: Any
    rows = [CallOutcome(Record("payments", 0, at), [{"v": one}]) for at, one in enumerate((1, value))]
    column, found = arrow_rows(rows, {"": pa.schema([arrow.field("v", pa.int64(), nullable=False)])})
    assert [one.error is None for one in found] == [True, False]
    assert column.to_pylist() == [{"rows": [{"v": 1}]}, {"rows": []}]


@EACH
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside a list"])
@pytest.mark.behaviour("HAND-10")
def test_a_handler_s_value_is_kept_as_it_is_or_fails_its_record(case: Case, *, inside: bool) -> None:
    if case.kind is None:
        return
    kind = arrow.list_(case.kind) if inside else case.kind
    if not (case.handled_inside if inside else case.handled):
        with pytest.raises(ConfigurationError, match=r"In v, replace .* by .*"):
            schema_of(pa.schema([("v", kind)]))
        return
    schema_of(pa.schema([("v", kind)]))
    held = HELD.get(case.of, case.value)
    assert made(kind, [case.value] if inside else case.value) == ([held] if inside else held)
    assert made(kind, None) is None
    for bad in case.bad:
        error = made(kind, [bad] if inside else bad)
        assert getattr(error, "error_class", None) == "HandlerResult", (bad, error)


@pytest.mark.behaviour("HAND-10")
@pytest.mark.parametrize("mapping", [dict, MappingProxyType, UserDict])
def test_nested_values_are_taken_in_any_form_that_fits(mapping: Callable[[Any], Any]) -> None:
    seven, decimal = np.int64(7), pa.decimal128(5, 2)
    assert made(arrow.list_(arrow.list_(decimal)), [[seven, None], None]) == [[Decimal(7), None], None]
    struct = arrow.struct([("a", decimal), ("b", arrow.map_(pa.string(), decimal))])
    value = mapping({"a": seven, "b": mapping({"k": seven, "l": None})})
    assert made(struct, value) == {"a": Decimal(7), "b": [("k", Decimal(7)), ("l", None)]}
    assert made(arrow.map_(pa.string(), struct), [("k", mapping({"a": 1}))]) == [("k", {"a": Decimal(1), "b": None})]
    assert made(arrow.dictionary(pa.int8(), decimal), seven) == Decimal(7)


@EACH
@pytest.mark.behaviour("SINK-26")
def test_plain_values_are_the_same_also_of_a_slice(case: Case) -> None:
    if case.kind is None:
        return
    if not case.column:
        assert plain(case.kind) is None
        assert plain(arrow.list_(case.kind)) is None
        assert not any(find_cast(case.kind, column) for column in COLUMNS.values())
        return
    whole = arrow.concat_arrays([case.array, case.array.slice(1), case.array])
    for given in (whole, whole.slice(2), whole.slice(1, 2)):
        made = plain_values(given)
        made.validate(full=True)
        assert made.to_pylist() == given.to_pylist()
        assert made.type == plain(given.type)


@pytest.mark.behaviour("HAND-10", "SINK-26")
@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64()), pa.struct([("n", pa.int64())])], ids=str)
def test_a_type_that_is_not_in_the_table_is_refused(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_BY_ID", {n: one for n, one in kinds._BY_ID.items() if n != pa.int64().id})
    with pytest.raises(ConfigurationError, match=r"In v, replace int64 by string"):
        schema_of(pa.schema([("v", kind)]))
    assert not any(find_cast(kind, column) for column in COLUMNS.values())


@pytest.mark.behaviour("SINK-26")
@pytest.mark.parametrize("kind", [arrow.string_view(), arrow.run_end_encoded(pa.int32(), pa.string())], ids=str)
def test_rows_of_many_records_are_those_of_their_records(kind: Any) -> None:
    case = next(one for one in CASES if one.kind == kind)
    table = arrow.table({"v": arrow.concat_arrays([case.array] * 200)})
    rows = RowsByRecord(Append("kinds"), table, array("q", range(401)))
    batches: list[Any] = [*rows.rows_of(range(0, 400, 2)).batches()]
    assert [one for batch in batches for one in plain_values(batch.column("v")).to_pylist()] == [case.value] * 200


@pytest.mark.behaviour("SINK-26")
def test_a_uuid_is_no_json_and_json_is_no_uuid() -> None:
    for kind, own in ((arrow.uuid(), "uuid[]"), (arrow.json_(), "jsonb[]")):
        fitting = [name for name, column in COLUMNS.items() if find_cast(arrow.list_(kind), column)]
        assert fitting == ["json", "jsonb", "text[]", own]


@pytest.mark.behaviour("SINK-26")
def test_views_in_any_order_are_lists_in_theirs() -> None:
    offsets, sizes = (pa.array(one, pa.int32()) for one in ([2, 0, 1, 0], [1, 2, 2, 0]))
    mask = pa.array([False, False, True, False])
    views = arrow.ListViewArray.from_arrays(offsets, sizes, pa.array([1, 2, 3]), mask=mask)
    assert plain_values(views).to_pylist() == [[3], [1, 2], None, []]
    assert plain_values(views.slice(1)).to_pylist() == [[1, 2], None, []]


@pytest.mark.behaviour("HAND-10")
@pytest.mark.parametrize(
    ("kind", "kept", "refused"),
    [
        (
            pa.float32(),
            [0.0, 0.3, 1e-45, 3.4028235e38, 3.4028234663852886e38, float("-inf"), 2**24, 3.14159274, 1.4e-45],
            [1e-46, 1 / 3, 3.5e38, 2**24 + 1, 0.1 + 1e-12, 0.123456789, 2.0**-150],
        ),
        (pa.float16(), [0.1, 65504, 6e-08, 1.5, float("-inf")], [1e-9, 65520.0, 0.12345]),
        (pa.float64(), [2**53, 5e-324, 1.7976931348623157e308], [2**53 + 1, 2**60, 10**400]),
    ],
    ids=str,
)
def test_a_number_keeps_its_digits(kind: Any, kept: list[float], refused: list[float]) -> None:
    assert [one for one in kept if hasattr(made(kind, one), "error_class")] == []
    assert [one for one in refused if not hasattr(made(kind, one), "error_class")] == []
    assert str(made(kind, -0.0)) == "-0.0"
    assert str(made(kind, float("nan"))) == "nan"
