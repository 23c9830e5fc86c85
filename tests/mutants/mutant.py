"""What a named mutant is: one guard of the guarantee taken out, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement. ``old`` stands in ``file`` exactly once; ``file`` counts from the top of the checkout."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A copy of the tree that is wrong on purpose.

    ``tests`` are pytest's node ids, the fewest and fastest that catch it. ``why`` says what a user would lose.
    """

    name: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    why: str

    @property
    def needs_spark(self) -> bool:
        """Whether its tests start a Spark."""
        return any(test.startswith("tests/integration/spark/") for test in self.tests)


def mutant(name: str, *changes: tuple[str, str, str], tests: tuple[str, ...], why: str) -> Mutant:
    """Make one of plain tuples (file, old, new)."""
    return Mutant(name, tuple(Change(*change) for change in changes), tests, why)
