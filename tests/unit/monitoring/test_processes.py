"""The supervisor of a consumer's processes, with processes that only report."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.request import urlopen

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from offsetstore.monitoring import processes
from offsetstore.monitoring.health import Code, Finding, Verdict
from offsetstore.monitoring.page import Death, End, Orders, Page, Restart, Words
from offsetstore.monitoring.processes import Care, Process, Report, Supervisor
from offsetstore.monitoring.whole import FAILURES, READY, WholeMonitoring
from offsetstore.offsets import OffsetRange, TopicPartition
from tests.support.background import in_background
from tests.support.clock import Clock
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("CONS-11")

ROOT = Path(__file__).parents[3]
PROCESS = str(ROOT / "tests" / "support" / "reporting_process.py")
DEAD = Verdict((Finding(Code.BATCH_TOO_LONG, "billing", "billing: the batch is in flight"),))
LOST = Verdict((Finding(Code.CLAIM_LOST, "billing", "billing: another claim has taken over"),))
SILENCE = 300.0
REPORTS = {
    word: b64encode(pickle.dumps(report)).decode()
    for word, report in {
        "ready": Report(Verdict(), SILENCE),
        "dead": Report(DEAD, SILENCE),
        "slow": Report(Verdict(), SILENCE, drain=150.0),
        "fenced": Report(LOST, SILENCE),
    }.items()
}
KILLED = "someone killed it, or the kernel did for want of memory"
CRASHED = "your function or a library crashed in C"
EXITED = "your function or a library ended the process, as os._exit does"
SKIP = " To skip only this record: offsetstore reset …"
SECONDS = 60.0  # a busy machine takes some to start a process


def soon(condition: Callable[[], object]) -> None:
    wait_until(condition, timeout=SECONDS)


def reporting(steps: str) -> list[str]:
    """The command of a process that does this, and reports with the words of `REPORTS`.

    ``tells=CODE:RESTART`` is a told end, or ``tells=CODE:RESTART:WHAT`` with an error; ``joined-tells`` that of one
    that has joined; ``joined`` and ``wrote`` tell just that. ``handles=P0:0:100,P1:0:50`` tells what it handles,
    ``one=P0:7:8`` the same with the words that skip it.
    """
    return [sys.executable, "-S", PROCESS, " ".join(map(_as_step, steps.split()))]


def _as_step(word: str) -> str:
    if word in REPORTS:
        return f"report={REPORTS[word]}"
    name, _, value = word.partition("=")
    match name:
        case "tells" | "joined-tells":
            code, restart, *error = value.split(":")
            words = Words(
                has_joined=name != "tells", end=End(int(code), cast("Restart", restart), *map(_as_error, error))
            )
        case "joined":
            words = Words(has_joined=True)
        case "wrote":
            words = Words(has_joined=True, has_written=True)
        case "handles" | "one":
            words = Words(places(value), skip=SKIP if name == "one" else "")
        case _:
            return word
    return f"words={b64encode(pickle.dumps(words)).decode()}"


def _as_error(what: str) -> str:
    return f"Error: {what}\n  next step: Correct it."


def places(text: str) -> dict[TopicPartition, OffsetRange]:
    """Such as ``P0:0:100,P1:0:50``."""
    given = [one.split(":") for one in text.split(",") if one]
    return {TopicPartition("payments", int(p[1:])): OffsetRange(int(begin), int(end)) for p, begin, end in given}


class Supervised:
    """A supervisor that runs in a thread.

    :param steps: of each process by its number, one after the other; the last ones are repeated.
    """

    def __init__(self, steps: Mapping[int, Sequence[str]], care: Care | None = None) -> None:
        self.said: list[str] = []  # of single processes, and about the end
        self.heard: list[str] = []
        self.started: dict[int, int] = dict.fromkeys(steps, 0)
        self._steps = steps
        self.clock = Clock(1000.0)
        self.supervisor = Supervisor(len(steps), self._command, say=self._hear, care=care, clock=self.clock)
        self._turns, self._turn = 0, self.supervisor._turn
        self.supervisor._turn = self._count_turn
        self.ended: Future[int] = in_background(self.supervisor.run)

    def _hear(self, text: str) -> None:
        self.heard.append(text)
        if not text.startswith(("the process is ready", "all processes are ready", "ended with ")):
            self.said.append(text)

    def _command(self, number: int) -> list[str]:
        steps = self._steps[number]
        self.started[number] += 1
        return reporting(steps[min(self.started[number], len(steps)) - 1])

    def _count_turn(self) -> bool:
        is_over = self._turn()
        self._turns += 1
        return is_over

    def skip(self, seconds: float) -> None:
        """Let time pass, and the supervisor look at least once."""
        self.clock.now += seconds
        begun = self._turns + 1  # one may be under way
        soon(lambda: self._turns > begun or self.ended.done())

    def end(self) -> int:
        """Wait for its end; return the exit code."""
        soon(self.ended.done)
        return self.ended.result()

    def stop(self) -> int:
        self.supervisor.stop()
        return self.end()

    def begin_to_end(self) -> None:
        """Tell it to end, once all are ready, and wait until it says so."""
        soon(self.is_ready)
        self.supervisor.stop()
        soon(lambda: self.said)

    def restart(self, after: float, *, started: int = 2) -> None:
        """Let time pass, and wait until the first process is ready for that time."""
        self.skip(after)
        soon(lambda: self.started[0] == started and self.is_ready())

    def pid(self, number: int) -> int:
        process = self.supervisor.places[number].process
        assert process is not None
        return process.pid

    def kill(self) -> str:
        """Kill the first process; return what is said of its end."""
        before = len(self.said)
        os.kill(self.pid(0), signal.SIGKILL)
        soon(lambda: len(self.said) > before)
        return self.said[-1]

    def is_ready(self) -> bool:
        """Whether all are, and the supervisor has seen one that was."""
        assert not self.ended.done(), self.said
        return self.supervisor.health().is_ready and self.supervisor._has_begun


Supervise: TypeAlias = Callable[..., Supervised]


@pytest.fixture
def supervise(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervise]:
    """What starts a supervisor of processes with these steps: by their numbers, or those of one."""
    monkeypatch.setattr(processes, "_LOOK", 0.02)
    made: list[Supervised] = []

    def start(steps: Mapping[int, Sequence[str]] | Sequence[str], care: Care | None = None) -> Supervised:
        made.append(Supervised(steps if isinstance(steps, Mapping) else {0: steps}, care))
        return made[-1]

    yield start
    for one in made:
        one.supervisor.stop()
        one.clock.now += 1  # else both are one
        one.supervisor.stop()
        one.ended.result(timeout=60)


@pytest.mark.behaviour("CONS-8")
def test_all_processes_are_drained_at_the_end_and_signals_that_come_together_are_one(supervise: Supervise) -> None:
    """`timeout` signals the supervisor, and then its group."""
    one = supervise({0: ["ready wait"], 1: ["ready wait"]})
    assert not one.supervisor.health().is_ready
    soon(one.is_ready)
    soon(lambda: one.heard == ["all processes are ready"])
    pids = [one.pid(0), one.pid(1)]
    one.supervisor.stop()
    one.clock.now += 0.9
    assert one.stop() == 0
    assert one.heard == ["all processes are ready", "ending, within 60 s", "ended with exit code 0"]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_report_that_cant_be_read_is_heard_and_does_not_end_its_process(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the package is replaced: a process would take the end of the connection for the supervisor's."""
    errors: list[type[BaseException]] = [ValueError, AttributeError, FileNotFoundError, EOFError, MemoryError]
    loads, met = pickle.loads, list[type[BaseException]]()

    def load(told: bytes) -> object:
        if len(met) < len(errors):
            met.append(errors[len(met)])
            raise met[-1]
        return loads(told)

    monkeypatch.setattr(processes.pickle, "loads", load)
    one = supervise(["ready wait"])
    soon(one.is_ready)
    assert (met, one.said, one.started[0]) == (errors, [], 1)
    assert one.stop() == 0


