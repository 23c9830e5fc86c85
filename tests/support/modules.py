"""What is imported, as if for the first time."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def forgotten(*names: str, lacking: str) -> Generator[None]:
    """Within the block, these modules and those below them are imported anew, and ``lacking`` is not installed.

    Afterwards everything is as before, the names in their packages too: they would keep the second module, beside the
    first one in ``sys.modules``, and a later test would replace a function in the one while its fixture runs the other.
    """
    before = _loaded(*names, lacking)
    places = [(sys.modules.get(package), name) for package, _, name in (one.rpartition(".") for one in names)]
    attributes = [(package, name, vars(package).get(name)) for package, name in places if package is not None]
    for name in before:
        del sys.modules[name]
    sys.modules[lacking] = None  # type: ignore[assignment] # what makes an import fail
    try:
        yield
    finally:
        for name in _loaded(*names, lacking):
            del sys.modules[name]
        sys.modules.update(before)
        for package, name, module in attributes:
            if module is not None:
                setattr(package, name, module)
            elif hasattr(package, name):
                delattr(package, name)


def _loaded(*names: str) -> dict[str, ModuleType]:
    return {one: sys.modules[one] for one in [*sys.modules] if any(f"{one}.".startswith(f"{name}.") for name in names)}
