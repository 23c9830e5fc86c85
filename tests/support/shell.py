"""A shell into which the blocks of a page are pasted, one after the other, as a reader does it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from offsetstore.local.spark import quick_conf, spark_conf
from offsetstore.testing.job_process import JobProcess
from tests.support.waiting import PATIENCE, wait_until

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 180  # a job starts a Spark of its own
OTHER_BIN: Final = os.environ.get("OFFSETSTORE_TEST_BIN")
"""The directory of another Python's programs, such as a new environment's with the wheel: pages then run with them."""

# ``offsetstore``, whose stack is a directory of this test's, with the jars and class archives that are there.
_COMMAND: Final = """\
import os, pathlib
from offsetstore.cli.main import main
from offsetstore.local import stack
stack._home = lambda: pathlib.Path(os.environ["STACK"])
main()
"""
_DONE: Final = "-- pasted:"  # no program prints it


class Shell:
    """One bash: variables, background jobs and the working directory stay from block to block.

    It ends if a command fails. A context, at whose end all that it has started is killed.

    :param directory: its working directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._programs = directory / ".programs"
        self._programs.mkdir()
        programs = Path(OTHER_BIN or Path(sys.executable).parent)
        (command := self._programs / "offsetstore").write_text(f"#!{programs}/python\n{_COMMAND}", encoding="utf-8")
        command.chmod(0o755)
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-e"],
            cwd=directory,
            env=_environment(directory, os.pathsep.join([str(self._programs), str(programs), os.environ["PATH"]])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)  # bash, and its background jobs
        self._bash.communicate()

    @property
    def url(self) -> str:
        """Of the database, once the shell has it."""
        return self._environment()["OFFSETSTORE_URL"]

    def paste(self, text: str) -> str:
        """Run it to its end, which must be a good one, and return what it and its background jobs have printed."""
        block = self._programs / "block"
        block.write_text(text, encoding="utf-8")
        stdin, stdout = self._bash.stdin, self._bash.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f". {shlex.quote(str(block))} < /dev/null\necho '{_DONE}'\n")
        stdin.flush()
        late = threading.Timer(SECONDS * PATIENCE, os.killpg, (self._bash.pid, signal.SIGKILL))
        late.start()
        printed: list[str] = []
        try:
            for line in stdout:
                printed.append(line.removesuffix(f"{_DONE}\n"))
                if line.endswith(f"{_DONE}\n"):  # at the end of a line that a program has not ended
                    return "".join(printed)
        finally:
            late.cancel()
        logs = [f"{log.name}:\n{log.read_text(encoding='utf-8')[-2000:]}" for log in self.directory.rglob("*.log")]
        raise AssertionError("\n".join(["a command has failed, or takes too long", text, *printed, *logs]))

    def paste_and_interrupt(self, block: str, when: Callable[[JobProcess], bool]) -> int:
        """Run a block whose last command runs until Ctrl-C, which follows the condition; return its exit code."""
        *lines, last = block.splitlines()
        self.paste("\n".join(lines))
        command, *arguments = shlex.split(last)
        log = self.directory / f"{arguments[0]}.log"
        script, environment = self._programs / command, self._environment()
        with JobProcess([script, *arguments], log, environment=environment, cwd=self.directory) as job:
            wait_until(lambda: when(job), timeout=SECONDS)
            os.killpg(job.pid, signal.SIGINT)  # as a terminal does it
            return end_of(job)

    def _environment(self) -> dict[str, str]:
        variables = self._programs / "variables"
        self.paste(f"env -0 > {shlex.quote(str(variables))}")
        text = variables.read_text(encoding="utf-8")
        return dict(variable.split("=", 1) for variable in text.split("\0") if variable)


def end_of(job: JobProcess) -> int:
    """Wait until it has ended, and return its exit status."""
    wait_until(lambda: job.exit_status is not None, timeout=SECONDS)
    job.finish_reading()
    assert job.exit_status is not None
    return job.exit_status


def _environment(directory: Path, path: str) -> dict[str, str]:
    dropped = {"OFFSETSTORE_URL", "OFFSETSTORE_BOOTSTRAP_SERVERS", "PYTHONPATH"}
    environment = {
        **{name: value for name, value in os.environ.items() if name not in dropped},
        "PATH": path,
        "CHECKPOINTS": str(directory / ".checkpoints"),
        "STACK": str(directory / ".stack"),
    }
    if OTHER_BIN is None:
        quick = [word for name, value in quick_conf(spark_conf()).items() for word in ("--conf", f"{name}={value}")]
        environment |= {"PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": f"{shlex.join(quick)} pyspark-shell"}
    return environment