def test_a_process_that_died_is_replaced_with_growing_pauses(supervise: Supervise) -> None:
    one = supervise(
        ["ready tells=5:helps exit=5", "ready tells=3:helps exit=3", "tells=70:helps exit=70", "ready wait"],
    )
    for number, (code, pause) in enumerate([(5, 1), (3, 2), (70, 4)], 1):
        soon(lambda: len(one.said) == number)  # noqa: B023 - called at once
        assert one.said[-1] == f"process 0 has ended with exit code {code}; the next one starts in {pause} s"
        one.skip(pause - 0.5)
        assert one.started[0] == number
        one.skip(0.5)
    soon(lambda: one.started[0] == 4 and one.is_ready())
    assert one.kill() == f"process 0 has ended with SIGKILL ({KILLED}); the next one starts in 8 s"
    one.skip(8)
    soon(lambda: one.started[0] == 5 and one.heard[-1] == "the process is ready")
    one.skip(61)
    assert one.kill().endswith("starts in 1 s")  # it had lived for a minute
    one.restart(1, started=6)
    one.supervisor.places[0].failures = 5_000  # a week
    assert one.kill().endswith("starts in 60 s")


def test_a_process_that_cant_be_started_is_started_later(supervise: Supervise, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        one = supervise(["ready wait"])
        soon(lambda: one.said)
        assert one.said[0] == (
            "process 0 could not be started (Resource temporarily unavailable); the next one starts in 1 s"
        )
    one.skip(60)
    soon(one.is_ready)


@pytest.mark.behaviour("CONS-16")
@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_code_that_the_process_has_not_told_is_a_crash(supervise: Supervise, code: int) -> None:
    """A library's, the interpreter's, or that of a program in a transform."""
    one = supervise({0: ["ready wait"], 1: [f"ready exit={code}", "ready wait"]})
    soon(lambda: one.said)
    assert one.said == [f"process 1 has ended with exit code {code} ({EXITED}); the next one starts in 1 s"]
    one.skip(1)
    soon(lambda: one.started[1] == 2 and one.is_ready())
    assert one.stop() == 0


@pytest.mark.behaviour("CONS-16")
@pytest.mark.parametrize("how", ["exit=2", "exit=0", f"kill={signal.SIGSEGV:d}"])
def test_a_process_that_has_told_that_no_restart_helps_ends_all_whatever_its_interpreter_makes_of_it(
    supervise: Supervise, how: str
) -> None:
    one = supervise({0: ["ready wait"], 1: [f"ready tells=2:harms {how}"]})
    assert one.end() == 2
    assert one.started == {0: 1, 1: 1}


def fail(one: Supervised, times: int) -> None:
    """Let the process fail so often."""
    for number in range(1, times + 1):
        soon(lambda: len(one.said) >= number or one.ended.done())  # noqa: B023 - called at once
        one.skip(60)


@pytest.mark.behaviour("CONS-16")
@pytest.mark.parametrize(
    "steps",
    [
        ["tells=3:repeats exit=3"],
        ["ready joined-tells=3:repeats exit=3"],
        ["ready joined-tells=3:repeats exit=3", "joined-tells=3:repeats exit=3"],
    ],
)
def test_what_no_restart_mends_ends_all_at_the_fifth_time_if_no_process_has_ever_worked(
    supervise: Supervise, steps: list[str]
) -> None:
    """Each is ready while it waits for Kafka to assign something, so that is no proof for what is found at writing."""
    one = supervise(steps)
    fail(one, 4)
    assert one.end() == 3
    assert one.started == {0: 5}
    assert one.said[-1] == "process 0 has ended with exit code 3, 5 times in a row, and a restart does not help: ending"


@pytest.mark.behaviour("CONS-16", "DX-9")
def test_an_error_that_comes_again_is_told_in_the_line_of_its_end(supervise: Supervise) -> None:
    what = ["first", "first", "second", "second", "first"]
    one = supervise([f"tells=3:repeats:{one} exit=3" for one in what])
    fail(one, 4)
    assert one.end() == 3
    again = [found[1] if (found := re.search(r"code 3(?:, again: (\w+))?[;,]", line)) else line for line in one.said]
    assert again == [None, "first", None, "second", None]


@pytest.mark.behaviour("CONS-16")
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (["ready exit=5"], ["tells=3:repeats exit=3"] * 5),
        (["ready wrote exit=5"], ["ready joined-tells=5:repeats exit=5"] * 5),
        (["tells=3:repeats exit=3"] * 4 + ["exit=5"], ["tells=3:repeats exit=3"] * 4),
        ([], ["tells=3:helps exit=3"] * 5),
        ([], ["exit=3"] * 5),
    ],
    ids=["was ready", "has written", "another failure between", "an outage", "a crash"],
)
def test_what_may_pass_is_retried_without_an_end(supervise: Supervise, first: list[str], then: list[str]) -> None:
    one = supervise([*first, *then, "ready wait"])
    fail(one, len(first) + len(then))
    soon(one.is_ready)
    assert one.stop() == 0


