"""What the commands print, and how they end: their exit codes and error messages.

Output is laid out for people at a terminal, and plain and stable everywhere else. In a pipe or a file, a table is
aligned text that is never wrapped, with ``-`` for a missing value, so that each line has as many columns as the header.
Names come from outside: control characters are escaped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TextIO, cast
from uuid import UUID

import click

from offsetstore import errors
from offsetstore.errors import ExitCode, exit_code, step_for
from offsetstore.offsets import OffsetRange, Suspect
from offsetstore.text import NOTHING, describe_error, error_text, visible

if TYPE_CHECKING:
    from offsetstore.offset_store import OffsetStore

_WORD: Final = re.compile(r"[^\s\[\]]+\[?|\]")
_KEY: Final = "@"  # in the keys of a document: the key of a mapping
_IS_DONE: ContextVar[bool] = ContextVar("is_done", default=False)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values. ``#name`` is a column of numbers, which is aligned to the right and never wrapped."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    @classmethod
    def of(cls, columns: str, values: Iterable[object]) -> Table:
        """Make a row of each value.

        :param columns: separated by commas; each shows the attribute of its name, or of ``name=path.to.its.attribute``.
        """
        pairs = [column.strip().partition("=") for column in columns.split(",")]
        rows = [[cell(_at(value, path or name.removeprefix("#"))) for name, _, path in pairs] for value in values]
        return cls([name for name, _, _ in pairs], rows)


def cell(value: object) -> object:
    """The value for a table: times in whole seconds."""
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else value


class _Key(NamedTuple):
    name: str
    path: str
    inner: tuple[_Key, ...] | None = None


def document(value: object, keys: str, **more: object) -> dict[str, object]:
    """Make a JSON document of a value's attributes.

    :param keys: the names, in order: ``key``, or ``key=path.to.its.attribute``; what is missing on the way is null.
        ``*path`` is a partition, with the keys ``topic`` and ``partition``. ``key=path[...]`` is a document of that
        attribute, or a list of documents if it is a list or a mapping: then ``@`` is the mapping's key, with ``@.path``
        of an attribute of that, and ``.`` the value itself. A key of ``more`` has that value.
    """
    return _document(value, _parsed(keys), more)


@cache
def _parsed(keys: str) -> tuple[_Key, ...]:
    levels: list[list[_Key]] = [[]]
    for word in _WORD.findall(keys):
        if word == "]":
            inner = levels.pop()
            levels[-1][-1] = levels[-1][-1]._replace(inner=tuple(inner))
            continue
        name, _, path = word.rstrip("[").partition("=")
        levels[-1].append(_Key(name, path or name))
        if word.endswith("["):
            levels.append([])
    return tuple(levels[0])


def _document(value: object, keys: Iterable[_Key], more: Mapping[str, object]) -> dict[str, object]:
    made: dict[str, object] = {}
    for word, of, inner in keys:
        key, path = word.lstrip("*"), of.lstrip("*")
        found = more[key] if key in more else _at(more if path in more or path.startswith(_KEY) else value, path)
        if word != key:
            made |= {"topic": _at(found, "topic"), "partition": _at(found, "partition")}
        else:
            made[key] = plain(found) if inner is None else _inner(found, inner)
    return made


def _inner(value: Any, keys: tuple[_Key, ...]) -> object:
    if isinstance(value, Mapping):
        return [_document(inner, keys, {_KEY: key}) for key, inner in cast("Mapping[object, object]", value).items()]
    # The exact types: a named tuple is one value.
    if type(value) in {list, tuple}:
        return [_document(inner, keys, {}) for inner in value]
    return None if value is None else _document(value, keys, {})


# The first that fits counts: a Suspect is a tuple, too.
_AS_JSON: Final[dict[Any, Callable[[Any], object]]] = {
    datetime: lambda time: time.isoformat(),
    timedelta: lambda duration: duration.total_seconds(),
    UUID: str,
    bytes: bytes.hex,
    Exception: str,
    Enum: lambda member: member.name.lower(),
    OffsetRange: lambda range_: {"from": range_.from_, "until": range_.until},
    Suspect: lambda suspect: suspect.what,
    Mapping: lambda mapping: {str(key): plain(inner) for key, inner in mapping.items()},
    list: lambda values: [plain(inner) for inner in values],
    tuple: lambda values: [plain(inner) for inner in values],
}


def plain(value: object) -> object:
    """The value as JSON: times in ISO 8601, durations in seconds, dataclasses with all their fields."""
    for kind, write in _AS_JSON.items():
        if isinstance(value, kind):
            return write(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _at(value: Any, path: str) -> Any:
    """The attribute, or the key of a mapping; ``None`` if anything on the way is ``None``."""
    for name in () if path == "." else path.split("."):
        if value is None:
            return None
        value = cast("Mapping[str, object]", value).get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value


@contextmanager
def even_unread() -> Generator[None]:
    """In this block an answer that can't be printed does not fail the command: what it did must not be repeated."""
    before = _IS_DONE.set(True)
    try:
        yield
    finally:
        _IS_DONE.reset(before)


