"""One process of ``offsetstore consume``: makes the consumer, runs it, and reports to the supervisor."""

from __future__ import annotations

import faulthandler
import inspect
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, cast

import click

from offsetstore.cli.output import log_prefix, print_error
from offsetstore.errors import (
    ConfigurationError,
    ExitCode,
    FunctionFailed,
    MissingDependency,
    OffsetStoreError,
    StaleClaim,
    StoreUnavailable,
    exit_code,
    is_lasting,
)
from offsetstore.lazy import find
from offsetstore.monitoring.health import Limits, Verdict, judge
from offsetstore.monitoring.page import End, Page, Words
from offsetstore.monitoring.processes import STACKS, Report
from offsetstore.monitoring.supervision import FactCollector, RunningClock
from offsetstore.offsets import Ranges, describe
from offsetstore.postgres.errors import is_refused, of_store
from offsetstore.protocol.events import BatchEnded, Event
from offsetstore.protocol.runs import JobError
from offsetstore.runtime.background import Background
from offsetstore.runtime.functions import TermSignal, call, tells_of_outage
from offsetstore.text import (
    TRACE,
    counted,
    describe_error,
    describe_other,
    did_you_mean,
    error_text,
    place_of,
    print_trace,
)

if TYPE_CHECKING:
    from offsetstore.consumer import Consumer
    from offsetstore.store.claim import Claim

FINAL: Final = frozenset({ExitCode.NO, ExitCode.USAGE, ExitCode.FENCED})
"""Exit codes after which a restart does harm, or nothing: an operator has to decide; see docs/supervise.md."""

_EVERY: Final = 1.0  # seconds from one report to the next, and between two questions to the database
# Seconds after its drain= in which a consumer leaves Kafka's group and the fleet (decision 0094).
_LEAVING: Final = 30.0
_FOR_EVER: Final = 1e9  # seconds
_PATIENCE: Final = 10.0  # seconds for which the database is asked who owns the group


@dataclass(frozen=True, slots=True)
class Told:
    """What the supervisor tells a process.

    :param function: MODULE:FUNCTION.
    :param number: of this process, from 0, of ``count``.
    """

    function: str
    number: int
    count: int
    is_static: bool
    has_metrics: bool


class NotLoaded(ConfigurationError):
    """The module can't be imported now; if the package is being replaced, there may be one in a moment."""


class FunctionRaised(Exception):
    """The user's module or function has raised its cause. Another call may succeed: a service may be away."""


def load(text: str) -> Consumer:
    """Import the module, and call the function.

    :raises NotLoaded: there is no such module, or it can't be imported.
    :raises ConfigurationError: the module has no such function, or it returns no consumer.
    :raises MissingDependency: the extra ``consumer`` is not installed.
    :raises FunctionRaised: the module or the function raises an error that is not ours.
    """
    kind = find("offsetstore.consumer", "Consumer", what="`offsetstore consume`", extra="consumer")
    module, _, name = text.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigurationError(
            "this is not the name of a function",
            found=text,
            expected="MODULE:FUNCTION, as in billing_app:consumer",
            next_step=_corrected(module, name),
        )
    loaded = _imported(module, name)
    function = getattr(loaded, name, None)
    if not callable(function):
        near = get_close_matches(
            name, [other for other, found in cast("dict[str, object]", vars(loaded)).items() if _is_function(found)]
        )
        # Not NotLoaded: a module that was imported is there, and starting it again changes nothing.
        raise ConfigurationError(
            f"module {module} has no function {name}",
            found="no such name" if function is None else f"{type(function).__name__} {name}",
            expected="a function without arguments that returns an offsetstore.consumer.Consumer",
            next_step=did_you_mean(near) + "Correct the name, or write the function.",
        )
    _check_arguments(text, function)
    with _of_the_user():
        made: Any = call(function)
    if not isinstance(made, kind):
        raise ConfigurationError(
            f"{text} returned no consumer",
            found=type(made).__name__,
            expected="an offsetstore.consumer.Consumer",
            next_step="Have the function return it.",
        )
    return made


def _is_function(found: object) -> bool:
    return callable(found) and not isinstance(found, type)


def _corrected(module: str, name: str) -> str | None:
    """The next step after a module that is written as a file, or without a function."""
    dotted = module.removesuffix(".py").replace("/", ".").strip(".")
    if not all(part.isidentifier() for part in dotted.split(".")):
        return None
    if not name:
        return f"Name the function, too: {dotted}:consumer, if that is its name."
    return f"Write the module's name, without .py: {dotted}:{name}." if dotted != module else None