@pytest.mark.behaviour("CONS-16")
def test_a_process_that_was_ready_for_a_minute_without_a_record_has_worked(supervise: Supervise) -> None:
    one = supervise({0: ["ready wait"], 1: [*["ready joined-tells=5:repeats exit=5"] * 6, "ready wait"]})
    soon(lambda: one.supervisor.places[0].is_ready)
    one.skip(61)
    fail(one, 6)
    soon(one.is_ready)
    assert one.stop() == 0


@pytest.mark.behaviour("CONS-16")
@pytest.mark.parametrize(
    ("steps", "code"),
    [
        (["tells=3:helps exit=3", "hush"], 3),
        (["exit=1", "hush"], 70),
        (["exit=0", "hush"], 70),
        (["ready exit=1", "hush"], 0),
        (["hush"], 0),
    ],
)
def test_the_exit_code_is_that_of_the_last_failure_if_no_process_was_ever_ready(
    supervise: Supervise, steps: list[str], code: int
) -> None:
    one = supervise(steps)
    if len(steps) > 1:
        soon(lambda: one.said)
    assert one.stop() == code


@pytest.mark.behaviour("CONS-16")
@pytest.mark.parametrize(("steps", "code"), [("deaf=1", 70), ("deaf=0", 0), ("tells=5:helps deaf=5", 5)])
def test_a_process_that_is_told_to_end_is_believed_no_more(supervise: Supervise, steps: str, code: int) -> None:
    one = supervise([f"{steps} ready wait"])
    soon(one.is_ready)
    assert one.stop() == code


