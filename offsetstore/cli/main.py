"""The entry point of ``offsetstore``: it says what is missing where the extra ``cli`` is not installed."""

from __future__ import annotations

import sys
import traceback
from typing import NoReturn

_USAGE = 2
_BUG = 70
_EXTRA = frozenset({"click", "rich"})


def main() -> NoReturn:
    """Run the command line and exit; the codes are in ``offsetstore --help``."""
    try:
        from offsetstore.cli.commands import cli  # noqa: PLC0415 - needs click, which may not be there

        cli(prog_name="offsetstore")
    except Exception as error:  # noqa: BLE001 - what nobody expected gets a code of its own: 1 is an answer
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if missing not in _EXTRA:
            traceback.print_exc()
            sys.exit(_BUG)
        sys.stderr.write(
            "Error: the command line needs a package that is not installed\n"
            f"  found:     no {missing}\n"
            "  next step: pip install 'offsetstore[cli]'\n"
        )
        sys.exit(_USAGE)
    sys.exit(0)
