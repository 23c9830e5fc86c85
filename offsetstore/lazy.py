"""Public names that are imported at first use, because each needs an extra."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from offsetstore.errors import MissingDependency


def load(package: str, name: str, lazy: Mapping[str, tuple[str, str]]) -> Any:
    """Do what the package's ``__getattr__`` has to.

    :param lazy: by name, the module that has it, and the extra that this needs; see `find`.
    :raises AttributeError: the package has no such name.
    :raises MissingDependency: a package of the extra is not installed.
    """
    if name not in lazy:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, extra = lazy[name]
    return find(module, name, what=name, extra=extra)


def find(module: str, name: str, *, what: str, extra: str) -> Any:
    """Import the module, and return what it has under the name.

    :param what: needs the extra, for the message.
    :param extra: its name, or several of which one is enough, as "consumer or spark".
    :raises MissingDependency: a package of the extra is not installed.
    """
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("offsetstore"):
            raise
        commands = (f"`pip install 'offsetstore[{one}]'`" for one in extra.split(" or "))
        raise MissingDependency(
            f"{what} needs a package that is not installed",
            found=f"no {error.name}",
            next_step=f"Run {' or '.join(commands)}.",
        ) from None
