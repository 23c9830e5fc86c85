"""Keeps the processes of a consumer running: starts them, replaces any that dies, hangs or grows, and drains them."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from socket import socketpair
from types import FrameType
from typing import Any, Final, cast

from offsetstore.errors import ExitCode
from offsetstore.monitoring.health import Code, Finding, Limits, Verdict
from offsetstore.monitoring.page import Death, End, Orders, Page, Words
from offsetstore.monitoring.supervision import RunningClock
from offsetstore.offsets import OffsetRange, Ranges, TopicPartition, describe
from offsetstore.protocol.retries import doubled
from offsetstore.runtime.process import StopRequests
from offsetstore.store.heartbeat import resident_bytes

STACKS: Final = signal.SIGUSR2
"""At this signal a process writes the stacks of its threads to standard error."""

DRAIN: Final = 60.0
"""Seconds from SIGTERM to SIGKILL for a process that has told no limit of its own yet."""

_LOOK: Final = 0.1  # seconds between two looks at the processes
_LONGEST_PAUSE: Final = 60.0  # seconds until a process is started again; also how long a good one has lived
_STACKS_SECONDS: Final = 2.0  # in which a process that hangs writes its stacks, before it is killed
_STILL: Final = 30.0  # seconds without a look at the processes, after which the supervisor itself is stalled
_SILENCE: Final = 10.0  # seconds without a report after which a process is not ready
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_TRIES: Final = 5  # ends in a row for a reason that no restart mends, while none has ever worked
# They blame no record. SIGKILL is not among them, since the kernel sends it when it is out of memory (decision 0094).
_OF_OPERATORS: Final = frozenset({-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGQUIT})
_OUT_OF_MEMORY: Final = "someone killed it, or the kernel did for want of memory"
_CRASHED: Final = "your function or a library crashed in C"
_EXITED: Final = "your function or a library ended the process, as os._exit does"
_NO_OTHER: Final = ". Nothing was stored since the supervisor was started, so any record may do this."
_SUSPECT: Final = 2  # processes that died while they handled the same records
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Report:
    """What a process tells the supervisor, once a second.

    :param silence: seconds without another report after which it counts as hung.
    :param drain: seconds that it may take to end, by its own limits, once it is told to.
    :param metrics: of prometheus_client; empty if they are not served.
    """

    verdict: Verdict
    silence: float
    drain: float = DRAIN
    metrics: Sequence[Any] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """How processes are looked after; times are in seconds.

    :param drain: from SIGTERM to SIGKILL; by default the time that each process has reported.
    :param max_rss: bytes of memory; a process that uses more is drained and replaced.
    :param reaps: whether other children are waited for, too: as process 1 of a container, the supervisor gets what
        its processes have started and left behind. Only where no other code in this process waits for children.
    """

    drain: float | None = None
    max_rss: int | None = None
    reaps: bool = False
    limits: Limits = field(default_factory=Limits)


class Process:
    """One process that runs, or has run, with what it has started in its process group.

    Signals go through its pidfd, where there is one: they never reach another process that has got its number.

    ``was_ready`` says whether it was ever ready.

    :param command: two arguments are appended: the numbers of the descriptors of its reports and of its page.
    :param orders: for its page.
    """

    def __init__(self, command: Sequence[str], clock: Callable[[], float], orders: Orders | None = None) -> None:
        self.orders = orders or Orders()
        self._page = Page.make()
        try:
            # There may be no memory for it, as for a process.
            self._page.order(self.orders)
            connection = self._start(command)
        except BaseException:
            self._page.close()
            raise
        opens = getattr(os, "pidfd_open", None)  # Linux only
        try:
            self._pidfd: int | None = None if opens is None else opens(self._popen.pid)
        except OSError:
            # No more descriptors: nobody would look after this process.
            self._popen.kill()
            self._popen.wait()
            self._page.close()
            raise
        self._clock = clock
        self.began = self.heard = clock()
        self.report: Report | None = None
        self.was_ready = False
        # A thread for each: a process that is stopped while it sends must not stop the supervisor (decision 0094).
        self._reader = threading.Thread(target=self._read, args=(connection,), daemon=True)
        self._reader.start()

    def _start(self, command: Sequence[str]) -> Connection:
        ours, theirs = socketpair()
        with ours, theirs:
            descriptors = [theirs.fileno(), self._page.descriptor]
            # A group of its own: Ctrl-C at a terminal reaches the supervisor alone, and all of the group can be killed.
            self._popen = subprocess.Popen(  # noqa: S603 - our own program
                [*command, *map(str, descriptors)], pass_fds=descriptors, stdin=subprocess.DEVNULL, process_group=0
            )
            return Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_status(self) -> int | None:
        """``None`` while it runs; below 0 for a signal.

        Its last report has arrived then, and on Linux its group is killed.
        """
        if self._popen.returncode is None and self._pidfd is not None:
            # With SIGCHLD ignored, an ended process has no number any more.
            with suppress(ChildProcessError):
                # WNOWAIT: its number, and so its group's, stays its own until the group is killed.
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return None
                self._kill_group()
        status = self._popen.poll()
        if status is not None and self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
            self._reader.join(timeout=1.0)
        return status

    @property
    def is_fenced(self) -> bool:
        """Whether it has reported that another claim has its group."""
        return self.report is not None and Code.CLAIM_LOST in self.report.verdict.codes

    @property
    def words(self) -> Words:
        return self._page.words()

    def order(self, orders: Orders) -> None:
        self.orders = orders
        self._page.order(orders)

    def close(self) -> None:
        """Let go of its page, once it has ended."""
        self._page.close()

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self._pidfd is None:
            # Popen reaps the process itself, so the number is still its own.
            self._popen.send_signal(number)
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Kill it and its group at once."""
        self.send(signal.SIGKILL)
        if self._popen.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        """Kill what runs in the group. Call it before the process is waited for: until then the number is its own."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _read(self, connection: Connection) -> None:
        with suppress(EOFError, OSError), connection:
            while True:
                data = connection.recv_bytes()
                # Before the report is set, which says how old that may be.
                self.heard = self._clock()
                try:
                    report = cast("Report", pickle.loads(data))  # noqa: S301 - our own process's
                except Exception:  # noqa: BLE001, S112 - another version's; if we closed our end, each one would die of it
                    continue
                self.report = report
                self.was_ready = self.was_ready or report.verdict.is_ready


@dataclass(slots=True)
class Place:
    """One of the processes, with those that it replaces.

    :param failures: processes that have ended in a row without having lived for a minute.
    :param repeated: processes that have ended in a row for a reason that no restart mends.
    :param starts_at: when the next process is started.
    :param kill_at: when the process is killed, if it was told to end, or hangs.
    :param within: the seconds that it was given to end; ``None`` again once it was said that it is killed.
    :param is_killed: whether that was said.
    :param dead_since: since when it is not live.
    :param why: why it is not ready, for people.
    :param printed: the error with which the last process ended.
    """

    number: int
    process: Process | None = None
    failures: int = 0
    repeated: int = 0
    starts_at: float = 0.0
    kill_at: float | None = None
    within: float | None = None
    is_killed: bool = False
    dead_since: float | None = None
    why: str = "not started yet"
    printed: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether the process consumes, or waits because it was told to."""
        process = self.process
        report = process and process.report
        return report is not None and self.kill_at is None and report.verdict.is_ready


