"""The entry point of ``offsetstore``, which says what to install if the extra ``cli`` is missing."""

from __future__ import annotations

import io
import sys
import traceback
from typing import NoReturn

from offsetstore.lazy import how_to_install

_USAGE = 2
_BUG = 70
_EXTRA = frozenset({"click", "rich"})


def main() -> NoReturn:
    """Run the command line and exit; ``offsetstore --help`` lists the exit codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name may have characters that the locale can't show.
            stream.reconfigure(errors="backslashreplace")
    try:
        from offsetstore.cli.commands import cli  # noqa: PLC0415 - needs click, which may be missing

        cli(prog_name="offsetstore")
    except Exception as error:  # noqa: BLE001 - an unexpected error has an exit code of its own: 1 is an answer
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if missing not in _EXTRA:
            traceback.print_exc()
            sys.exit(_BUG)
        sys.stderr.write(
            "Error: the command line needs a package that is not installed\n"
            f"  found:     no {missing}\n"
            f"  next step: {how_to_install('cli')}\n"
        )
        sys.exit(_USAGE)
    sys.exit(0)
