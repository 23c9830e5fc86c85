from __future__ import annotations

import pyarrow as pa
import pytest

from offsetstore.writers.table.catalogue import Column
from offsetstore.writers.table.conversions import conversion


@pytest.mark.behaviour("SINK-22")
@pytest.mark.parametrize(
    ("precision", "scale", "cast"),
    [(12, 2, "12,2"), (3, 5, "5,5"), (38, 38, "38,38"), (50, 2, "38,2"), (60, 40, "38,18"), (100, 50, "38,6")],
)
def test_a_cast_to_a_numeric_that_is_too_wide_for_spark_keeps_the_digits_before_the_point(
    precision: int, scale: int, cast: str
) -> None:
    column = Column("x", f"numeric({precision},{scale})", "numeric", modifier=(precision << 16 | scale) + 4)
    assert conversion("x", pa.float64(), column).expressions == (f'col("x").cast("decimal({cast})")',)