class Supervisor:
    """Runs several processes until it is told to end, by SIGTERM, Ctrl-C or `stop`.

    The second process is started once the first is ready: what is wrong with all of them is then printed once, and one
    of them founds the fleet that the others join.

    ``failures`` counts processes that failed, also before they could join, of which no database knows.

    :param command: makes the command of the process with this number.
    :param say: prints a line about what has happened.
    """

    def __init__(
        self,
        count: int,
        command: Callable[[int], Sequence[str]],
        *,
        say: Callable[[str], None],
        care: Care | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.places = [Place(number) for number in range(count)]
        self._command = command
        self._say = say
        self._care = care or Care()
        self._clock = clock or RunningClock()
        self._has_begun = self._has_worked = self._have_written = self._are_ready = False
        self._failed_with = 0  # the exit code for the last process that has ended with an error
        self._died_at: dict[TopicPartition, tuple[OffsetRange, int]] = {}  # where processes died, and how many did
        self._unrecorded: list[Death] = []
        self._signals = StopRequests(clock or time.monotonic)
        self._is_stopping = False
        self._code = 0
        self.failures = 0
        self._turned = self._clock()

    def stop(self) -> None:
        """Drain the processes, and end; another call, a second or more later, kills them. For signal handlers, too."""
        self._signals.add()

    def run(self) -> int:
        """Run the processes; return the exit code for the whole.

        It is 0 after a signal, if all processes have ended well, or that of the last failure if none was ever ready;
        that of a process for which no restart helps; and `ExitCode.DEAD` if one had to be killed.
        """
        with self._on_signal():
            try:
                while not self._turn():
                    time.sleep(_LOOK)
            finally:
                # An error of ours must leave no process behind.
                for place in self.places:
                    if place.process is not None:
                        place.process.kill()
                        place.process.close()
        self._say(f"ended with exit code {self._code:d}")
        return self._code

    def health(self) -> Verdict:
        """Judge the processes together; any thread may call this.

        The whole is ready if each process is. It is live while the supervisor turns, whatever the processes do, since
        those are replaced (decision 0094).
        """
        found: list[Finding] = []
        if self._clock() - self._turned > _STILL:
            found.append(Finding(Code.POLLING_STALLED, None, "the supervisor stands still"))
        for place in self.places:
            process, name = place.process, f"process {place.number}"
            if process is None or (report := process.report) is None or place.kill_at is not None:
                code = Code.STARTING if place.failures == 0 else Code.QUERY_ENDED
                found.append(Finding(code, None, f"{name}: {place.why}", is_live=True))
                continue
            if (silent := self._clock() - process.heard) > _SILENCE:
                text = f"{name} has told nothing for {silent:.0f} s"
                found.append(Finding(Code.POLLING_STALLED, None, text, is_live=True))
            found += [
                Finding(finding.code, finding.group, f"{name}: {finding.text}", is_live=True, is_ready=finding.is_ready)
                for finding in report.verdict.findings
            ]
        order = list(Code)
        return Verdict(tuple(sorted(found, key=lambda finding: order.index(finding.code))))

    def _turn(self) -> bool:
        """Look at each process; return whether all is over."""
        self._turned = now = self._clock()
        if self._care.reaps:
            self._reap()
        if self._signals.count and not self._is_stopping:
            # If no process was ever ready, a stop is no good end of what failed until then.
            self._code = 0 if self._has_begun else self._failed_with
            self._end_all(now, "ending")
        for place in self.places:
            if place.process is not None:
                self._look(place, place.process, now)
        if self._is_stopping:
            return all(place.process is None for place in self.places)
        if not self._are_ready and all(place.is_ready for place in self.places):
            self._are_ready = True
            self._say("the process is ready" if len(self.places) == 1 else "all processes are ready")
        for place in self.places if self._has_begun else self.places[:1]:
            if place.process is None and now >= place.starts_at:
                self._start(place, now)
        return False

    def _reap(self) -> None:
        """Wait for children that have ended and are none of our processes, whose exit statuses `Popen` reads.

        The system names one child that has ended, and the same one until it is waited for. If it is ours, this turn
        waits for it, and the next turn sees the others (decision 0104).
        """
        ours = {place.process.pid for place in self.places if place.process is not None}
        # Raised if there are no children.
        with suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid in ours:
                    return
                os.waitpid(found.si_pid, os.WNOHANG)

    def _start(self, place: Place, now: float) -> None:
        try:
            orders = Orders(self._suspects, tuple(self._unrecorded), place.printed)
            place.process = Process(self._command(place.number), self._clock, orders)
        except OSError as error:
            # No memory, or no more processes or files, which may pass.
            self.failures += 1
            self._pause(place, f"could not be started ({error.strerror})", now)
            return
        # Only now that a process has them, to record.
        self._unrecorded.clear()
        place.dead_since = place.kill_at = None
        place.why = "starting"

    def _look(self, place: Place, process: Process, now: float) -> None:
        status = process.exit_status
        self._has_begun = self._has_begun or process.was_ready
        if status is not None:
            self._bury(place, process, status, now)
            process.close()
        elif place.kill_at is not None:
            if now >= place.kill_at or self._signals.count > 1:
                self._kill(place, process)
        elif (why := self._hangs(place, process, now)) is not None:
            self._say(f"process {place.number} {why}: it is killed")
            place.why, place.kill_at = why, now + _STACKS_SECONDS
            process.send(STACKS)
        elif (rss := self._too_large(process)) is not None:
            place.why = f"uses {rss:,} bytes of memory (limit {self._care.max_rss:,})"
            self._say(f"process {place.number} {place.why}: it is drained and replaced")
            self._drain(place, process, now)

    def _kill(self, place: Place, process: Process) -> None:
        if place.within is not None:
            why = (
                "at the second signal"
                if self._signals.count > 1
                else f"since it has not ended within {place.within:g} s"
            )
            self._say(f"process {place.number} is killed {why}: what it has not written is read again")
            place.within, place.is_killed = None, True
        # Not its group: what it has started is killed once it has ended, and its trackers clean up until then.
        process.send(signal.SIGKILL)

    def _hangs(self, place: Place, process: Process, now: float) -> str | None:
        """Why a process has to be killed, ``None`` if it does not."""
        limits, report = self._care.limits, process.report
        silent = now - process.heard
        patience = limits.starting if report is None else report.silence
        if silent > patience:
            return f"has told nothing for {silent:.0f} s (limit {patience:g} s)"
        if report is None or report.verdict.is_live:
            place.dead_since = None
            return None
        place.dead_since = now if place.dead_since is None else place.dead_since
        # A fenced process is ending: it gets as long as one that was told to end.
        if now - place.dead_since < (self._patience(process) if process.is_fenced else limits.exit):
            return None
        return f"is not live ({', '.join(finding.text for finding in report.verdict.findings if not finding.is_live)})"

    def _too_large(self, process: Process) -> int | None:
        limit = self._care.max_rss
        return rss if limit is not None and (rss := resident_bytes(process.pid)) > limit else None

    def _bury(self, place: Place, process: Process, status: int, now: float) -> None:
        """Decide what follows a process's end.

        Only an end that the process has told is a verdict: an exit code alone may be any library's (decision 0094).
        """
        is_ours = place.kill_at is not None
        place.process = place.kill_at = place.within = None
        self._are_ready = False
        words = process.words
        self._has_written(words)
        end, how = words.end, _ended_by(status, is_ours=is_ours)
        # The code that it told, whatever its interpreter has made of that since.
        if end is not None:
            how = f"exit code {end.code}"
            if end.error and end.error == place.printed:
                how += f", again: {end.error.partition(chr(10))[0].removeprefix('Error: ')}"
        place.printed = "" if end is None else end.error
        # Its last report says so, though it did not get as far as to tell its end.
        if end is None and process.is_fenced:
            end, how = End(ExitCode.FENCED, "harms"), f"{how}, and another claim has its group"
        if self._is_stopping:
            self._end_with(place, end, status, how)
            return
        # It can't have recorded the deaths that it was given: the next process does.
        if not words.has_joined:
            self._unrecorded += process.orders.deaths
        step = ""
        if end is None:
            end = End(ExitCode.DEAD if is_ours else ExitCode.BUG)
            if words.handled and not is_ours and status not in _OF_OPERATORS:
                how, step = self._note_death(place, words, how)
        self._failed_with = end.code
        self.failures += end.code != 0
        repeats = end.restart == "repeats"
        # Once it has joined, being ready is not enough: a process is ready while it joins (decision 0094).
        has_worked = self._works(process, now) if words.has_joined else self._has_begun
        place.repeated = place.repeated + 1 if repeats and not has_worked else 0
        if end.restart == "harms" or place.repeated >= _TRIES:
            why = f"{place.repeated} times in a row, " if place.repeated else ""
            self._code = end.code
            self._end_all(now, f"process {place.number} has ended with {how}, {why}and a restart does not help: ending")
            return
        place.failures = 0 if now - process.began >= _LONGEST_PAUSE else place.failures
        self._pause(place, f"has ended with {how}", now, step)

    def _end_with(self, place: Place, end: End | None, status: int, how: str) -> None:
        """Take the exit code of a process that ended while all are ending, in good order or not."""
        # A process that SIGTERM ended before it could handle the signal has polled nothing.
        bare = 0 if status in {0, -signal.SIGTERM} else ExitCode.DEAD if status < 0 else ExitCode.BUG
        code = bare if end is None else end.code
        # It may have ended at the moment in which it was killed; but it was said that it is.
        if code == 0 and place.is_killed:
            code = ExitCode.DEAD
        if code != 0 and self._code == 0:
            self._code = code
            self._say(f"process {place.number} has ended with {how}")

    def _works(self, process: Process, now: float) -> bool:
        """Whether this process, or any other, has ever written, or been ready for long: at first each one is ready."""
        for member in (process, *(place.process for place in self.places)):
            if member is not None and (
                member.words.has_written or (member.was_ready and now - member.began >= _LONGEST_PAUSE)
            ):
                self._has_worked = True
        return self._has_worked

    def _note_death(self, place: Place, words: Words, how: str) -> tuple[str, str]:
        """Record what a process was handling when it died; return how it ended, and how to go on."""
        count = 1
        for tp, range_ in words.handled.items():
            before, times = self._died_at.get(tp, (range_, 0))
            begin, until = max(before.from_, range_.from_), min(before.until, range_.until)
            # Only what all these deaths have in common is suspect (decision 0094).
            self._died_at[tp] = (OffsetRange(begin, until), times + 1) if begin < until else (range_, 1)
            count = max(count, self._died_at[tp][1])
        how, step = f"{how} while it handled {describe(words.handled)}", ""
        if count >= _SUSPECT:
            how += f", as did {count - 1} before it"
            step = ". These records are handled one by one from now on."
            if count >= _NAMED and words.skip:
                step = f"{'.' if self._has_written(words) else _NO_OTHER}{words.skip}"
            # All are told at once: Kafka gives the partition to a process that runs, before a new one starts.
            for other in self.places:
                if other.process is not None:
                    other.process.order(replace(other.process.orders, suspects=self._suspects))
        self._unrecorded.append(Death(f"process {place.number} has ended with {how}{step}", words.handled))
        return how, step

    def _has_written(self, words: Words) -> bool:
        """Whether any process has ever stored records: then not every record ends them."""
        others = [place.process.words for place in self.places if place.process is not None]
        self._have_written = self._have_written or any(member.has_written for member in (words, *others))
        return self._have_written

    @property
    def _suspects(self) -> Ranges:
        return {tp: range_ for tp, (range_, times) in self._died_at.items() if times >= _SUSPECT}

    def _pause(self, place: Place, why: str, now: float, step: str = "") -> None:
        pause = doubled(1.0, place.failures, _LONGEST_PAUSE)
        place.failures += 1
        place.starts_at, place.why = now + pause, why
        self._say(f"process {place.number} {why}; the next one starts in {pause:g} s{step}")

    def _end_all(self, now: float, why: str) -> None:
        self._is_stopping = True
        running = [(place, place.process) for place in self.places if place.process is not None]
        within = max((self._patience(process) for _, process in running), default=0.0)
        self._say(f"{why}, within {within:g} s" if running else why)
        for place, process in running:
            place.why = "ending"
            self._drain(place, process, now)

    def _drain(self, place: Place, process: Process, now: float) -> None:
        place.within = self._patience(process)
        place.kill_at = now + place.within
        process.send(signal.SIGTERM)

    def _patience(self, process: Process) -> float:
        """Seconds that a process has to end, once it is told to."""
        if self._care.drain is not None:
            return self._care.drain
        return DRAIN if process.report is None else process.report.drain

    @contextmanager
    def _on_signal(self) -> Generator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - Python's signature
            self.stop()

        before: dict[int, Any] = {number: signal.signal(number, handle) for number in _SIGNALS}
        # With SIGCHLD ignored, a process's number may be another's as soon as it ends.
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _ended_by(status: int, *, is_ours: bool) -> str:
    """How a process ended that has told nothing about its end.

    :param status: below 0 for a signal.
    :param is_ours: whether the supervisor has ended it.
    """
    how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
    if is_ours or status in _OF_OPERATORS:
        return how
    return f"{how} ({_EXITED if status >= 0 else _OUT_OF_MEMORY if status == -signal.SIGKILL else _CRASHED})"
