"""Where the seconds of a run go: ``make durations`` runs every test, and prints a table of what each file waits for.

A pytest plugin, and the program that reads what it wrote. ``pytest --minutes=N`` says each minute how far a run is that
takes so many. ``pytest --durations-to=FILE`` adds a line of JSON for each test: its seconds, those of this process's
processor and of the processes that it waited for, those that it slept, and what it started. What child processes start
in turn is not seen.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import pytest

_FIXTURES: Final[Mapping[str, str]] = {
    "offsetstore_database": "database",
    "offsetstore_new_database": "database",
    "offsetstore_empty_database": "database",
    "offsetstore_topic": "topics",
    "offsetstore_spark": "session",
}
COLUMNS: Final = ("seconds", "cpu", "children", "slept", "java", "python", "query", "database", "topics")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-to", metavar="FILE", help="add a line of JSON on each test to this file")
    parser.addoption("--minutes", type=int, metavar="N", help="say each minute how far the run is, which takes N")


def pytest_configure(config: pytest.Config) -> None:
    # With workers, these run the tests, and the process that started them has no line to add.
    has_workers = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if (file := config.getoption("--durations-to")) is not None and not has_workers:
        config.pluginmanager.register(_Measuring(Path(file)))
    if (minutes := config.getoption("--minutes")) is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Minutes(minutes, config))


class _Minutes:
    """Says each minute how far the run is. What takes longest comes first, so the number of tests is no measure."""

    def __init__(self, expected: int, config: pytest.Config) -> None:
        self._expected = expected
        self._config = config
        self._begun = time.monotonic()
        self._done = self._said = 0

    def pytest_runtest_logfinish(self) -> None:
        self._done += 1
        if (minute := int((time.monotonic() - self._begun) / 60)) > self._said:
            self._said = minute
            reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
            failed = sum(len(reporter.stats.get(kind, ())) for kind in ("failed", "error"))
            reporter.write_line(
                f"\nminute {minute} of about {self._expected}: {self._done:,} tests are done, {failed} have failed"
            )


class _Measuring:
    """Counts in each worker, which appends its own lines: a short one is written at once, so none is torn."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._started: Counter[str] = Counter()
        self._slept = 0.0
        self._main = threading.main_thread()
        self._has_streaming = False
        sys.addaudithook(self._hear)
        self._count_sleep()

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            program = Path(os.fsdecode(arguments[0])).name
            self._started[next((one for one in ("java", "python") if one in program), "other")] += 1

    def _count_sleep(self) -> None:
        sleep = time.sleep

        def counted(seconds: float) -> None:
            begin = time.monotonic()
            sleep(seconds)
            if threading.current_thread() is self._main:
                self._slept += time.monotonic() - begin

        time.sleep = counted

    def _count_queries(self) -> None:
        streaming: Any = sys.modules.get("pyspark.sql.streaming.readwriter")
        if streaming is None or self._has_streaming:
            return
        self._has_streaming = True
        start = streaming.DataStreamWriter.start

        def counted(*arguments: Any, **options: Any) -> Any:
            self._started["query"] += 1
            return start(*arguments, **options)

        streaming.DataStreamWriter.start = counted

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._started.clear()
        self._slept = 0.0
        self._count_queries()
        with _timed() as took:
            done = yield
        names: set[str] = set(getattr(item, "fixturenames", ()))
        used = dict.fromkeys((what for name, what in _FIXTURES.items() if name in names), 1)
        line = {"test": item.nodeid, **took, "slept": round(self._slept, 3), **self._started, **used}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return done


@contextmanager
def _timed() -> Generator[dict[str, float]]:
    clocks: Mapping[str, Callable[[], float]] = {
        "seconds": time.perf_counter,
        "cpu": time.process_time,
        "children": lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]),
    }
    took: dict[str, float] = {}
    begin = {name: clock() for name, clock in clocks.items()}
    yield took
    took |= {name: round(clock() - begin[name], 3) for name, clock in clocks.items()}


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--by", type=click.Choice(["file", "folder", "test"]), default="file", show_default=True)
@click.option("--most", default=60, show_default=True, help="Lines, those with the most seconds first.")
def table(file: Path, by: str, most: int) -> None:
    """Print where the seconds of the run have gone that FILE is of."""
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in map(json.loads, file.read_text().splitlines()):
        path, _, _ = line["test"].partition("::")
        name = {"file": path, "folder": str(Path(path).parent), "test": line["test"].partition("[")[0]}[by]
        for row in (rows[name], rows["all"]):
            row["tests"] += 1
            row.update({key: value for key, value in line.items() if key != "test"})
    ordered = sorted(rows.items(), key=lambda one: -one[1]["seconds"])[: most + 1]
    click.echo("tests  " + "  ".join(f"{name:>8}" for name in COLUMNS))
    for name, row in ordered:
        click.echo(f"{row['tests']:5}  " + "  ".join(f"{row[column]:8.0f}" for column in COLUMNS) + f"  {name}")


if __name__ == "__main__":
    table()
