"""One process of ``offsetstore consume``: makes the consumer, runs it, and reports to the supervisor."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from offsetstore.cli.output import print_error
from offsetstore.errors import (
    ConfigurationError,
    ExitCode,
    MissingPrivilege,
    OffsetStoreError,
    SchemaError,
    StaleClaim,
    exit_code,
)
from offsetstore.lazy import find
from offsetstore.monitoring.health import Limits, Verdict, judge
from offsetstore.monitoring.processes import STACKS, Report
from offsetstore.monitoring.supervision import FactCollector, RunningClock
from offsetstore.postgres.errors import of_database
from offsetstore.protocol.background import Background
from offsetstore.text import describe_error

if TYPE_CHECKING:
    from offsetstore.consumer import Consumer

_EVERY: Final = 1.0
_LEAVING: Final = 30.0  # seconds after its drain= in which a consumer leaves Kafka's group and the fleet
_FOR_EVER: Final = 1e9  # seconds
_OF_OUR_TABLES: Final = (SchemaError, MissingPrivilege)  # what the user's own SQL lacks is not told as ours
_PATIENCE: Final = 10.0  # seconds for which the database is asked whose the group is


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


def load(text: str) -> Consumer:
    """Import the module, and call the function.

    :raises ConfigurationError: there is none, or it returns no consumer.
    :raises MissingDependency: the extra ``consumer`` is not installed.
    """
    kind = find("offsetstore.consumer", "Consumer", what="`offsetstore consume`", extra="consumer")
    module, _, name = text.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigurationError(
            "this is not the name of a function", found=text, expected="MODULE:FUNCTION, as in billing_app:consumer"
        )
    function = getattr(_imported(module), name, None)
    if not callable(function):
        raise ConfigurationError(
            f"module {module} has no function {name}",
            found="no such name" if function is None else f"{type(function).__name__} {name}",
            expected="a function without arguments that returns an offsetstore.consumer.Consumer",
        )
    made: Any = function()
    if not isinstance(made, kind):
        raise ConfigurationError(
            f"{text} returned no consumer", found=type(made).__name__, expected="an offsetstore.consumer.Consumer"
        )
    return made


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except (ImportError, SyntaxError) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"there is no module {module}",
                found=f"no {error.name} in {Path.cwd()}, nor where Python looks for modules",
                expected="MODULE:FUNCTION, as in billing_app:consumer",
                next_step="Change to the directory that has it, or set PYTHONPATH.",
            ) from None
        traceback.print_exc()
        raise ConfigurationError(
            f"module {module} can't be imported", found=f"{type(error).__name__}: {error}", next_step="See above where."
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
    """Whether the group is the consumer's own fleet's, though another process of it may have founded it anew.

    If the database does not say so for some seconds, the next process finds out, unless it would fence whatever has it.
    """
    request, last = consumer.request, time.monotonic() + _PATIENCE
    while time.monotonic() < last:
        try:
            owner = consumer.store.owner(request.group)
        except OffsetStoreError:
            time.sleep(_EVERY)
        else:
            return owner is not None and owner.fleet is not None and owner.fleet == consumer.fleet_name
    return request.takeover != "fence"


class Reporter:
    """Tells the supervisor every second how the consumer is, in a thread.

    :param on_lost: called once the supervisor is gone.
    """

    def __init__(
        self, connection: Connection, consumer: Consumer, on_lost: Callable[[], None], *, has_metrics: bool
    ) -> None:
        self._connection = connection
        self._on_lost = on_lost
        self._silence = consumer.longest_poll
        self._drain = consumer.drain + _LEAVING
        self._limits = Limits(polling=self._silence)
        if consumer.request.takeover == "wait":  # until a job has left, however long that lives
            self._limits = replace(self._limits, starting=_FOR_EVER)
        self._clock = RunningClock()
        self._facts = FactCollector(self._clock, self._limits)
        self._guard = threading.Lock()
        self._rejoins = False
        store = consumer.store
        store.observers = store.observers.with_one(self._facts)
        self._collect: Callable[[], Sequence[Any]] = list
        if has_metrics:
            found = find("offsetstore.monitoring.metrics", "Metrics", what="--port", extra="monitoring")()
            store.observers = store.observers.with_one(found)
            self._collect = lambda: [*found.registry.collect()]
        self._turns = Background("offsetstore-report", self._turn, lambda: _EVERY)
        self._turns.start()

    def send(self, *, rejoins: bool = False) -> None:
        """Send a report now.

        :param rejoins: see `Report`. Later reports say it too: the thread sends them until the process is gone.
        :raises OSError: the supervisor is gone.
        """
        verdict: Verdict = judge(self._facts.facts(), self._limits, self._clock())
        with self._guard:
            self._rejoins = self._rejoins or rejoins
            self._connection.send(
                Report(verdict, self._silence, self._drain, rejoins=self._rejoins, metrics=self._collect())
            )

    def _turn(self) -> bool:
        try:
            self.send()
        except OSError:
            self._on_lost()
            return False
        return True


class Run:
    """The process, from its start to its end."""

    def __init__(self, told: Told, connection: Connection) -> None:
        self._told = told
        self._connection = connection
        self._consumer: Consumer | None = None

    def __call__(self) -> None:
        """Run the consumer until SIGTERM.

        :raises OffsetStoreError: what ended it.
        """
        signal.signal(signal.SIGTERM, self._on_signal)
        consumer = load(self._told.function)
        prepare(consumer, self._told)
        reporter = Reporter(self._connection, consumer, consumer.stop, has_metrics=self._told.has_metrics)
        self._consumer = consumer
        with consumer.store:
            try:
                consumer.run()
            except StaleClaim:
                with suppress(OSError):
                    reporter.send(rejoins=rejoins(consumer))
                raise

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's signature
        if self._consumer is None:
            raise SystemExit(0)
        self._consumer.stop()


def main(told: Told, descriptor: int) -> int:
    """Run the consumer, print its error, and return the exit code."""
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - Python's signature
    faulthandler.register(STACKS, all_threads=True)
    sys.path.insert(0, str(Path.cwd()))
    try:
        Run(told, Connection(descriptor))()
    except OffsetStoreError as error:
        print_error(*describe_error(error))
        return exit_code(error)
    except Exception as error:  # noqa: BLE001 - of the user's code, which wants to see where
        ours = of_database(error)
        if ours is not None and not isinstance(ours, _OF_OUR_TABLES):
            print_error(*describe_error(ours))
            return exit_code(ours)
        traceback.print_exc()
        return ExitCode.BUG
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(Told(**json.loads(sys.argv[1])), int(sys.argv[2])))