SEGV = f"kill={signal.SIGSEGV:d}"
NEXT = "; the next one starts in"


def orders(one: Supervised, number: int = 0) -> Orders:
    process = one.supervisor.places[number].process
    assert process is not None
    return process.orders


@pytest.mark.behaviour("CONS-17")
@pytest.mark.parametrize(
    ("how", "why"),
    [("SIGSEGV", CRASHED), ("SIGKILL", KILLED), ("0", EXITED)],
)
def test_the_third_process_that_dies_at_a_record_names_it_and_what_they_handle_is_narrowed(
    supervise: Supervise, how: str, why: str
) -> None:
    """A crash in C, the kernel that is out of memory, or a library that exits."""
    death = f"exit={how}" if how.isdigit() else f"kill={signal.Signals[how]:d}"
    ended = f"process 0 has ended with {f'exit code {how}' if how.isdigit() else how} ({why}) while it handled"
    one = supervise(
        [
            f"ready handles=P0:0:100,P1:0:50 {death}",
            f"handles=P0:10:80,P2:0:9 {death}",
            f"ready one=P0:40:41 {death}",
            "ready wait",
        ],
    )
    soon(lambda: one.said)
    assert one.said[0] == f"{ended} payments-0 [0, 100), payments-1 [0, 50){NEXT} 1 s"
    one.skip(1)
    soon(lambda: len(one.said) == 2)
    assert one.said[1] == (
        f"{ended} payments-0 [10, 80), payments-2 [0, 9), as did 1 before it{NEXT} 2 s. "
        "These records are handled one by one from now on."
    )
    one.skip(2)
    soon(lambda: len(one.said) == 3)
    told = ". Nothing was stored since the supervisor was started, so any record may do this."
    assert one.said[2] == f"{ended} payments-0 [40, 41), as did 2 before it{NEXT} 4 s{told}{SKIP}"
    one.skip(4)
    soon(one.is_ready)
    assert orders(one).suspects == places("P0:40:41")
    assert one.stop() == 0


