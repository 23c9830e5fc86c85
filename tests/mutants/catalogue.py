"""All named mutants, from the tables beside this file: those that need no server first, those that need Spark last.

A table's name is the mutant's. ``edits`` has [where, old, new] for each; with a fourth, "in text", of what is in the
strings of a definition, as of SQL. ``tests`` are pytest's node ids, the fewest and fastest that catch it. ``why`` says
what a user would lose.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILES: Final = (
    "start",
    "store",
    "fleet",
    "consumer",
    "supervisor",
    "operating",
    "shown",
    "end",
    "value",
    "letter",
    "replay",
    "handler",
    "outbox",
    "spark",
)


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


def _read(name: str) -> Iterator[Mutant]:
    tables = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
    for mutant, table in tables.items():
        changes = tuple(
            Change(where, old, new, in_text=rest == ["in text"]) for where, old, new, *rest in table["edits"]
        )
        yield Mutant(mutant, changes, tuple(table["tests"]), table["why"])


MUTANTS: Final = tuple(mutant for name in FILES for mutant in _read(name))