def _imported(module: str, name: str) -> Any:
    try:
        with _of_the_user(ImportError, SyntaxError):
            return call(import_module, module)
    except (ImportError, SyntaxError) as error:
        # The module itself is missing, or a package that it is in; else something that it imports.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise NotLoaded(
                f"there is no module {module}",
                found=f"no {error.name} in {Path.cwd()}, nor where Python looks for modules",
                expected="MODULE:FUNCTION, as in billing_app:consumer",
                next_step=_corrected(module, name)
                or did_you_mean(get_close_matches(module, [file.stem for file in Path.cwd().glob("*.py")]))
                + "Correct the name, change to the directory that has it, or set PYTHONPATH.",
            ) from None
        place = place_of(error)
        if isinstance(error, SyntaxError) and error.lineno is not None:
            place = f"{error.filename}:{error.lineno}"
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise NotLoaded(
            f"module {module} can't be imported",
            found=f"{type(error).__name__}: {text}" + ("" if place is None else f", at {place}"),
            expected="a module that Python can import",
            next_step="Correct that line, or install what it imports.",
        ) from error


@contextmanager
def _of_the_user(*passing: type[Exception]) -> Generator[None]:
    """Raise `FunctionRaised` for errors of the user's own code.

    :param passing: errors that are raised unchanged, as are ours and the database's.
    """
    try:
        yield
    except (OffsetStoreError, *passing):
        raise
    except Exception as error:
        if of_store(error) is not None:
            raise
        raise FunctionRaised from error


