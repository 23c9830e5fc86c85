"""What the commands print: laid out for people at a terminal, plain and stable everywhere else.

In a pipe or a file, a table is aligned text that is never wrapped, with ``-`` for a missing value, so that each line
has as many columns as the header. Names come from outside: control characters are escaped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TextIO, cast
from uuid import UUID

import click

from offsetstore.offsets import OffsetRange, Suspect, TopicPartition
from offsetstore.text import NOTHING, error_text, indented, visible

if TYPE_CHECKING:
    from rich.console import Console

_LOSSES: Final = 20


@dataclass(frozen=True, slots=True)
class Column:
    """One column; a ``number`` is aligned to the right and never wrapped. ``path`` is where its values are."""

    name: str
    number: bool = False
    path: str = ""


def columns(spec: str) -> tuple[Column, ...]:
    """Make columns of their names, separated by commas; ``#name`` is a number.

    `print_rows` shows the attribute of that name, or of ``name=path.to.its.attribute``.
    """
    pairs = [one.strip().partition("=") for one in spec.split(",")]
    return tuple(
        Column(name.removeprefix("#"), name.startswith("#"), path or name.removeprefix("#"))
        for name, _separator, path in pairs
    )


def print_rows(shown: Sequence[Column], values: Iterable[object]) -> None:
    """Print a table of the values' attributes."""
    print_table(shown, [cells(shown, one) for one in values])


def cells(shown: Sequence[Column], value: object) -> list[object]:
    """The values of one row; times in whole seconds."""
    found = [_at(value, one.path) for one in shown]
    return [one.isoformat(timespec="seconds") if isinstance(one, datetime) else one for one in found]


def document(value: object, keys: str, **more: object) -> dict[str, object]:
    """Make a JSON document of a value's attributes.

    :param keys: the names, in order: ``key`` or ``key=path.to.its.attribute``; what is missing on the way is null.
        ``*path`` is a partition, with the keys ``topic`` and ``partition``. A key of ``more`` has that value.
    """
    made: dict[str, object] = {}
    for one in keys.split():
        key, _separator, path = one.partition("=")
        if key.startswith("*"):
            tp = more[key[1:]] if key[1:] in more else _at(value, key[1:])
            made |= {"topic": _at(tp, "topic"), "partition": _at(tp, "partition")}
        else:
            made[key] = plain(more[key] if key in more else _at(value, path or key))
    return made


_AS_JSON: Final[dict[Any, Callable[[Any], object]]] = {
    datetime: lambda one: one.isoformat(),
    timedelta: lambda one: one.total_seconds(),
    UUID: str,
    Exception: str,
    Enum: lambda one: one.name.lower(),
    OffsetRange: lambda one: {"from": one.from_, "until": one.until},
    Suspect: lambda one: one.what,
    Mapping: lambda one: {str(key): plain(inner) for key, inner in one.items()},
    list: lambda one: [plain(inner) for inner in one],
    tuple: lambda one: [plain(inner) for inner in one],
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
    for name in path.split("."):
        if value is None:
            return None
        value = cast("Mapping[str, object]", value).get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value


def print_json(value: object) -> None:
    """Print a JSON document, indented, with its keys in the given order."""
    click.echo(json.dumps(value, indent=2))


def print_followed(lines: Iterable[object], shown: Sequence[Column], keys: str, *, as_json: bool) -> None:
    """Print each of the lines when it comes: its cells, or a JSON document in one line."""
    for line in lines:
        if as_json:
            click.echo(json.dumps(document(line, keys)))
        else:
            print_lines("  ".join(map(visible, cells(shown, line))))


def print_lines(*lines: str) -> None:
    """Print sentences, wrapped at a terminal."""
    for line in lines:
        if sys.stdout.isatty():
            _console(sys.stdout).print(visible(line), markup=False)
        else:
            click.echo(visible(line))


def print_digest(digest: str, *, execute: bool = True, force: bool = False) -> None:
    """Print how a plan is carried out as it was shown.

    :param execute: whether the command needs ``--execute``.
    :param force: whether it needs ``--force``, and was given none.
    """
    options = f"{'--force ' if force else ''}{'--execute ' if execute else ''}"
    print_lines(f"Plan {digest}: {options}--if-plan {digest} does this, or nothing.")


def print_losses(losses: Mapping[TopicPartition, Suspect]) -> None:
    """Print the evidence that logs lost records, which a decision clears."""
    for tp, suspect in [*losses.items()][:_LOSSES]:
        print_lines(f"{tp}: the log lost records that had been read: {suspect.what}.")
    if len(losses) > _LOSSES:
        print_lines(f"And {len(losses) - _LOSSES} more partitions.")


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """Print rows of values, with ``-`` for ``None``."""
    texts = [[visible(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich_table(columns, texts)
    else:
        click.echo(plain_table(columns, texts))


def plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Return the table as text, its columns two spaces apart."""
    lines = [[column.name for column in columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column.number else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    )


def _print_rich_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table  # noqa: PLC0415 - takes longer to load than a plain command to run
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            Text(column.name),
            justify="right" if column.number else "left",
            no_wrap=column.number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(text, style="dim" if text == NOTHING else "") for text in row))
    _console(sys.stdout).print(table)


def print_error(what: str, details: Mapping[str, str]) -> None:
    """Print to stderr what happened, and each detail on a line of its own."""
    if sys.stderr.isatty():
        _print_rich_error(what, details)
    else:
        click.echo(error_text(what, details), err=True)


def _print_rich_error(what: str, details: Mapping[str, str]) -> None:
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415

    console = _console(sys.stderr)
    head = Table.grid(padding=(0, 1))
    head.add_row(Text("Error:", style="bold red"), Text(indented(what, 0)))
    console.print(head)
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in details.items():
        table.add_row(Text(f"  {label}:", style="bold"), Text(indented(text, 0)))
    console.print(table)


def _console(stream: TextIO) -> Console:
    """Create a console that respects NO_COLOR and the terminal's width."""
    from rich.console import Console  # noqa: PLC0415 - as above

    return Console(file=stream, highlight=False)
