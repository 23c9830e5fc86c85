"""A process that reports as a consumer's does: ``python tests/support/reporting_process.py STEPS DESCRIPTOR PAGE``.

STEPS are words: ``report=BASE64`` sends that, and ``words=BASE64`` writes it to the page; ``exit=CODE``
ends it, ``kill=NUMBER`` by a signal, as ``stop`` stops it; ``grow=BYTES`` makes it larger, ``child=FILE`` starts
another process and writes its number there, ``deaf`` ignores SIGTERM, ``deaf=CODE`` ends with that code then, ``wait``
repeats the last report until it comes, and ``hush`` waits for it without a report. It imports nothing of ours: a test
starts many of them.
"""

from __future__ import annotations

import base64
import faulthandler
import os
import signal
import struct
import sys
import time
import zlib
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from types import FrameType

SECONDS = 120.0


def _end(code: str, *_: object) -> None:
    sys.exit(int(code))


def _start_child(file: str) -> None:
    if (child := os.fork()) == 0:
        time.sleep(SECONDS)
        os._exit(0)
    with open(file, "w", encoding="ascii") as opened:  # noqa: PTH123 - pathlib takes long to import
        opened.write(str(child))


def _write(page: int, number: int, words: bytes) -> None:
    head = struct.pack("<QQI", number, len(words), zlib.crc32(words, number))
    os.pwrite(page, head + words, number % 2 * (1 << 26))


def _repeat(connection: Connection, report: bytes) -> None:
    for _ in range(int(SECONDS * 10)):
        time.sleep(0.1)
        connection.send_bytes(report)


def _main(steps: str, descriptor: int, page: int) -> None:  # noqa: C901 - one case for each word
    connection = Connection(descriptor)
    kept: list[bytearray] = []
    last, told = b"", count(1)

    def on_signal(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, on_signal)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    for step in steps.split():
        word, _, value = step.partition("=")
        match word:
            case "report":
                last = base64.b64decode(value)
                connection.send_bytes(last)
            case "words":
                _write(page, next(told), base64.b64decode(value))
            case "kill" | "stop":
                number = int(value or signal.SIGSTOP)
                if signal.getsignal(number) is signal.SIG_IGN:  # as a run in the background has it
                    signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            case "exit":
                sys.exit(int(value))
            case "grow":
                kept.append(bytearray(b"x" * int(value)))
            case "child":
                _start_child(value)
            case "deaf":
                signal.signal(signal.SIGTERM, partial(_end, value) if value else signal.SIG_IGN)
            case "hush":
                time.sleep(SECONDS)
            case _:
                _repeat(connection, last)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
