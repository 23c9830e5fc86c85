"""How names, counts, times and errors are written for people, and times by people, in a terminal and on a page."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from offsetstore.errors import FunctionFailed, OffsetStoreError, as_raised
from offsetstore.offsets import TopicPartition

NOTHING: Final = "-"
TRACE: Final = "OFFSETSTORE_TRACE"
"""An environment variable: if it is set, errors are printed with all that Python and Java know about them."""

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SHORT_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


# Characters that Python calls printable, but that are drawn as nothing (Unicode's Default_Ignorable_Code_Point) or as a
# blank: joiners, fillers, variation selectors. Marks of direction and tags are not printable for Python either.
_UNSEEN: Final = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)


def visible(value: object) -> str:
    """Return the text with each character escaped that is not drawn, and ``-`` for ``None``.

    So no name can control a terminal, break a line, or look like another name.
    """
    if value is None:
        return NOTHING
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char.isprintable() and not _UNSEEN.match(char) else char.encode("unicode_escape").decode()
        for char in text
    )


def logger(name: str) -> logging.Logger:
    """A module's logger, whose lines show names as `visible` does."""
    found = logging.getLogger(name)
    found.addFilter(_show)
    return found


def _show(record: logging.LogRecord) -> bool:
    # A record that can't be formatted is reported by its handler.
    with suppress(Exception):
        said = record.getMessage()
        shown = "\n".join(map(visible, said.split("\n")))
        if shown != said:
            record.msg, record.args = shown, ()
    return True


# The logger of a job's events, see `offsetstore.protocol.observers`.
logger("offsetstore")


def utc_time(seconds: float) -> str:
    """A time in seconds since 1970, to the second, in UTC."""
    # A producer can set any timestamp, such as one that `datetime` does not have.
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"the year {1970 + int(seconds / 31_556_952)}"


ERROR_LINES: Final = 15
_LINE: Final = 1_000  # characters
_SHOWN: Final = 6
OURS: Final = ("<frozen ", f"{Path(__file__).parent}{os.sep}")
"""The beginnings of the names of our own files, and of Python's frozen modules."""

_OTHERS: Final = (*OURS, *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


def describe_error(error: OffsetStoreError, next_step: str | None = None) -> tuple[str, dict[str, str]]:
    """What happened and where; and what was found, what was expected and the next step, if the error has them.

    They have at most `ERROR_LINES` lines together: the middle of what is too long is left out.

    :param next_step: replaces the error's own.
    """
    step = error.next_step if next_step is None else next_step
    what = error.what if error.topic_partition is None else f"{error.topic_partition}: {error.what}"
    details = {"found": error.found, "expected": error.expected, "next step": step or None}
    return shortened(
        what if error.doing is None else f"{what}, {error.doing}",
        {label: str(value) for label, value in details.items() if value is not None},
    )


def describe_other(error: BaseException, *, others: tuple[str, ...] = ()) -> tuple[str, dict[str, str]]:
    """What an error in the user's own code says, without Java's stack; the place that raised it; and the next step.

    :param others: paths of further code that is not the user's, beside Python's and ours.
    """
    error = as_raised(error)
    try:
        said = str(error)
    except BaseException as broken:  # noqa: BLE001 - the user's own class
        said = f"it can't be shown: {type(broken).__name__}"
    # Lines of Java's stack begin with "at".
    lines = [line for line in said.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    what, step = f"{type(error).__name__}: " + "\n".join(lines[:_SHOWN]), "Correct it"
    trace = list(traceback.walk_tb(error.__traceback__))
    # Raised by ``os.environ[...]``, whose text would be the variable's name and nothing else.
    if isinstance(error, KeyError) and trace and trace[-1][0].f_code is type(os.environ).__getitem__.__code__:
        what, step = f"the environment variable {error.args[0]} is not set", "Set it"
    place = place_of(error, others=others)
    details = {} if place is None else {"at": place}
    details["next step"] = f"{step}; {TRACE}=1 in the environment shows the whole trace."
    return shortened(what, details)


def print_trace(error: BaseException) -> None:
    """Print the tracebacks of an error and its causes, if the environment asks for them."""
    if not os.environ.get(TRACE):
        return
    # Of what a handler's call has raised there is only the text: it is an executor's, or its frames are gone.
    if isinstance(error, FunctionFailed) and error.__cause__ is None and error.traceback not in {None, *_notes(error)}:
        sys.stderr.write(f"{error.traceback}\nFrom that follows:\n\n")
    traceback.print_exception(error)


def _notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def line_of(error: BaseException, *, others: tuple[str, ...] = ()) -> traceback.FrameSummary | None:
    """The last line of the user's own code that an error came through; of an installed package if there is no other.

    :param others: paths of further code that is not the user's, beside Python's and ours.
    """
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OURS + others)
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_OTHERS)]
    # The user's code is installed: the first file stands for it.
    if not own:
        own = [frame for frame in frames if frame.filename == frames[0].filename]
    # Extension modules name files that exist only where they were built.
    readable = [frame for frame in own if frame.line] or own
    return readable[-1] if readable else None


