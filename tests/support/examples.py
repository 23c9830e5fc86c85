"""The files of ``examples/``: jobs are run in the test's process, on the Spark of the test run.

What does without Spark is run as a user runs it: a process of its own, the built wheel, another directory.
"""

from __future__ import annotations

import os
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from unittest.mock import patch

from sqlalchemy import make_url

from offsetstore.kafka import admin
from offsetstore.local.java import QUICK
from offsetstore.local.spark import quick_conf, spark_conf, spark_environment
from tests.support.background import in_background
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SECONDS = 180
"""No example takes as long as this."""

# Python runs it before the example: from where does this process have offsetstore, and may it have a Kafka client?
_SITECUSTOMIZE = """\
import importlib.util, os, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["EXAMPLES_BLOCKED"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
with open(os.environ["EXAMPLES_ORIGINS"], "a") as origins:
    print(importlib.util.find_spec("offsetstore").origin, file=origins)
"""


def install(wheel: Path, directory: Path) -> Path:
    """Install the wheel into a directory for PYTHONPATH, without asking any registry."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--target", directory, wheel], check=True, timeout=SECONDS)
    (directory / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")
    return directory


def spark_options() -> list[str]:
    """What ``spark-submit`` is told in place of ``--packages``: where the jars are, and how to start quickly."""
    conf = spark_conf()
    conf |= quick_conf(conf) | {"spark.master": "local[2]"}
    return [part for name, value in conf.items() if value for part in ("--conf", f"{name}={value}")]


def environment_of_spark() -> dict[str, str]:
    """The variables for a job that is started by ``python``, with the same options."""
    options = shlex.join([*spark_options(), "pyspark-shell"])
    return {**spark_environment(), "PYSPARK_SUBMIT_ARGS": options, "SPARK_LAUNCHER_OPTS": QUICK}


@dataclass(frozen=True)
class Examples:
    """Runs examples in ``directory``, with the addresses of a test's own servers.

    :param wheel: what `install` returned, for those that are processes of their own.
    :param blocked: packages that these can't import.
    :param more: further environment variables.
    """

    directory: Path
    url: str = "postgresql:///none"
    kafka_servers: str = ""
    wheel: Path | None = None
    blocked: tuple[str, ...] = ()
    more: Mapping[str, str] = field(default_factory=dict[str, str])

    def without(self, *packages: str) -> Examples:
        """The same, where some packages are not installed."""
        return replace(self, blocked=packages)

    def with_environment(self, **more: str) -> Examples:
        """The same with further environment variables."""
        return replace(self, more={**self.more, **more})

    @property
    def checkpoints(self) -> Path:
        """Where the examples keep theirs."""
        return self.directory / "checkpoints"

    def produce(self, topic: str, *records: tuple[str, str], partition: int = 0, timestamp_ms: int = 0) -> None:
        """Append (key, value) to one partition of the topic."""
        made = [
            admin.NewRecord(value.encode(), key=key.encode(), partition=partition, timestamp_ms=timestamp_ms)
            for key, value in records
        ]
        admin.produce(self.kafka_servers, topic, made)

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, by ``python examples/NAME``."""
        return self.python(EXAMPLES / name, *arguments)

    def run_here(self, name: str, *arguments: str) -> None:
        """Run a job to its end in this process, whose Spark it gets."""
        with (
            patch.dict(os.environ, self._addresses()),
            patch.object(sys, "argv", [name, *arguments]),
        ):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    def stop_here(self, name: str, when: Callable[[], object]) -> None:
        """Run a job in this process until the condition holds, and send it SIGTERM, which it must heed."""

        def stop() -> None:
            wait_until(lambda: ended.is_set() or when(), timeout=SECONDS)
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

        ended = Event()
        stopping = in_background(stop)
        try:
            self.run_here(name)
        finally:
            ended.set()
            stopping.result(timeout=60)

    def python(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run Python where the examples run, to its end; it must be a good one."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr[-4000:]}"
        # Each process had offsetstore from the wheel, none from the checkout.
        assert self.wheel is not None
        origins = set(self._origins.read_text(encoding="utf-8").splitlines())
        assert origins == {str(self.wheel / "offsetstore" / "__init__.py")}
        return done

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.wheel),
            "PYTHONDONTWRITEBYTECODE": "1",  # beside the examples, which are in the checkout
            "EXAMPLES_BLOCKED": ",".join(self.blocked),
            "EXAMPLES_ORIGINS": str(self._origins),
            **self._addresses(),
        }

    def _addresses(self) -> dict[str, str]:
        url = make_url(self.url)
        return {
            "OFFSETSTORE_BOOTSTRAP_SERVERS": self.kafka_servers,
            "OFFSETSTORE_URL": self.url,
            "DATABASE": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}?user={url.username}",
            "DATABASE_URL": url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False),
            "CHECKPOINTS": str(self.checkpoints),
            **self.more,
        }

    @property
    def _origins(self) -> Path:
        return self.directory / "origins"