@pytest.mark.behaviour("CONS-17")
def test_a_record_that_was_handled_alone_by_chance_is_named_at_the_third_death_as_well(supervise: Supervise) -> None:
    one = supervise([f"ready wrote {SEGV}", *[f"ready one=P0:7:8 {SEGV}"] * 3, "ready wait"])
    fail(one, 4)
    soon(one.is_ready)
    assert [line.endswith(f" s.{SKIP}") for line in one.said] == [False, False, False, True]


@pytest.mark.behaviour("CONS-17")
def test_processes_that_run_are_told_of_suspects_too_since_kafka_gives_them_the_partition_first(
    supervise: Supervise,
) -> None:
    dies = f"ready handles=P0:0:9 {SEGV}"
    one = supervise({0: [dies, dies, "ready wait"], 1: ["ready wait"]})
    soon(lambda: len(one.said) == 1 and one.supervisor.places[1].is_ready)
    assert orders(one, 1).suspects == {}
    one.skip(1)
    soon(lambda: len(one.said) == 2)
    assert orders(one, 1).suspects == places("P0:0:9")
    one.restart(2, started=3)
    assert orders(one).suspects == places("P0:0:9")


@pytest.mark.behaviour("CONS-17")
@pytest.mark.parametrize(
    "steps",
    [
        f"ready handles=P0:0:9 kill={signal.SIGINT:d}",
        "ready handles=P0:0:9 tells=5:helps exit=5",
        "ready handles=P0:0:9 handles= exit=5",
    ],
)
def test_an_operators_signal_an_error_that_is_told_and_a_death_between_flushes_name_no_record(
    supervise: Supervise, steps: str
) -> None:
    one = supervise([steps, steps, steps, "ready wait"])
    fail(one, 3)
    soon(one.is_ready)
    assert not any("while it handled" in line for line in one.said)
    assert orders(one) == Orders()


@pytest.mark.behaviour("CONS-17")
def test_a_process_that_the_supervisor_kills_names_no_record(supervise: Supervise) -> None:
    one = supervise(["ready handles=P0:0:9 hush", "ready handles=P0:0:9 hush", "ready wait"])
    for _ in range(2):
        soon(lambda: (process := one.supervisor.places[0].process) and process.words.handled)
        one.skip(301)
        one.skip(2)
        soon(lambda: one.supervisor.places[0].process is None)
        one.skip(60)
    soon(one.is_ready)
    assert not any("while it handled" in line for line in one.said)
    assert orders(one) == Orders()


