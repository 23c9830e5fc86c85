"""What `make matrix` runs: one cell for each version of one product and each set of tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

VERSIONS: Final = {
    "postgresql": ("14.24.0", "15.19.0", "16.15.0", "17.11.0", "18.6.0"),
    "pyspark": ("4.0.4", "4.1.3", "4.2.0"),  # the newest of each that have a Kafka connector on Maven Central
    "kafka": ("3.9.2", "4.0.2", "4.2.2", "4.4.0"),
}
_SMOKE: Final = ("tests/integration/spark/test_batches.py",)
_KAFKA: Final = "tests/integration/kafka"
TESTS: Final = {
    "postgresql": {
        "contract": ("tests/contract/test_postgres.py", "tests/contract/test_pooled.py"),
        "migrations": ("tests/migration",),
        "smoke": _SMOKE,
    },
    "pyspark": {
        "smoke": _SMOKE,
        "internals": (
            "tests/integration/spark/test_collecting.py",
            "tests/integration/spark/test_types.py",
            "tests/integration/spark/test_partition_atomicity.py",
            "tests/integration/spark/test_row_by_row.py",
            "tests/integration/spark/test_scan.py",
            "tests/integration/spark/test_stateful.py",
            "tests/integration/spark/test_tuning.py",
        ),
    },
    "kafka": {"smoke": _SMOKE, "client": (_KAFKA,), "consumer": ("tests/integration/consumer",)},
}
"""The paths, from the top of the checkout, by product and the set's name."""

LEFT_OUT: Final = {
    "kafka-3.9.2": {
        f"{_KAFKA}/test_commit.py::test_a_group_with_members_is_refused_with_how_to_find_them[consumer]": (
            "consumers that join by the protocol of KIP-848, which these brokers do not have"
        )
    }
}
"""Tests that say nothing about a version, and why."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One set of tests on one version of one product; everything else is what `make setup` installs."""

    product: str
    version: str
    tests: str

    @property
    def name(self) -> str:
        """``product-version/tests``."""
        return f"{self.product}-{self.version}/{self.tests}"

    @property
    def paths(self) -> tuple[str, ...]:
        """What pytest is given."""
        return TESTS[self.product][self.tests]

    @property
    def left_out(self) -> list[str]:
        """Pytest's options that leave tests out."""
        return [f"--deselect={test}" for test in LEFT_OUT.get(f"{self.product}-{self.version}", ())]


CELLS: Final = tuple(
    Cell(product, version, tests)
    for product, versions in VERSIONS.items()
    for version in versions
    for tests in TESTS[product]
)


def chosen(only: Sequence[str]) -> list[Cell]:
    """Return the cells whose names contain one of the texts, all cells without any text.

    :raises LookupError: no cell's name contains one of them.
    """
    if unknown := [text for text in only if not any(text in cell.name for cell in CELLS)]:
        raise LookupError(f"no cell's name contains {', '.join(unknown)}; --list shows them.")
    return [cell for cell in CELLS if not only or any(text in cell.name for text in only)]
