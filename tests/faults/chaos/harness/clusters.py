"""Job processes whose executors are processes of their own: to be killed, or to be frozen and overtaken by a twin."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, Literal

from offsetstore.local.java import QUICK, find_java
from offsetstore.local.servers import LOOPBACK, Watchdog, answers, end_process, free_port
from offsetstore.local.spark import spark_environment
from tests.faults.chaos.harness.job import SPARK_VARIABLE
from tests.support.cluster import cluster_conf, spark_home
from tests.support.waiting import PATIENCE, wait_until

Kind = Literal["local", "cluster", "speculation"]
"""``cluster``: two executors of one core (``local-cluster``). ``speculation``: two standalone workers, which seem to be
two hosts, since Spark puts no twin on the host of its original."""

HOSTS: Final = (LOOPBACK, "127.0.0.2")

_SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.speculation.task.duration.threshold": "3s",
    "spark.speculation.efficiency.enabled": "false",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    # After which Spark takes a frozen executor for a dead one, and kills it.
    "spark.network.timeout": f"{40 * PATIENCE:.0f}s",
    "spark.network.timeoutInterval": "10s",
    # After which a twin that wants its blocks, of a batch that is persisted, computes them anew.
    "spark.shuffle.io.connectionTimeout": f"{4 * PATIENCE:.0f}s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
    "spark.executor.heartbeatInterval": "5s",
}


class Clusters:
    """What job processes of each kind need, made where one is first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self._standalone: _Standalone | None = None

    def environment(self, kind: Kind) -> Mapping[str, str]:
        if kind == "local":
            return {}
        self._directory.mkdir(parents=True, exist_ok=True)
        directory = Path(mkdtemp(prefix=f"{kind}-", dir=self._directory))  # an earlier run has left its own
        home = spark_home(directory)
        conf = cluster_conf(directory)
        master = "local-cluster[2,1,900]"
        if kind == "speculation":
            if self._standalone is None:
                self._standalone = _Standalone(directory, home)
            master, conf = self._standalone.url, conf | _SPECULATION
        return {SPARK_VARIABLE: json.dumps({"master": master, "conf": conf}), "SPARK_HOME": str(home)}

    def close(self) -> None:
        if self._standalone is not None:
            self._standalone.close()
            self._standalone = None


class _Standalone:
    """A master and two workers, of Spark's own jars."""

    def __init__(self, directory: Path, home: Path) -> None:
        self._directory, self._home, self._closing = directory, home, ExitStack()
        port = free_port()
        self.url = f"spark://{LOOPBACK}:{port}"
        with ExitStack() as failing:
            failing.callback(self.close)
            self._start("master.Master", LOOPBACK, "--port", str(port))
            wait_until(lambda: answers(port), timeout=90)
            for host in HOSTS:
                given = ["--cores", "1", "--memory", "900m", "--work-dir", str(directory / f"work-{host}"), self.url]
                self._start("worker.Worker", host, *given)
            failing.pop_all()

    def _start(self, name: str, host: str, *arguments: str) -> None:
        log = self._directory / f"{name}-{host}.log"
        options = [*QUICK.split(), "-Xmx256m", "-cp", str(self._home / "jars" / "*")]
        program = [f"org.apache.spark.deploy.{name}", "--host", host, "--webui-port", "0", *arguments]
        environment = {**os.environ, **spark_environment(), "SPARK_HOME": str(self._home), "SPARK_LOCAL_IP": host}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(find_java().home / "bin" / "java"), *options, *program],
                env={**environment, "SPARK_SCALA_VERSION": "2.13"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._closing.callback(Watchdog(process.pid, how="TERM", temporary=None).leave)
        self._closing.callback(lambda: end_process(process.pid, seconds=20))

    def close(self) -> None:
        self._closing.close()