@pytest.mark.behaviour("CONS-17")
@pytest.mark.parametrize("side", ["words", "orders"])
def test_what_is_told_stays_when_a_process_is_killed_while_it_tells_the_next(
    monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """The kernel ends a write of more than 4 KiB in between."""
    many = {TopicPartition("payments", number): OffsetRange(0, 9) for number in range(1000)}
    page, other = Page.make(), OffsetRange(9, 20)
    told: list[Any] = [Words(many), Words(dict.fromkeys(many, other)), Words(has_joined=True)]
    if side == "orders":
        told = [Orders(many), Orders(dict.fromkeys(many, other)), Orders(places("P0:0:9"))]
    tell: Any = page.tell if side == "words" else page.order

    def read(page: Page) -> Any:
        return page.words() if side == "words" else page.orders()

    write, reader = os.pwrite, Page(page.descriptor)

    def tear(descriptor: int, text: bytes, place: int) -> int:
        return write(descriptor, text[:4096], place)

    assert read(reader) == (Words() if side == "words" else Orders())
    tell(told[0])
    assert read(reader) is read(reader)  # it is unpickled once
    monkeypatch.setattr(os, "pwrite", tear)
    tell(told[1])
    assert read(reader) == read(Page(page.descriptor)) == told[0]
    monkeypatch.undo()
    tell(told[2])
    assert read(reader) == read(Page(page.descriptor)) == told[2]
    page.close()


@pytest.mark.behaviour("CONS-17")
def test_deaths_at_different_records_are_no_reason_to_be_careful(supervise: Supervise) -> None:
    one = supervise([f"ready handles=P0:0:9 {SEGV}", f"ready handles=P0:9:20,P1:0:9 {SEGV}", "ready wait"])
    fail(one, 2)
    soon(one.is_ready)
    assert orders(one).suspects == {}


@pytest.mark.behaviour("CONS-17")
def test_the_next_process_that_joins_is_given_the_deaths_to_record(supervise: Supervise) -> None:
    """One that dies before has recorded nothing."""
    one = supervise([f"handles=P0:0:9 {SEGV}", "exit=3", "joined ready wait"])
    fail(one, 2)
    soon(one.is_ready)
    text = f"process 0 has ended with SIGSEGV ({CRASHED}) while it handled payments-0 [0, 9)"
    death = Death(text, places("P0:0:9"))
    assert orders(one).deaths == (death,)
    one.kill()
    one.restart(60, started=4)
    assert orders(one).deaths == ()


def test_what_is_wrong_with_all_processes_is_told_by_the_first(supervise: Supervise) -> None:
    one = supervise({number: ["tells=2:harms exit=2"] for number in range(3)})
    assert one.end() == 2
    assert one.started == {0: 1, 1: 0, 2: 0}
    assert len(one.said) == 1


def test_a_fenced_process_whose_fleet_has_the_group_is_replaced(supervise: Supervise) -> None:
    one = supervise(["ready fenced tells=6:helps exit=6", "ready wait"])
    soon(lambda: one.said)
    one.restart(1)


@pytest.mark.behaviour("CONS-4")
def test_a_fenced_process_that_is_slow_to_end_is_killed_as_late_as_a_drained_one_and_never_replaced(
    supervise: Supervise,
) -> None:
    one = supervise({0: ["deaf ready fenced wait"], 1: ["ready wait"]}, Care(drain=20.0))
    soon(lambda: one.supervisor.places[0].dead_since is not None)
    one.skip(19)
    assert one.said == []
    one.skip(1)
    soon(lambda: one.said)
    one.skip(2)
    assert one.end() == 6
    assert one.started[0] == 1
    assert "has ended with SIGKILL, and another claim has its group, and a restart does not help" in one.said[1]


SILENT = "has told nothing for 301 s (limit 300 s)"
NOT_LIVE = "is not live (billing: the batch is in flight)"


@pytest.mark.parametrize(
    ("steps", "limit", "words"),
    [
        ("ready stop", 300, SILENT),
        ("ready hush", 300, SILENT),
        ("dead wait", 9, NOT_LIVE),
        ("deaf dead wait", 9, NOT_LIVE),
        ("hush", 600, "(limit 600 s)"),
    ],
)
def test_a_process_that_hangs_is_killed_and_replaced(
    supervise: Supervise, steps: str, limit: float, words: str
) -> None:
    """It is stopped, tells nothing any more, tells that it makes no progress, or has never told anything."""
    one = supervise([steps, "ready wait"])
    soon(lambda: (process := one.supervisor.places[0].process) and (process.report or steps == "hush"))
    soon(lambda: "dead" not in steps or one.supervisor.places[0].dead_since is not None)
    one.skip(limit)
    assert one.said == []
    one.skip(1)
    soon(lambda: one.said)
    one.skip(2)
    soon(lambda: len(one.said) == 2)
    killed, ended = one.said
    assert killed.endswith(": it is killed")
    assert words in killed
    assert steps == "hush" or "SIGKILL" in ended, "one that may still start is ended by the signal that asks for stacks"
    one.restart(1)


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_a_process_that_has_grown_is_drained_and_replaced(supervise: Supervise) -> None:
    limit = 150 << 20
    one = supervise([f"tells=0:helps ready grow={limit} ready wait", "ready wait"], Care(max_rss=limit))
    soon(lambda: len(one.said) == 2)
    one.restart(1)
    grown, ended = one.said
    assert "bytes of memory (limit 157,286,400): it is drained and replaced" in grown
    assert ended == "process 0 has ended with exit code 0; the next one starts in 1 s"
    harmed = supervise([f"tells=6:harms deaf=6 ready grow={limit} ready wait"], Care(max_rss=limit))
    assert harmed.end() == 6, "no restart helps"
    assert harmed.started == {0: 1}


@pytest.mark.behaviour("CONS-8")
@pytest.mark.parametrize(
    ("steps", "care", "drain"),
    [("deaf ready wait", Care(drain=10.0), 10), ("deaf slow wait", None, 150), ("deaf ready wait", None, 60)],
)
def test_what_does_not_end_in_as_long_as_its_limits_let_it_take_is_killed_and_the_exit_code_says_so(
    supervise: Supervise, steps: str, care: Care | None, drain: float
) -> None:
    one = supervise([steps], care)
    one.begin_to_end()
    assert f"within {drain} s" in one.said[0]
    one.skip(drain - 1)
    assert not one.ended.done()
    one.skip(1)
    assert one.end() == 75
    assert one.said[-2:] == [
        f"process 0 is killed since it has not ended within {drain} s: what it has not written is read again",
        "process 0 has ended with SIGKILL",
    ]
    assert one.heard[-1] == "ended with exit code 75"


@pytest.mark.behaviour("CONS-8")
@pytest.mark.parametrize("steps", ["deaf ready wait", "tells=0:helps deaf ready wait"])
def test_a_process_that_is_told_to_be_killed_counts_as_killed_however_it_ends(supervise: Supervise, steps: str) -> None:
    """Such as one that had told a good end, and hung after that; or that ended by SIGTERM at the same moment."""
    one = supervise([steps], Care(drain=10_000.0))
    one.begin_to_end()
    one.clock.now += 1
    assert one.stop() == 75
    assert one.said[1] == "process 0 is killed at the second signal: what it has not written is read again"
    assert one.heard[-1] == "ended with exit code 75"


def test_the_whole_is_ready_if_each_process_is_and_live_while_the_supervisor_runs(supervise: Supervise) -> None:
    one = supervise({0: ["ready wait"], 1: ["hush"]})
    soon(lambda: one.supervisor.places[1].process)
    soon(lambda: one.supervisor.places[0].is_ready)
    found = one.supervisor.health()
    assert (found.is_live, found.is_ready, found.codes) == (True, False, (Code.STARTING,))
    assert [finding.text for finding in found.findings] == ["process 1: starting"]
    assert one.stop() == 0
    one.skip(20)
    assert one.supervisor.health().is_live
    one.skip(20)
    assert not one.supervisor.health().is_live


def test_a_process_that_tells_nothing_is_not_ready(supervise: Supervise) -> None:
    one = supervise({0: ["ready wait"], 1: ["ready stop"]})
    soon(lambda: one.supervisor.places[1].is_ready)
    soon(one.is_ready)
    one.skip(11)
    soon(lambda: len(one.supervisor.health().findings) == 1)  # the other one reports
    found = one.supervisor.health()
    assert (found.is_live, found.is_ready, found.codes) == (True, False, (Code.POLLING_STALLED,))
    assert found.findings[0].text == "process 1 has told nothing for 11 s"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux has pidfds")
def test_a_process_that_has_ended_is_sent_no_signal_whoever_has_its_number_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process(reporting("exit=0"), Clock())
    sent: list[tuple[int, ...]] = []

    def kill(*given: int) -> None:
        sent.append(given)

    monkeypatch.setattr(os, "kill", kill)
    soon(lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
    process.send(signal.SIGTERM)  # it is not known to have ended yet
    assert process.exit_status == 0
    process.send(signal.SIGTERM)
    assert sent == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux has pidfds")
@pytest.mark.parametrize("steps", ["hush", "exit=5", "exit=0"])
def test_what_a_process_has_started_ends_with_it(supervise: Supervise, tmp_path: Path, steps: str) -> None:
    """A pool of the user's function would else be left behind by each replacement."""
    file = tmp_path / "child"
    one = supervise([f"deaf ready child={file} ready {steps}", "ready wait"])
    soon(lambda: file.exists() and file.read_text())
    child = int(file.read_text())

    def is_gone() -> bool:
        try:
            return psutil.Process(child).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    if steps == "hush":
        assert not is_gone()
        one.supervisor.stop()
        soon(lambda: one.said)
        one.clock.now += 1
        assert one.stop() == 75
    soon(is_gone)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux has pidfds")
def test_a_process_that_cant_be_looked_after_is_not_left_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def refuse(pid: int) -> int:
        begun.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        Process(reporting("ready wait"), Clock())
    with pytest.raises(ChildProcessError):
        os.waitpid(begun[0], os.WNOHANG)


def test_ends_are_seen_although_sigchld_was_ignored_and_sigterm_is_the_supervisors_to_handle() -> None:
    code = (
        "import signal, sys\n"
        "from offsetstore.monitoring.processes import Supervisor\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        f"commands = [{reporting('exit=3')}, {reporting('ready wait')}]\n"
        "supervisor = Supervisor(1, lambda number: commands.pop(0), say=lambda text: print(text, flush=True))\n"
        "code = supervisor.run()\n"
        "print(signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN)\n"
        "sys.exit(code)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ended = f"process 0 has ended with exit code 3 ({EXITED}); the next one starts in 1 s\n"
            assert [process.stdout.readline(), process.stdout.readline()] == [ended, "the process is ready\n"]
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)  # as `timeout` does
            told = process.communicate(timeout=60)[0]
            assert (told, process.returncode) == ("ending, within 60 s\nended with exit code 0\nTrue\n", 0)
        finally:
            process.kill()


def left_behind(pid: int) -> set[int]:
    """The children that have ended, and that nobody has waited for in half a second."""

    def ended() -> set[int]:
        found: set[int] = set()
        for one in psutil.Process(pid).children():
            with suppress(psutil.NoSuchProcess):
                if one.status() == psutil.STATUS_ZOMBIE:
                    found.add(one.pid)
        return found

    before = ended()
    time.sleep(0.5)
    return before & ended()


@pytest.mark.behaviour("OPS-26")
def test_a_supervisor_that_gets_orphans_waits_for_them_and_steals_no_exit_status_of_its_own(tmp_path: Path) -> None:
    """Three processes that end again and again, each with a child that outlives it: in a tree of real processes."""
    files = [tmp_path / str(number) for number in range(3)]
    commands = [reporting(f"ready child={file} exit={number + 7}") for number, file in enumerate(files)]
    script = ROOT / "tests" / "support" / "adopting.py"
    said = tmp_path / "said"
    with said.open("w") as out:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", str(script), *map(json.dumps, commands)], cwd=ROOT, stdout=out
        )
    try:
        soon(lambda: said.read_text().count(" has ended with exit code ") >= 6)
        for number in range(3):
            assert f"process {number} has ended with exit code {number + 7} ({EXITED})" in said.read_text()
        soon(lambda: not left_behind(supervisor.pid))
        children = [int(text) for text in (file.read_text() for file in files if file.exists()) if text]
        soon(lambda: not any(psutil.pid_exists(child) for child in children))
        supervisor.terminate()
        assert supervisor.wait(SECONDS) >= 0
    finally:
        supervisor.kill()
        supervisor.wait()
    assert "exit code 0, and" not in said.read_text()


@pytest.mark.behaviour("CONS-21")
def test_processes_that_fail_before_they_join_are_counted_where_no_database_knows_of_them(supervise: Supervise) -> None:
    running = supervise(["tells=70:helps", "exit=9", "ready wait"])
    with WholeMonitoring(running.supervisor, 0, host="127.0.0.1", token=None) as monitoring:

        def told() -> dict[str, float]:
            with urlopen(f"http://127.0.0.1:{monitoring.port}/metrics", timeout=60) as answer:
                families = text_string_to_metric_families(answer.read().decode())
            return {sample.name: sample.value for family in families for sample in family.samples}

        assert told()[READY] == 0
        soon(lambda: told()[f"{FAILURES}_total"] == 1)
        running.skip(1.0)
        soon(lambda: told()[f"{FAILURES}_total"] == 2)
        running.skip(2.0)
        soon(running.is_ready)
        assert running.stop() == 0
        assert told()[f"{FAILURES}_total"] == 2, "it was told to end"
