"""What a named mutant is: one guard of the guarantee taken out, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """One edit of a definition; see `edits`.

    ``where`` names a function, a class or a constant (``Class.method``), wherever the package defines it. If several
    files do, the name of one's folder, or its own, goes before it: ``spark:judge``.
    """

    where: str
    old: str
    new: str
    in_text: bool = False


@dataclass(frozen=True, slots=True)
class Mutant:
    """A copy of the tree that is wrong on purpose; see `catalogue`."""

    name: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    why: str

    @property
    def needs_spark(self) -> bool:
        """Whether its tests start a Spark."""
        return any(test.startswith("tests/integration/spark/") for test in self.tests)
