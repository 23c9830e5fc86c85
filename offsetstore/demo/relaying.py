"""``offsetstore relay`` beside the job: it brings the days' totals to Kafka, and is killed on the way, too."""

from __future__ import annotations

import random
import time
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self

from offsetstore.demo.job_settings import DemoFailed, JobSettings
from offsetstore.demo.supervise import FAR_SECONDS, Say, command, end_well
from offsetstore.demo.tables import connected
from offsetstore.protocol import failpoints
from offsetstore.testing.job_process import JobProcess

POINTS: Final = {
    "outbox_recorded": "before Kafka commits its batch",
    "outbox_produced": "after its batch is produced",
    "outbox_in_transaction": "before Kafka's COMMIT",
    "outbox_sent": "after Kafka's COMMIT",
}
_BATCHES: Final = (2, 3)
_EMPTY_SECONDS: Final = 60.0


class KilledRelay:
    """Runs while the block lasts; `finish` first waits until the outbox is empty.

    :param logs: a directory for the output of its runs.
    :param say: gets a sentence about each kill.
    """

    def __init__(self, settings: JobSettings, seed: int, logs: Path, say: Say) -> None:
        dice = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._plan = [f"{point}:{dice.randint(*_BATCHES)}:hang" for point in dice.sample([*POINTS], len(POINTS))]
        self._settings = settings
        self._logs = logs
        self._say = say
        self._error: Exception | None = None
        self._ended = Event()
        self._thread = Thread(target=self._run, name="demo-relay", daemon=True)
        self.kills: list[str] = []
        """The points at which it was killed."""

    def finish(self) -> None:
        """Wait until the outbox is empty, and end the relay.

        :raises DemoFailed: it is not empty in time, or the relay has ended by itself.
        """
        deadline = time.monotonic() + _EMPTY_SECONDS
        while self._thread.is_alive() and (left := self._left()):
            if time.monotonic() > deadline:
                raise DemoFailed(f"{left:,} rows are still in the outbox", next_step=f"See {self._logs}.")
            time.sleep(FAR_SECONDS)
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _left(self) -> int:
        with connected(self._settings.url) as connection:
            return connection.exec_driver_sql("SELECT count(*) FROM outbox").scalar_one()

    def _run(self) -> None:
        try:
            while self._run_once():
                pass
        except Exception as error:  # noqa: BLE001 - raised by `finish`
            self._error = error

    def _run_once(self) -> bool:
        """Start the relay; return whether it was killed, and has to be started again."""
        number = len(self.kills)
        arguments = ["relay", "--bootstrap-servers", self._settings.bootstrap_servers, "--schema", "public"]
        environment: dict[str, Any] = self._settings.environment()
        if number < len(self._plan):
            environment[failpoints.VARIABLE] = self._plan[number]
        with JobProcess(
            command(*arguments), self._logs / f"relay-{number + 1}.log", environment=environment
        ) as process:
            while not self._ended.is_set():
                process.wait_for_more(0, FAR_SECONDS)
                if process.exit_status is not None:
                    raise DemoFailed("the relay has ended by itself", found=process.end_of_log)
                if process.events:
                    point = process.events[0].what["point"]
                    process.kill()
                    self.kills.append(point)
                    self._say(f"SIGKILL {number + 1} of the relay {POINTS[point]} (pid {process.pid})")
                    return True
            end_well(process)
        return False
