"""``python -m tests.support.type_names``: fail if two types of the package have one name.

A reader who meets a name in a signature, or searches for it, should find one definition. `make lint` runs it.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[2] / "offsetstore"


def type_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names of a module's classes, nested ones included, and of its type aliases, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            yield ast.unparse(node.target), node.lineno


def find_twice(package: Path = PACKAGE) -> Mapping[str, list[str]]:
    """The names with more than one definition, each with the places of these."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(package.rglob("*.py")):
        for name, line in type_names(ast.parse(file.read_text(encoding="utf-8"))):
            places[name].append(f"{file.relative_to(package.parent)}:{line}")
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def main() -> None:
    """End with an error that names them, if there are any."""
    twice = [f"{name} is defined more than once: {', '.join(places)}" for name, places in find_twice().items()]
    sys.exit("\n".join(twice) or None)


if __name__ == "__main__":
    main()
