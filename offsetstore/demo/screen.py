"""What the demo shows while it runs: a moving bar for each step at a terminal, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from offsetstore.kafka.admin import NewRecord

_LINE_SECONDS: Final = 5.0
_INTERVAL: Final = 1000


class Screen:
    """Where the demo prints. Steps are begun, shown and ended one after the other.

    :param progress: disabled if there is no terminal.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._next, self._last = 0.0, ""

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self._progress.console.print(Text(text, style="yellow"), soft_wrap=True)

    def begin(self, name: str, total: int | None = None) -> None:
        """Begin a step; without a total, its length is not known."""
        self._name, self._total = name, total
        self._task = self._progress.add_task(name, total=total, count="", note="")
        self._line("...")

    def show(self, done: int, note: str = "") -> None:
        """Show how far the step is."""
        count = f"{done:,} of {self._total:,}" if self._total else ""
        self._progress.update(self._task, completed=done, count=count, note=escape(note))
        if time.monotonic() >= self._next:
            self._line(count, note)

    def counted(self, records: Iterable[NewRecord]) -> Iterator[NewRecord]:
        """Pass the records on, and show how many have passed."""
        for number, record in enumerate(records, 1):
            if number % _INTERVAL == 0:
                self.show(number)
            yield record

    def end(self, note: str) -> None:
        """Stop the step's clock."""
        total = self._total or 1
        self._progress.update(self._task, total=total, completed=total, note=escape(note))
        self._progress.stop_task(self._task)
        self._line("done", note)

    def _line(self, *parts: str) -> None:
        self._next = time.monotonic() + _LINE_SECONDS
        line = f"{self._name}: {', '.join(part for part in parts if part)}"
        if self._progress.disable and line != self._last:
            self._last = line
            self.say(line)


@contextmanager
def open_screen() -> Generator[Screen]:
    """Open a screen on standard output."""
    console = Console(highlight=False)
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=28, complete_style="cyan", finished_style="green"),
        TextColumn("{task.fields[count]:>18}"),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=8, disable=not console.is_terminal) as progress:
        yield Screen(progress)
