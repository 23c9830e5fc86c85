"""What users call is documented: every public name, and each of its methods and properties."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

PACKAGES = (
    "offsetstore",
    "offsetstore.consumer",
    "offsetstore.kafka.admin",
    "offsetstore.monitoring",
    "offsetstore.outbox",
    "offsetstore.spark",
    "offsetstore.testing",
    "offsetstore.writers",
)
PORTS = ("MemoryDatabase", "StaticBroker")
"""Their methods are documented by the Protocols that they implement."""


def public() -> Iterator[tuple[str, Any]]:
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            yield f"{package}.{name}", getattr(module, name)


def members(of: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that a class of ours defines, its own and those it inherits."""
    for base in of.__mro__:
        if base.__module__.startswith("offsetstore"):
            yield from ((name, member) for name, member in vars(base).items() if not name.startswith("_"))


@pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in public()])
def test_a_public_name_and_what_can_be_called_of_it_have_a_docstring(value: Any) -> None:
    if not inspect.isclass(value):
        assert inspect.getdoc(value) or not callable(value)
        return
    assert value.__doc__
    if value.__name__ not in PORTS:
        called = [at for at, found in members(value) if callable(found) or isinstance(found, property | classmethod)]
        assert [at for at in called if not inspect.getdoc(getattr(value, at))] == []