def _check_arguments(text: str, function: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        # A function written in C may have no signature.
        return
    try:
        signature.bind()
    except TypeError:
        raise ConfigurationError(
            f"{text} takes arguments",
            found=f"{text.partition(':')[2]}{signature}",
            expected="a function without arguments that returns an offsetstore.consumer.Consumer",
            next_step="Have it read what it needs itself, such as the environment; or give the arguments defaults.",
        ) from None


def prepare(consumer: Consumer, told: Told) -> None:
    """Give the consumer its instance id, if the processes are static members.

    :raises ConfigurationError: it has one already.
    """
    name = "group.instance.id"
    if (found := consumer.kafka.get(name)) is not None and (told.is_static or told.count > 1):
        raise ConfigurationError(
            f"kafka= may not set {name} here: each process needs its own",
            found=found,
            expected=f"nothing; --static sets {socket.gethostname()}-{told.number}",
        )
    if told.is_static:
        consumer.kafka = {**consumer.kafka, name: f"{socket.gethostname()}-{told.number}"}


def rejoins(consumer: Consumer) -> bool:
    """Whether the group still belongs to the consumer's fleet, which another of its processes may have founded anew.

    If so, a fenced process may be replaced; see decision 0094.
    """
    request, last = consumer.request, time.monotonic() + _PATIENCE
    while time.monotonic() < last:
        try:
            owner = consumer.store.owner(request.group)
        except OffsetStoreError:
            time.sleep(_EVERY)
        else:
            return owner is not None and owner.fleet is not None and owner.fleet == consumer.fleet_name
    # The database does not say. The next process finds out, unless it would fence whoever has the group.
    return request.takeover != "fence"


class Reporter:
    """Reports the consumer's state to the supervisor every second, in a thread."""

    def __init__(self, connection: Connection, consumer: Consumer, *, has_metrics: bool) -> None:
        self._connection = connection
        self._silence = consumer.longest_poll
        self._drain = consumer.drain + _LEAVING
        self._limits = Limits(polling=self._silence)
        # It waits until a job has left, however long that lives, and must not count as one that never starts.
        if consumer.request.takeover == "wait":
            self._limits = replace(self._limits, starting=_FOR_EVER)
        self._clock = RunningClock()
        self._facts = FactCollector(self._clock, self._limits)
        store = consumer.store
        store.observers = store.observers.with_one(self._facts)
        self._collect: Callable[[], Sequence[Any]] = list
        if has_metrics:
            metrics = find("offsetstore.monitoring.metrics", "Metrics", what="--port", extra="monitoring")()
            store.observers = store.observers.with_one(metrics)
            self._collect = lambda: [*metrics.registry.collect()]
        self._turns = Background("offsetstore-report", self._turn, lambda: _EVERY)
        self._turns.start()

    def _turn(self) -> bool:
        verdict: Verdict = judge(self._facts.facts(), self._limits, self._clock())
        try:
            # The verdict, and not the events: the errors in these may not unpickle (decision 0094).
            self._connection.send(Report(verdict, self._silence, self._drain, metrics=self._collect()))
        except OSError:
            # The supervisor is gone: see ConsumerProcess.follow_supervisor.
            return False
        return True


class Watched:
    """Tells the supervisor on the process's page what it handles and how it ends; see `offsetstore.consumer.watch`."""

    def __init__(self, page: Page, number: int = 0) -> None:
        self._page = page
        self._number = number
        self._words = Words()
        # Deliveries and the end of the process come from several threads.
        self._guard = threading.Lock()

    def joined(self, claim: Claim) -> None:
        """Record how earlier processes died: the supervisor has no connection to the database."""
        for death in self._page.orders().deaths:
            tp = next(iter(death.handled)) if len(death.handled) == 1 else None
            claim.note_error(
                JobError(
                    source="job",
                    error_class="ProcessDied",
                    text=death.text,
                    topic_partition=tp,
                    ranges=describe(death.handled),
                )
            )
        self._tell(has_joined=True)

    @property
    def has_joined(self) -> bool:
        return self._words.has_joined

    def suspects(self) -> Ranges:
        return self._page.orders().suspects

    def handles(self, ranges: Ranges, skip: str) -> None:
        self._tell(handled=ranges, skip=skip)

    def on(self, event: Event) -> None:
        """As an observer: report, once, that records were stored."""
        if isinstance(event, BatchEnded) and event.outcome == "written" and not self._words.has_written:
            self._tell(has_written=True)

    def prints(self, what: str, details: Mapping[str, str]) -> str:
        """Print an error, and return its text."""
        text = error_text(what, details)
        # Not what the process before has printed: a typo, tried five times, was thirty lines (decision 0094).
        if text != self._page.orders().printed:
            print_error(what, details, prefix=log_prefix(self._number))
        return text

    def ends(self, end: End) -> int:
        """Report how the process ends; return its exit code."""
        # The first end counts: a fenced process has told its own before it left.
        if self._words.end is None:
            self._tell(end=end)
        return (self._words.end or end).code

    def _tell(self, **changes: Any) -> None:
        with self._guard:
            self._words = replace(self._words, **changes)
            self._page.tell(self._words)


def end_after(error: OffsetStoreError, *, has_joined: bool = False) -> End:
    """How a process ends after this error.

    :param has_joined: whether it was a member; then the database accepts its password.
    """
    code = exit_code(error)
    # Their code, 2, would end all processes; but a package that is being replaced may soon be back (decision 0094).
    if isinstance(error, (NotLoaded, MissingDependency)):
        return End(code, "repeats")
    # Only before it joins, since a refused password is found by trial, with attempts to connect (decision 0094).
    if isinstance(error, StoreUnavailable) and not has_joined and is_refused(error):
        return End(code, "repeats")
    return End(code, "harms" if code in FINAL else "repeats" if is_lasting(error) else "helps")


class FirstRows:
    """Says once, at a terminal, that the process has written rows: else one that works says nothing."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._has_said = not sys.stderr.isatty()

    def on(self, event: Event) -> None:
        if not self._has_said and isinstance(event, BatchEnded) and event.outcome == "written":
            self._has_said = True
            rows = counted(sum(event.rows.values()), "row")
            click.echo(f"{log_prefix(self._number)}batch {event.batch}: {rows}", err=True)


class LogLines(logging.Formatter):
    """Lines of our own loggers with the time and the process; other libraries' lines stay as they are."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def format(self, record: logging.LogRecord) -> str:
        said = super().format(record)
        return log_prefix(self._number, record.created) + said if record.name.startswith("offsetstore") else said


class ConsumerProcess:
    """The process, from its start to its end."""

    def __init__(self, told: Told, connection: Connection, watched: Watched) -> None:
        self._told = told
        self._connection = connection
        self._watched = watched
        self._consumer: Consumer | None = None

    def __call__(self) -> None:
        """Run the consumer until SIGTERM.

        :raises OffsetStoreError: what ended it.
        """
        signal.signal(signal.SIGTERM, self._on_signal)
        consumer = load(self._told.function)
        prepare(consumer, self._told)
        Reporter(self._connection, consumer, has_metrics=self._told.has_metrics)
        consumer.watch = self._watched
        for observer in (self._watched, FirstRows(self._told.number)):
            consumer.store.observers = consumer.store.observers.with_one(observer)
        self._consumer = consumer
        with consumer.store:
            try:
                consumer.run()
            except StaleClaim as error:
                # Told here, since the process may be killed while it leaves.
                self._watched.ends(End(exit_code(error), "helps" if rejoins(consumer) else "harms"))
                raise

    def follow_supervisor(self) -> None:
        """End the process once the supervisor is gone: nobody would replace it, or kill it if it hangs.

        A process that has not joined ends at once, in an import or while it waits for a job to leave. A member writes
        what it has polled, within the time that the supervisor would have given it.
        """
        threading.Thread(target=self._follow, name="offsetstore-supervisor", daemon=True).start()

    def _follow(self) -> None:
        # The supervisor sends nothing: the socket becomes readable when the system closes its other end. Linux's signal
        # at a parent's death comes when the parent's thread ends, and not if that was before prctl (decision 0104).
        self._connection.poll(None)
        consumer = self._consumer
        if consumer is not None and self._watched.has_joined:
            consumer.stop()
            time.sleep(consumer.drain + _LEAVING)
        # Together with what it has started, as the supervisor would.
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(ExitCode.DEAD)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's signature
        # Nothing was polled yet: end at once, also in the middle of an import.
        if self._consumer is None:
            raise TermSignal(0)
        self._consumer.stop()


def main(told: Told, descriptor: int, page: int, *, follows: bool = False) -> int:
    """Run the consumer, print its error, and return the exit code.

    :param page: the descriptor of the process's `Page`.
    :param follows: whether the process ends once the supervisor is gone.
    """
    # What the user's code starts must not keep the socket open: its end tells the supervisor that no report follows.
    for number in (descriptor, page):
        os.set_inheritable(number, False)  # noqa: FBT003 - Python's signature
    faulthandler.register(STACKS, all_threads=True)
    # Only now that our own modules are imported, whose place no file there can take: -P, see consume.py.
    sys.path.insert(0, str(Path.cwd()))
    watched = Watched(Page(page), told.number)
    run = ConsumerProcess(told, Connection(descriptor), watched)
    if follows:
        run.follow_supervisor()
    return watched.ends(run_told(told, run, watched))


def run_told(told: Told, run: ConsumerProcess, watched: Watched) -> End:
    try:
        run()
    except OffsetStoreError as error:
        return _tell(error, watched)
    except FunctionRaised as error:
        return _tell_raised(told.function, error.__cause__ or error, watched)
    except Exception as error:  # noqa: BLE001 - of the user's code, which wants to see where
        if (ours := of_store(error)) is not None:
            return _tell(ours, watched, error)
        if tells_of_outage(error):
            return _tell_raised(told.function, error, watched)
        traceback.print_exc()
        return End(ExitCode.BUG)
    return End(ExitCode.OK)


def _tell(ours: OffsetStoreError, watched: Watched, raised: Exception | None = None) -> End:
    print_trace(raised or ours)
    step = ours.next_step
    # The text may quote a record: it is shown only to those who ask for it. A job with dead letters keeps none.
    if isinstance(ours, FunctionFailed) and ours.text and not os.environ.get(TRACE):
        step = f"{step} {TRACE}=1 in the environment shows the error's text and traceback."
    printed = watched.prints(*describe_error(ours, step))
    return replace(end_after(ours, has_joined=watched.has_joined), error=printed)


def _tell_raised(function: str, error: BaseException, watched: Watched) -> End:
    print_trace(error)
    what, details = describe_other(error)
    step = f"{details.pop('next step')} The process is started again meanwhile: a service may have been away."
    printed = watched.prints(f"{function} failed: {what}", {**details, "next step": step})
    return End(ExitCode.BUG, "repeats" if isinstance(error, (ImportError, SyntaxError)) else "helps", printed)


if __name__ == "__main__":
    # What Python prints of a program that has set up no logging.
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogLines(json.loads(sys.argv[1])["number"]))
    sys.exit(main(Told(**json.loads(sys.argv[1])), *map(int, sys.argv[2:]), follows=True))
