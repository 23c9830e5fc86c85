"""The matrix of versions: which cells are run, what is read from a run, and the page."""

from __future__ import annotations

import re
from typing import Any

import pytest

from offsetstore.local.jars import KAFKA_BROKER, KAFKA_VERSION
from tests.matrix.__main__ import ROOT, counts, names_passed
from tests.matrix.broker_version import kafka_broker
from tests.matrix.cells import CELLS, LEFT_OUT, TESTS, VERSIONS, chosen
from tests.matrix.page import text

REPORT = """
<testsuites><testsuite>
  <testcase classname="tests.a" name="test_holds"/>
  <testcase classname="tests.a" name="test_fails"><failure/></testcase>
  <testcase classname="tests.b" name="test_breaks[1]"><error/></testcase>
  <testcase classname="tests.b" name="test_is_left_out"><skipped/></testcase>
</testsuite></testsuites>
"""


def result(cell: str, *failures: str, commit: str = "c1", tests: int = 9, skipped: int = 0) -> dict[str, Any]:
    found = {"tests": tests, "skipped": skipped, "failures": list(failures), "seconds": 5}
    return {"cell": cell, "commit": commit, "python": "3.11.7", **found}


def test_a_cell_has_tests_that_exist() -> None:
    assert [path for cell in CELLS for path in cell.paths if not (ROOT / path).exists()] == []


def test_what_is_left_out_of_a_row_is_a_test_of_its_cells() -> None:
    cells = {f"{cell.product}-{cell.version}" for cell in CELLS}
    assert cells.issuperset(LEFT_OUT)
    for test in (test for tests in LEFT_OUT.values() for test in tests):
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8")
    [kafka] = chosen(["kafka-3.9.2/client"])
    assert kafka.left_out == [f"--deselect={test}" for test in LEFT_OUT["kafka-3.9.2"]]


def test_cells_are_chosen_by_any_part_of_their_names_in_the_order_of_the_list() -> None:
    assert chosen([]) == list(CELLS)
    names = [cell.name for cell in chosen(["kafka-3.9", "postgresql-14.24.0/contract"])]
    assert names == ["postgresql-14.24.0/contract", "kafka-3.9.2/smoke", "kafka-3.9.2/client", "kafka-3.9.2/consumer"]
    with pytest.raises(LookupError, match=r"contains mysql, 9\.6; --list"):
        chosen(["kafka", "mysql", "9.6"])


def test_the_tests_that_failed_are_read_by_name() -> None:
    found = counts(REPORT)
    assert found == {"tests": 4, "skipped": 1, "failures": ["tests.a.test_fails", "tests.b.test_breaks[1]"]}


def test_only_what_passed_last_on_this_commit_is_not_run_again() -> None:
    runs = [result("a"), result("b", "t"), result("b"), result("c"), result("c", "t"), result("d", commit="c0")]
    assert names_passed(runs, "c1") == {"a", "b"}
    assert names_passed([result("a", commit="c1-dirty")], "c1-dirty") == set()


def test_a_broker_has_the_version_and_before_kafka_4_1_what_it_logs_with() -> None:
    assert kafka_broker(KAFKA_VERSION) == KAFKA_BROKER
    names = {version: [one.name for one in kafka_broker(version).artifacts] for version in VERSIONS["kafka"]}
    assert names["4.2.2"] == names["4.4.0"] == ["kafka_2.13", "log4j-slf4j-impl"]
    assert names["4.0.2"] == names["3.9.2"] == [*names["4.2.2"], "log4j-api", "log4j-core", "log4j-1.2-api"]
    assert kafka_broker("3.9.2").artifacts[0].revision == "3.9.2"


def test_the_page_tells_what_passed_failed_and_was_not_run() -> None:
    page = text([
        result("postgresql-14.24.0/contract", "t.old", commit="c0"),
        result("postgresql-14.24.0/contract", skipped=1),
        result("postgresql-14.24.0/migrations", "t.one", "t.two", commit="c2"),
        result("kafka-3.9.2/client", "not installed: no network", tests=0),
        result("oracle-23/contract"),
    ])  # fmt: skip
    rows = [line for line in page.splitlines() if line.startswith(("| 14.24.0", "| 18.6.0", "| 3.9.2"))]
    assert rows == [
        "| 14.24.0 | 8 passed, 1 skipped | **2 of 9 failed** | not run | `c1`, `c2` |",
        "| 18.6.0 | not run | not run | not run |  |",
        "| 3.9.2 | not run | **did not run** | not run | `c1` |",
    ]
    assert page.partition("## Failed\n")[2].split("\n- ")[1:] == [
        "postgresql-14.24.0/migrations: t.one",
        "postgresql-14.24.0/migrations: t.two",
        "kafka-3.9.2/client: not installed: no network\n",
    ]
    assert "oracle" not in page
    assert "\n3.9.2 without consumers that join by the protocol of KIP-848" in page


def test_each_cell_of_the_page_has_been_run_and_none_failed() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    for product, versions in VERSIONS.items():
        for wanted in versions:
            [row] = [line for line in page.splitlines() if line.startswith(f"| {wanted} |")]
            cells = [cell.strip() for cell in row.strip("|").split("|")[1:]]
            assert len(cells) == len(TESTS[product]) + 1, row
            assert all(re.fullmatch(r"[1-9]\d* passed(, \d+ skipped)?", cell) for cell in cells[:-1]), row
    assert "not run" not in page
    assert "failed" not in page
