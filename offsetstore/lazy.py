"""Public names that are imported at first use, because each needs an extra."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from offsetstore.errors import MissingDependency


def load(package: str, name: str, lazy: Mapping[str, tuple[str, str]]) -> Any:
    """Implement the package's ``__getattr__``.

    :param lazy: for each name, the module that has it, and the extra that the module needs; see `find`.
    :raises AttributeError: the package has no such name.
    :raises MissingDependency: a package of the extra is not installed.
    """
    if name not in lazy:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, extra = lazy[name]
    return find(module, name, what=name, extra=extra)


def how_to_install(extra: str) -> str:
    """The next step if an extra is missing, also where the package comes from a checkout and not from an index.

    :param extra: its name, or names of which one is enough, as "consumer or spark".
    """
    names = extra.split(" or ")
    commands = " or ".join(f"`pip install 'offsetstore[{name}]'`" for name in names)
    return f"Run {commands}; in a checkout, with '.[{names[0]}]' for 'offsetstore[{names[0]}]'."


def find(module: str, name: str, *, what: str, extra: str) -> Any:
    """Import the module, and return its attribute of this name.

    :param what: what needs the extra, for the message.
    :param extra: see `how_to_install`.
    :raises MissingDependency: a package of the extra is not installed.
    """
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        # A module of ours that is missing is a bug, and no extra.
        if (error.name or "").startswith("offsetstore"):
            raise
        raise MissingDependency(
            f"{what} needs a package that is not installed",
            found=f"no {error.name}",
            next_step=how_to_install(extra),
        ) from None
