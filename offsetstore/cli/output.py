"""What the commands print, and how they end: their exit codes and error messages.

Output is laid out for people at a terminal, and plain and stable everywhere else. In a pipe or a file, a table is
aligned text that is never wrapped, with ``-`` for a missing value, so that each line has as many columns as the header.
Names come from outside: characters that are not drawn are escaped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TextIO, cast
from uuid import UUID

import click

from offsetstore import errors
from offsetstore.cli.tables import Table, at, stamp, wrapped
from offsetstore.errors import ExitCode, exit_code, step_for
from offsetstore.offsets import OffsetRange, Suspect
from offsetstore.text import describe_error, did_you_mean, error_text, utc_time, visible

if TYPE_CHECKING:
    from offsetstore.offset_store import OffsetStore

_WORD: Final = re.compile(r"[^\s\[\]]+\[?|\]")
_LABEL: Final = re.compile(r"Error: |(?: {2}[a-z][a-z ]*:)? +")
_KEY: Final = "@"  # in the keys of a document: the key of a mapping
_IS_DONE: ContextVar[bool] = ContextVar("is_done", default=False)


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


def documents(values: Iterable[object], keys: str, groups: Sequence[str] | None = None) -> list[dict[str, object]]:
    """Make a document of each value, with its group if ``groups`` has one for each."""
    made = [document(value, keys) for value in values]
    return made if groups is None else [{"group": group, **one} for group, one in zip(groups, made, strict=True)]


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
        found = more[key] if key in more else at(more if path in more or path.startswith(_KEY) else value, path)
        if word != key:
            made |= {"topic": at(found, "topic"), "partition": at(found, "partition")}
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


def print_followed(lines: Iterable[tuple[str | None, object]], columns: str, keys: str, *, as_json: bool) -> None:
    """Print each line as it comes: its cells, or a JSON document in one line.

    :param lines: each with its group, ``None`` if all are of one group.
    """
    for group, line in lines:
        groups = None if group is None else [group]
        if as_json:
            print_json(documents([line], keys, groups)[0], in_one_line=True)
        else:
            [row] = Table.of(columns, [line], groups).rows
            echo("  ".join(visible(stamp(value)) for value in row))


def print_text(*parts: str | Table, wide: bool = False) -> None:
    """Print sentences and tables, with ``-`` for ``None``.

    :param wide: print whole tables at a terminal, too.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for part in parts:
        if isinstance(part, Table):
            echo(part.whole() if wide or width is None else part.fitted(width))
        # What is indented is a command or a part of a record, to be copied as it is.
        elif width is None or part.startswith(" "):
            echo(visible(part))
        else:
            echo("\n".join(wrapped(visible(part), width)))


def log_prefix(process: int | None = None, at: float | None = None) -> str:
    """What each line of `offsetstore consume` begins with, which runs for months: the time, and who says it.

    :param process: the number of the process, ``None`` for the supervisor.
    """
    who = "" if process is None else f"process {process}: "
    return f"{utc_time(time.time() if at is None else at)} offsetstore: {who}"


def print_error(what: str, details: Mapping[str, str], *, prefix: str = "") -> None:
    """Print to stderr what happened, and each detail on a line of its own, under which a terminal wraps it."""
    text = prefix + error_text(what, details)
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(part for line in text.split("\n") for part in wrapped(line, width, indent=_margin(line)))
    click.echo(text, err=True)


def _margin(line: str) -> str:
    """The spaces before a text that goes on below its label."""
    found = _LABEL.match(line)
    return " " * (found.end() if found else 0)


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
    """Return the table of exit codes, for ``--help`` in 80 columns."""
    lines = (wrapped(f"  {code.value:>3}  {_SUMMARIES[code.value]}", 78, indent=" " * 7) for code in ExitCode)
    return "\n".join(line for of_code in lines for line in of_code)


def fail(error: errors.OffsetStoreError, *, code: ExitCode | None = None) -> NoReturn:
    """Print the error to stderr, with found, expected and the next step on lines of their own, and end the command.

    :param code: by default that of `exit_code`.
    :raises click.exceptions.Exit: click ends the process with this code.
    """
    what, details = describe_error(error, step_for("command", error.next_step))
    print_error(what, details)
    raise click.exceptions.Exit(exit_code(error) if code is None else code)


def fail_unknown(store: OffsetStore, group: str, what: str = "group") -> NoReturn:
    """Say what the store does not have of a group, and which groups have similar names, and exit."""
    # Imported here: to complete a command, the shell waits for this module.
    from offsetstore.operations.operation import unknown_group  # noqa: PLC0415
    from offsetstore.store.sessions import read  # noqa: PLC0415

    fail(read(store.database, lambda session: unknown_group(session, group, what)))


def fail_unknown_source(store: OffsetStore, name: str) -> NoReturn:
    """Say that the name is neither a group's nor a source's with rows, and exit."""
    # Imported here: see above.
    from offsetstore.operations.outbox import unknown_source  # noqa: PLC0415
    from offsetstore.operations.people import ask  # noqa: PLC0415

    fail(ask(store.database, lambda session: unknown_source(session, name)))


def mistyped(noun: str, topic: str | None, topics: Iterable[str]) -> list[str]:
    """Return a sentence about an empty list, if its topic is not one of these but similar to some."""
    # Imported here: see above.
    from offsetstore.protocol.starting import similar_names  # noqa: PLC0415

    near = () if topic is None else similar_names(topic, topics)
    if not near or topic in near:
        return []
    return [f"No {noun} of topic {topic}. {did_you_mean(near)}".rstrip()]
