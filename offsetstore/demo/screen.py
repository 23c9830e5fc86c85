"""What the demo shows while it runs: moving bars at a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

_LINE_SECONDS = 5.0


class Screen:
    """Where the demo prints.

    :param progress: shows the bars at a terminal; ``None`` elsewhere.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def say(self, text: str) -> None:
        """Show a line that stays."""
        if self._progress is None:
            click.echo(text)
        else:
            self._progress.console.print(Text(text, style="yellow"))

    def bar(self, name: str, total: int | None) -> Bar:
        """Begin a step; without a total, its length is not known."""
        return Bar(self._progress, name, total)


class Bar:
    """The progress of one step."""

    def __init__(self, progress: Progress | None, name: str, total: int | None) -> None:
        self._progress = progress
        self._name = name
        self._total = total
        self._next = time.monotonic() + _LINE_SECONDS
        self._last = (0, "")
        if progress is None:
            click.echo(f"{name} ...")
        else:
            self._task = progress.add_task(name, total=total, count="", note="")

    def show(self, done: int, note: str = "") -> None:
        """Move it; any thread may do so."""
        if self._progress is not None:
            count = f"{done:,}/{self._total:,}" if self._total else ""
            self._progress.update(self._task, completed=done, count=count, note=escape(note))
        elif time.monotonic() >= self._next and (done, note) != self._last:
            self._next = time.monotonic() + _LINE_SECONDS
            self._last = (done, note)
            self._line(f"{done:,} of {self._total:,}" if self._total else "", note)

    def end(self, note: str) -> None:
        """Stop its clock."""
        if self._progress is None:
            self._line("done", note)
            return
        if self._total is None:
            self._progress.update(self._task, total=1, completed=1)
        self._progress.update(self._task, note=escape(note))
        self._progress.stop_task(self._task)

    def _line(self, *parts: str) -> None:
        click.echo(f"{self._name}: {', '.join(part for part in parts if part)}")


@contextmanager
def open_screen() -> Generator[Screen]:
    """Choose by whether standard output is a terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        yield Screen(None)
        return
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=28, complete_style="cyan", finished_style="green"),
        TextColumn("{task.fields[count]:>18}"),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=8) as progress:
        yield Screen(progress)
