from __future__ import annotations

from typing import Any

import pytest

from benchmarks.report import plot, render, with_figures

SAMPLES = [
    ("small", "batch", "defaults", [1.5, 1.2, 3.0]),
    ("small", "noop", "defaults", [1.0, 2.0, 0.9]),
    ("small", "copy", "memory", [0.5]),
    ("small", "append", "memory", [0.75]),
    ("steady-500", "batch", "5 ms", [0.25]),
    ("steady-500", "noop", "tuned", [0.1]),
    ("tenth", "batch", "tuned", [1.0]),
    ("large", "batch", "tuned", [9.0]),
    ("large", "noop", "tuned", [6.0]),
]
RESULTS: dict[str, Any] = {
    "begun": "2026-01-31T12:00:00+00:00",
    "commit": "abc",
    "rounds": 3,
    "machine": {"cores": 2, "memory_gb": 8, "load": 0.1},
    "spark": {"spark.master": "local[2]", "spark.driver.memory": "1g"},
    "versions": {"java": "17"},
    "postgresql": {"fsync": "on"},
    "jdbc": {"batchsize": 1000},
    "shapes": {
        "small": {"records": 3000, "per_trigger": None},
        "steady-500": {"records": 20_000, "per_trigger": 500},
        "tenth": {"records": 200_000, "per_trigger": None},
        "large": {"records": 2_000_000, "per_trigger": None},
    },
    "samples": [
        {"shape": shape, "job": job, "settings": settings, "seconds": one}
        for shape, job, settings, seconds in SAMPLES
        for one in seconds
    ],
    "peaks": [
        {"shape": shape, "job": "batch", "driver": driver, "worker": 80, "heap": 90.4}
        for shape, driver in (("tenth", 100), ("large", 110))
    ],
}


def test_jobs_are_compared_with_noop_by_their_medians_and_triggers_are_in_milliseconds() -> None:
    lines = render(RESULTS).splitlines()

    at = lines.index("### 3,000 small records in one batch")
    assert lines[at + 4 : at + 6] == [
        "| noop: Spark writes nothing | Spark's | 1.00 | 0.90 to 2.00 | 1.00 | 1.00 | 3,000 |",
        "| offsetstore, batch | Spark's | 1.50 | 1.20 to 3.00 | 1.50 | 1.50 | 2,000 |",
    ]
    assert {
        "| offsetstore's `Append`, of Arrow batches | 0.75 | 0.75 to 0.75 | 1.50 | 4,000 |",
        "| offsetstore, batch | recommended, 5 ms a round trip | 250 | 250 to 250 | - | 2.50 | 150 |",
        "| offsetstore, batch | 1.00 | 9.00 | 9.00 | 1.50 | 100 → 110 | 80 → 80 | 90 → 90 |",
    } <= {*lines}
    assert plot(RESULTS).count("<rect") == 1 + 2  # the background, and a bar for each that can be compared


def test_figures_replace_those_between_the_marks() -> None:
    begin, end = "<!-- figures: written by python -m benchmarks.report -->", "<!-- end of the figures -->"
    page = with_figures(f"a\n{begin}\nold\n{end}\nb", "new\n")
    assert page == f"a\n{begin}\n\nnew\n\n{end}\nb"
    with pytest.raises(AssertionError, match="no place"):
        with_figures("a page", "new")
