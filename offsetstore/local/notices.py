"""Show a person that something long is under way: a line that changes at a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

Notice: TypeAlias = Callable[[str], None]


def print_notice(text: str) -> None:
    """Print a plain line on stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the output


@contextmanager
def notices() -> Generator[Notice]:
    """Yield a function that shows notices. At a terminal with rich installed, each replaces the last."""
    if not sys.stderr.isatty():
        yield print_notice
        return
    try:
        from rich.console import Console  # noqa: PLC0415 - comes with the extra `cli`
        from rich.markup import escape  # noqa: PLC0415
    except ImportError:
        yield print_notice
        return
    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(escape(text))
