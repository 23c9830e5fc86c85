"""Which rows a transform rejects, and what their letters show; Spark's part is the integration's."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from offsetstore.errors import RowsRefused
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.outputs import reject_of
from offsetstore.protocol.letters import LetterError
from offsetstore.spark.columns import REJECT_COLUMN, are_rejected, none_rejected

arrow = cast("Any", pa)
STRUCT = arrow.struct([("code", arrow.string()), ("reason", arrow.string())])

pytestmark = pytest.mark.behaviour("DLQ-12")


def batch(kind: Any, *given: Any) -> Any:
    columns = [arrow.array(range(len(given))), arrow.array(given, kind)]
    return arrow.RecordBatch.from_arrays(columns, names=["n", REJECT_COLUMN])


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        pytest.param(arrow.string(), [None], ["no amount", ""], id="string"),
        pytest.param(
            STRUCT,
            [None, {"code": None, "reason": None}],
            [{"code": "a", "reason": None}, {"code": None, "reason": "b"}, {"code": "", "reason": ""}],
            id="struct",
        ),
    ],
)
def test_a_row_is_good_if_nothing_is_said_of_it(kind: Any, good: list[Any], bad: list[Any]) -> None:
    rows = batch(kind, *good, *bad)
    assert are_rejected(rows.column(1)).to_pylist() == [False] * len(good) + [True] * len(bad)
    for none in (batch(kind, *good), batch(kind)):
        assert none_rejected(none).schema.names == ["n"]
    for one in bad:
        with pytest.raises(RowsRefused) as caught:
            none_rejected(batch(kind, *good, one, *good))
        assert caught.value.column == "_reject"


@pytest.mark.behaviour("OPS-7")
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("value is 17", LetterError("Rejected", "value is 17")),
        ({"code": "no-amount", "reason": "value is 17"}, LetterError("no-amount", "value is 17")),
        ({"code": "x" * 64, "reason": None}, LetterError("x" * 64, "")),
        ({"code": "x" * 65, "reason": "y"}, LetterError("Rejected", f"{'x' * 65}: y")),
        ({"code": "a\0b", "reason": None}, LetterError("ab", "")),
        ({"code": "\0", "reason": "y"}, LetterError("Rejected", "y")),
        ({"code": None, "reason": "y"}, LetterError("Rejected", "y")),
    ],
)
def test_a_code_is_shown_and_a_text_or_what_is_too_long_for_a_code_is_not(given: Any, error: LetterError) -> None:
    assert reject_of(given) == Rejected(error)
