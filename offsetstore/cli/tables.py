"""Tables: whole and aligned in a pipe; at a terminal within the screen's width, with ages, and no word broken.

What is too wide for a screen is made narrower in steps, until it fits: texts wrap at spaces; a word that is too long
for a column gets a line of its own, where it can be copied whole; columns that are marked as optional are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any, Final, cast
from unicodedata import combining, east_asian_width

import click

from offsetstore.text import NOTHING, short, visible

_GAP: Final = "  "
_UNLIMITED: Final = 1 << 30
_LONGEST: Final = (_UNLIMITED, 32, 20, 12, 0)
"""Longer words than these get a line of their own; the first number is taken with which the table fits."""
_READABLE: Final = 24  # columns: a longer text is wrapped no narrower than this
# What is between backticks counts as one word: a command is copied as a whole.
_WORD: Final = re.compile(r"(?P<gap> *)(?P<word>(?:`[^`]*`|\S)+)")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values.

    :param columns: ``#name`` is a column of numbers, aligned to the right. ``?name`` or ``?#name`` is optional: it is
        left out at a terminal where the table does not fit, the last one first.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    @classmethod
    def of(cls, columns: str, values: Iterable[object], groups: Sequence[str] | None = None) -> Table:
        """Make a row of each value.

        :param columns: separated by commas; each shows the attribute of its name, or of ``name=path.to.its.attribute``.
        :param groups: the group of each value, for a first column; ``None`` if all are of one group.
        """
        pairs = [column.strip().partition("=") for column in columns.split(",")]
        rows = [[at(value, path or name.lstrip("?#")) for name, _, path in pairs] for value in values]
        return cls([name for name, _, _ in pairs], rows).in_groups(groups)

    def in_groups(self, groups: Sequence[str] | None) -> Table:
        """Add a first column with the group of each row, unless all are of one group."""
        if groups is None:
            return self
        rows = [[group, *row] for group, row in zip(groups, self.rows, strict=True)]
        return Table(["group", *self.columns], rows)

    def whole(self) -> str:
        """All of it: aligned, never wrapped, times as stamps."""
        columns = self._columns([[stamp(value) for value in row] for row in self.rows])
        widths = [column.widths(_UNLIMITED)[1] for column in columns]
        rows = [[column.cells[number] for column in columns] for number in range(len(self.rows))]
        return "\n".join(_line(columns, widths, row) for row in [[column.name for column in columns], *rows])

    def fitted(self, width: int) -> str:
        """What fits into this many columns of a terminal, times as ages; the last line names what is left out."""
        now = datetime.now(UTC)
        columns = self._columns([[_age(value, now) for value in row] for row in self.rows])
        for longest in _LONGEST:
            kept = [*columns]
            while (grid := _grid(kept, width, longest)) is None and longest < _UNLIMITED:
                if not (optional := [column for column in kept if column.is_optional]):
                    break
                kept.remove(optional[-1])
            if grid is not None:
                head = _line([column for column, _ in grid], [size for _, size in grid], [c.name for c, _ in grid])
                lines = [
                    line for number in range(len(self.rows)) for line in _lines(kept, grid, number, longest, width)
                ]
                left_out = ", ".join(column.name for column in columns if column not in kept)
                lines += wrapped(f"Left out: {left_out}; --wide shows all columns.", width) if left_out else []
                is_dumb = os.environ.get("TERM") == "dumb"
                return "\n".join([head if is_dumb else click.style(head, bold=True), *lines])
        return self.whole()

    def _columns(self, rows: Sequence[Sequence[object]]) -> list[_Column]:
        return [
            _Column(name.lstrip("?#"), "#" in name[:2], name.startswith("?"), [visible(row[number]) for row in rows])
            for number, name in enumerate(self.columns)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    name: str
    is_number: bool
    is_optional: bool
    cells: list[str]

    def widths(self, longest: int) -> tuple[int, int]:
        """The least width, and the one in which nothing wraps, without cells that get a line of their own."""
        cells = [self.name, *(cell for cell in self.cells if not self.is_apart(cell, longest))]
        return max(max(_word(cell), min(_size(cell), _READABLE)) for cell in cells), max(map(_size, cells))

    def is_apart(self, cell: str, longest: int) -> bool:
        """Whether the cell gets a line of its own."""
        return not self.is_number and _word(cell) > longest

    def is_empty(self, longest: int) -> bool:
        """Whether all of its cells do."""
        return bool(self.cells) and all(self.is_apart(cell, longest) for cell in self.cells)


def _grid(kept: Sequence[_Column], width: int, longest: int) -> list[tuple[_Column, int]] | None:
    """Share the width among the columns that stand side by side; ``None`` if it is not enough."""
    columns = [column for column in kept if column is kept[0] or not column.is_empty(longest)]
    pairs = [column.widths(longest) for column in columns]
    widths = [least for least, _ in pairs]
    room = width - sum(widths) - len(_GAP) * (len(columns) - 1)
    if room < 0:
        return None
    # The column that needs least comes first: it is not wrapped for the sake of one that has to be, all the same.
    for number in sorted(range(len(pairs)), key=lambda one: pairs[one][1] - pairs[one][0]):
        more = min(room, pairs[number][1] - widths[number])
        widths[number] += more
        room -= more
    return list(zip(columns, widths, strict=True))


def _lines(
    kept: Sequence[_Column], grid: Sequence[tuple[_Column, int]], number: int, longest: int, width: int
) -> Iterator[str]:
    """The lines of a row: the first cell above the others if it is apart; other cells that are, with names, below."""
    apart = [column for column in kept if column.is_apart(column.cells[number], longest)]
    if kept[0] in apart:
        yield from wrapped(kept[0].cells[number], width)
    beside = [
        [""] if column.is_apart(cell := column.cells[number], longest) else wrapped(cell, size) for column, size in grid
    ]
    for part in zip_longest(*beside, fillvalue=""):
        if line := _line([column for column, _ in grid], [size for _, size in grid], part):
            yield line
    for column in apart:
        if column is not kept[0] and (cell := column.cells[number]) != NOTHING:
            yield from wrapped(f"{_GAP}{column.name}: {cell}", width, indent=_GAP * 2)


def _line(columns: Sequence[_Column], widths: Sequence[int], row: Sequence[str]) -> str:
    padded = (
        f"{' ' * (width - _size(cell))}{cell}" if column.is_number else f"{cell}{' ' * (width - _size(cell))}"
        for column, width, cell in zip(columns, widths, row, strict=True)
    )
    return _GAP.join(padded).rstrip()


def wrapped(text: str, width: int, *, indent: str = "") -> list[str]:
    """Break a text at spaces alone."""
    lines, has_word = [""], False
    for found in _WORD.finditer(text.rstrip(" ")):  # spaces at the end would be tried again and again
        if has_word and _size(lines[-1] + found[0]) > width:
            lines.append(f"{indent}{found['word']}")
        else:
            lines[-1] += found[0]
        has_word = True
    return lines


def _word(text: str) -> int:
    """The width of the longest word."""
    return max((_size(found["word"]) for found in _WORD.finditer(text.rstrip(" "))), default=0)


def _size(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def stamp(value: object) -> object:
    """The value for a table: times in whole seconds."""
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else value


def _age(value: object, now: datetime) -> object:
    # A time ahead is shown as it is, but not for a clock that is a little off.
    if not isinstance(value, datetime) or value - now > timedelta(minutes=1):
        return stamp(value)
    return f"{short(max(timedelta(0), now - value))} ago"


def at(value: Any, path: str) -> Any:
    """The attribute, or the key of a mapping; ``None`` if anything on the way is ``None``."""
    for name in () if path == "." else path.split("."):
        if value is None:
            return None
        value = cast("Mapping[str, object]", value).get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value
