"""End a server when the process that started it is killed: none of our own code runs then, but a waiting shell can."""

from __future__ import annotations

import subprocess
from pathlib import Path

# Ends when its input does: after a word, the server was stopped or is to stay; without one, the other end of the pipe
# is gone, and with it the process that held it.
_SCRIPT = """\
read -r word
[ "$word" = leave ] && exit
kill -s "$1" "$2"
while kill -0 "$2" 2>/dev/null; do sleep 0.2; done
[ -z "$3" ] || rm -rf -- "$3"
"""


class Watchdog:
    """Watches this process on behalf of one server.

    :param how: the signal for the server's process, without ``SIG``.
    :param temporary: a directory to be removed with it.
    """

    def __init__(self, pid: int, *, how: str, temporary: Path | None) -> None:
        self._shell = subprocess.Popen(  # noqa: S603 - our own script
            ["/bin/sh", "-c", _SCRIPT, "watchdog", how, str(pid), str(temporary or "")],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def leave(self) -> None:
        """Call it off: the server has been stopped, or is to outlive us."""
        self._shell.communicate(b"leave\n")