def leave_unread(*streams: TextIO | None) -> None:
    """Drop what these streams still hold: the interpreter would fail to print it when it ends."""
    with Path(os.devnull).open("wb") as nowhere:
        for stream in streams:
            # Python has no stream where it was closed before the start.
            if stream is not None:
                os.dup2(nowhere.fileno(), stream.fileno())


def echo(text: str, *, nl: bool = True) -> None:
    """Print to standard output, where a command's answer goes."""
    try:
        click.echo(text, nl=nl)
    except OSError as error:
        if not _IS_DONE.get():
            raise
        leave_unread(sys.stdout)
        # A full disk, say. A reader that has closed the pipe wants no more.
        if not isinstance(error, BrokenPipeError):
            with suppress(OSError):
                click.echo(f"It was done, but the answer can't be printed: {error.strerror}.", err=True)


def print_json(value: object, *, in_one_line: bool = False) -> None:
    """Print a JSON document, indented, with its keys in the given order."""
    echo(json.dumps(value, indent=None if in_one_line else 2))


def print_followed(lines: Iterable[object], columns: str, keys: str, *, as_json: bool) -> None:
    """Print each line as it comes: its cells, or a JSON document in one line."""
    for line in lines:
        if as_json:
            print_json(document(line, keys), in_one_line=True)
        else:
            [row] = Table.of(columns, [line]).rows
            print_text("  ".join(map(visible, row)))


def print_text(*parts: str | Table) -> None:
    """Print sentences and tables, with ``-`` for ``None``."""
    for part in parts:
        if isinstance(part, str):
            echo(visible(part))
        elif sys.stdout.isatty():
            _print_rich_table(part)
        else:
            echo(_plain_table(part))


def _plain_table(table: Table) -> str:
    """The table as text, its columns two spaces apart."""
    aligned = [str.rjust if name.startswith("#") else str.ljust for name in table.columns]
    lines = [[name.removeprefix("#") for name in table.columns], *([*map(visible, row)] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(align(text, width) for align, text, width in zip(aligned, line, widths, strict=True)).rstrip()
        for line in lines
    )


def _print_rich_table(table: Table) -> None:
    from rich.console import Console  # noqa: PLC0415 - takes longer to load than a plain command to run
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in table.columns:
        is_number = name.startswith("#")
        title = Text(name.removeprefix("#"))
        shown.add_column(title, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(text, style="dim" if text == NOTHING else "") for text in map(visible, row)))
    Console(file=sys.stdout, highlight=False).print(shown)


def print_error(what: str, details: Mapping[str, str]) -> None:
    """Print to stderr what happened, and each detail on a line of its own, under which a terminal wraps it."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    click.echo(error_text(what, details, width=width), err=True)


_SUMMARIES = {
    0: "done, or the answer is yes",
    1: "the answer is no: not at head, no such group or letter, no safe place to start, a live job, a missing ACL, a "
    "changed plan",
    2: "wrong usage or configuration, or a missing package",
    3: "the database can't be reached, refuses the request, or its schema doesn't match",
    4: "Kafka can't be reached, refuses the request, or has no such topic",
    5: "any other error of offsetstore, such as a record that the table or a function refuses, or a consumer's flush "
    "that had not ended within drain=",
    6: "the group was claimed, reset or renamed by another process; or another relay has taken over",
    70: "an error of your own code, such as a function that fails for every record, or the one that `offsetstore "
    "consume` calls; where there is none, a bug: please report the traceback",
    75: 'a job that was not live any more, ended by Monitoring(on_dead="exit"); or a process of a consumer was killed '
    "at the end",
    130: "interrupted",
    141: "nobody reads the output any more, as behind `| head`; what was carried out ends with 0 all the same",
}


def describe() -> str:
    """Return the table of exit codes, for ``--help``."""
    return "\n".join(f"  {code.value:>3}  {_SUMMARIES[code.value]}" for code in ExitCode)


def fail(error: errors.OffsetStoreError, *, code: ExitCode | None = None) -> NoReturn:
    """Print the error to stderr, with found, expected and the next step on lines of their own, and end the command.

    :param code: by default that of `exit_code`.
    :raises click.exceptions.Exit: click ends the process with this code.
    """
    what, details = describe_error(error, step_for("command", error.next_step))
    print_error(what, details)
    raise click.exceptions.Exit(exit_code(error) if code is None else code)


def fail_unknown(store: OffsetStore, group: str) -> NoReturn:
    """Say that the store does not know the group, and which it has, and exit."""
    # Imported here: to complete a command, the shell waits for this module.
    from offsetstore.operations.operation import unknown_group  # noqa: PLC0415
    from offsetstore.store.sessions import read  # noqa: PLC0415

    fail(read(store.database, lambda session: unknown_group(session, group)))
