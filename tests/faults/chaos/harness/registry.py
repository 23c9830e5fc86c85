"""Which faults there are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tests.faults.chaos.harness.job import Way

if TYPE_CHECKING:
    from tests.faults.chaos.harness.scene import Scene

Break: TypeAlias = "Callable[[Scene], None]"

WAYS: tuple[Way, ...] = ("batch", "partition")


@dataclass(frozen=True)
class Fault:
    """One way to break the job.

    :param row: the matrix's row that it belongs to.
    :param how: what is done, and ``must``: what must hold.
    """

    name: str
    row: str
    how: str
    must: str
    ways: tuple[Way, ...]
    variant: str
    partitions: int
    seeds: int
    run: Break


FAULTS: dict[str, Fault] = {}


def fault(
    *,
    row: str,
    must: str,
    ways: tuple[Way, ...] = WAYS,
    variants: tuple[str, ...] = ("",),
    partitions: int = 3,
    seeds: int = 5,
) -> Callable[[Break], Break]:
    """Register a function as a fault, once for each variant; its docstring says how it is done.

    :param seeds: how many runs are the least that tell something.
    """

    def register(function: Break) -> Break:
        title = function.__name__.replace("_", "-")
        how = " ".join((inspect.getdoc(function) or "").split())
        assert how, f"{title} does not say what it does"
        for variant in variants:
            full = f"{title}/{variant}" if variant else title
            assert full not in FAULTS, f"{full} is there twice"
            FAULTS[full] = Fault(full, row, how, must, ways, variant, partitions, seeds, function)
        return function

    return register


def load() -> dict[str, Fault]:
    for file in sorted((Path(__file__).parents[1] / "cases").glob("[a-z]*.py")):
        import_module(f"tests.faults.chaos.cases.{file.stem}")
    return FAULTS