def place_of(error: BaseException, *, others: tuple[str, ...] = ()) -> str | None:
    """Where the line of `line_of` is, for a terminal."""
    line = line_of(error, others=others)
    return None if line is None else f"{line.filename}:{line.lineno}, in {line.name}"


def at_line(error: BaseException) -> str:
    """Return `` at app.py:12``, to follow an error's name; an empty text without a line of the user's code."""
    line = line_of(error)
    return "" if line is None else f" at {Path(line.filename).name}:{line.lineno}"


def shortened(what: str, details: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Leave out the middle of the longest texts, until there are at most `ERROR_LINES` lines."""
    blocks = {label: [_cut(line) for line in text.splitlines()] for label, text in {"": what, **details}.items()}
    while sum(map(len, blocks.values())) > ERROR_LINES:
        longest = max(blocks.values(), key=len)
        middle = len(longest) // 2
        longest[middle - 1 : middle + 1] = ["..."]
    texts = {label: "\n".join(lines) for label, lines in blocks.items()}
    return texts.pop(""), texts


def error_text(what: str, details: Mapping[str, str]) -> str:
    """Return what happened, and each detail on a line of its own."""
    margin = max((len(label) for label in details), default=0) + 1
    lines = [f"Error: {indented(what, 7)}"]
    lines += [f"  {label + ':':<{margin}} {indented(text, margin + 3)}" for label, text in details.items()]
    return "\n".join(lines)


def indented(text: str, by: int) -> str:
    """Indent all lines of a text but the first, such as the end of a log."""
    return f"\n{' ' * by}".join(visible(line) for line in text.splitlines())


def _cut(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[:_LINE]}..."


def command(*words: str, schema: str | None) -> str:
    """An `offsetstore` command that can be pasted into a shell.

    :param schema: of the tables, ``None`` if it is unknown.
    """
    return shlex.join(["offsetstore", *words, *schema_option(schema)])


def schema_option(schema: str | None) -> list[str]:
    return [] if schema is None or schema == "public" else ["--schema", schema]


_PAGES: Final = {
    "consumer": "Run a consumer",
    "executors": "Prepare executors",
    "handlers-clients": "Clients and timeouts",
    "health": "Health",
    "relay": "Run the relay",
    "relay-recovery": "Recover a relay",
    "runbook": "Runbook",
    "starting": "A refused start",
}


def documentation(page: str, section: str | None = None) -> str:
    """Name a page of the documentation as its index does: who has installed the package has no files of it."""
    return f"{'' if section is None else f'{section!r} on '}the page {_PAGES[page]!r} of the documentation"


def did_you_mean(names: Iterable[str]) -> str:
    """``Did you mean 'a', 'b'? ``, before the rest of a next step; nothing without names. click quotes them, too."""
    near = ", ".join(map(repr, names))
    return f"Did you mean {near}? " if near else ""


def counted(number: int, noun: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def numbered(partitions: Iterable[TopicPartition]) -> str:
    """Partitions, which have to be in order, topic by topic: ``orders 2, payments 0-2 5``."""
    topics: dict[str, list[list[int]]] = {}
    for tp in partitions:
        runs = topics.setdefault(tp.topic, [])
        if runs and runs[-1][1] == tp.partition - 1:
            runs[-1][1] = tp.partition
        else:
            runs.append([tp.partition, tp.partition])
    return ", ".join(
        " ".join([topic, *(str(first) if first == last else f"{first}-{last}" for first, last in runs)])
        for topic, runs in topics.items()
    )


def short(time: timedelta) -> str:
    """A span of time: ``5s``, ``3h``."""
    seconds = int(time.total_seconds())
    # From two units on: ``90m`` says more than ``1h``.
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


# The first and the last time that exist in every time zone.
_FIRST_TIME: Final = datetime(1, 1, 3, tzinfo=UTC)
LAST_TIME: Final = datetime(9999, 12, 29, tzinfo=UTC)


def parse_time(text: str, others: str = "") -> datetime:
    """Read a time with its zone.

    :param others: what else is allowed there, for the message.
    :raises ValueError: it is not a time; the message is for the person who wrote it.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {others}a time such as 2025-03-01T00:00Z.") from None
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write 2025-03-01T00:00Z or 2025-03-01T00:00+01:00.")
    if not _FIRST_TIME <= time <= LAST_TIME:
        raise ValueError(f"{text!r} is too far away.")
    return time


def parse_duration(text: str) -> timedelta:
    """Read a duration: ``90s``, ``5m``, ``2h``, ``30d``, or ISO 8601 as kafka-consumer-groups takes it (``P1DT2H``).

    :raises ValueError: as for `parse_time`.
    """
    if (short := _SHORT_DURATION.fullmatch(text)) is not None:
        parts = {_UNITS[short[2]]: float(short[1])}
    else:
        found = _DURATION.fullmatch(text.upper())
        parts = {} if found is None else {unit: float(number) for unit, number in found.groupdict().items() if number}
        # The pattern accepts a T that no time follows.
        if not parts or text.upper().endswith("T"):
            raise ValueError(f"{text!r} is not a duration such as 90s, 5m, 2h, 30d or P1DT2H.")
    try:
        return timedelta(**parts)
    except OverflowError:
        raise ValueError(f"{text!r} is too long.") from None
