"""A supervisor that gets orphans, as process 1 of a container does: ``python tests/support/adopting.py COMMAND …``.

Each COMMAND, words joined by spaces in JSON, is one process, started again by the same. What it says goes to standard
output; it ends at SIGTERM.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

from offsetstore.monitoring.processes import Care, Supervisor

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _main(commands: list[list[str]]) -> int:
    assert ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0) == 0
    if os.fork() == 0:  # as what a container's entry point has started before it became the supervisor
        os._exit(0)
    supervisor = Supervisor(len(commands), lambda number: commands[number], say=_say, care=Care(reaps=True))
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(_main([json.loads(text) for text in sys.argv[1:]]))
