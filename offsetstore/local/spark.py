"""Spark on this machine, with what it needs to read Kafka: for the demo, tests, and ``offsetstore local submit``.

``python -m offsetstore.local.spark CONF``, with a session's configuration as JSON, starts Spark, lets it do a little of
what a job does, and ends: `offsetstore.local.java` keeps the classes that it has loaded.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, cast

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from offsetstore.errors import ConfigurationError, MissingDependency
from offsetstore.local import Notice, cache_directory, stack
from offsetstore.local.jars import (
    POSTGRES_JDBC,
    SPARK_VERSION,
    earlier_connectors,
    jars,
    pyspark_directories,
    spark_kafka_connector,
)
from offsetstore.local.java import ARCHIVE_SECONDS, QUICK, archive_of, find_java, in_one, reading
from offsetstore.local.servers import LOOPBACK
from offsetstore.local.stack import ServiceStatus

_EXIT_SECONDS = 20
_ARCHIVE_SECONDS = 120
_STREAM_SECONDS = 60
_LOADED = (
    "org.apache.kafka.clients.admin.KafkaAdminClient",
    "org.apache.kafka.clients.consumer.KafkaConsumer",
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
)
_QUIET = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.libraries.name = org
logger.libraries.level = error
# If this level were not the root's, Spark would say on stderr that it makes them equal.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = warn
"""


def spark_conf(*, notice: Notice | None = None) -> dict[str, str]:
    """Return the configuration of a small, quiet Spark with the Kafka connector and PostgreSQL's JDBC driver.

    For `local_session`, and for a job's own process (as ``--conf``, or on its session's builder).

    :param notice: gets the progress of the jars' download, if there is one.
    :raises MissingDependency: no Java, or the jars can't be downloaded.
    """
    quiet = cache_directory() / "spark-log4j2.properties"
    class_path = [*_connector(version("pyspark"), notice), *jars(POSTGRES_JDBC, notice=notice)]
    if not quiet.exists() or quiet.read_text() != _QUIET:
        quiet.write_text(_QUIET)
    return {
        "spark.jars": ",".join(str(jar) for jar in class_path),
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={quiet}"',
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _connector(spark_version: str, notice: Notice | None) -> tuple[Path, ...]:
    """Spark's Kafka connector, or the nearest earlier one of the same minor version that can be downloaded."""
    try:
        return jars(spark_kafka_connector(spark_version), instead=earlier_connectors(spark_version), notice=notice)
    except MissingDependency as error:
        if spark_version != SPARK_VERSION:
            step = f"If it is not the network: `pip install 'pyspark=={SPARK_VERSION}'`. {error.next_step}"
            raise MissingDependency(error.what, found=error.found, expected=error.expected, next_step=step) from None
        raise


def quick_conf(conf: Mapping[str, str], *, notice: Notice | None = None) -> dict[str, str]:
    """Return settings on top of a `spark_conf` for a Spark that starts quickly, and runs for minutes.

    The first call on a machine takes half a minute: see `class_archive`.

    :param notice: told of that.
    """
    quick = {
        "spark.driver.extraJavaOptions": f"{conf['spark.driver.extraJavaOptions']} {QUICK}",
        # On the class path from the start, instead of copied to executors in the same process.
        "spark.driver.extraClassPath": conf["spark.jars"].replace(",", os.pathsep),
        "spark.jars": "",
        "spark.python.daemon.module": "offsetstore.local.workers",
    }
    if archive := class_archive({**conf, **quick}, notice=notice):
        quick["spark.driver.extraJavaOptions"] += f" {in_one(reading(archive))}"
    return quick


def class_archive(conf: Mapping[str, str], *, notice: Notice | None = None) -> Path | None:
    """Return the archive of Spark's classes, as `archive_of` does.

    :param conf: the whole configuration of a session whose classes are to be kept.
    """
    parts = [
        *(f"{place} {(place / 'jars').stat().st_mtime_ns}" for place in pyspark_directories()),
        *(f"{name}={value}" for name, value in sorted(conf.items()) if name.endswith(("ClassPath", "Options"))),
    ]

    def write(java: tuple[str, ...]) -> None:
        options = "spark.driver.extraJavaOptions"
        whole = {**conf, options: f"{conf[options]} {in_one(java)}"}
        subprocess.run(  # noqa: S603 - our own command line
            [sys.executable, "-m", "offsetstore.local.spark", json.dumps(whole)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=ARCHIVE_SECONDS,
        )  # fmt: skip

    return archive_of("Spark", parts, write, notice=notice)


def spark_environment() -> dict[str, str]:
    """Return the environment variables that a process with a local Spark needs.

    :raises MissingDependency: no Java that is new enough.
    """
    return {
        # Spark's launcher looks at JAVA_HOME before the PATH, so an old Java there would win over the one we found.
        "JAVA_HOME": str(find_java().home),
        # Otherwise the workers run the `python3` on the PATH.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": LOOPBACK,
    }


def local_session(
    app_name: str,
    *,
    master: str = "local[2]",
    extra_conf: Mapping[str, str] | None = None,
    notice: Notice | None = None,
) -> SparkSession:
    """Start a SparkSession, or return this process's.

    :param extra_conf: on top of `spark_conf`.
    :raises MissingDependency: no Java, or the jars can't be downloaded.
    """
    os.environ.update(spark_environment())
    builder: Any = SparkSession.builder
    builder = builder.appName(app_name).master(master)
    for name, value in {**spark_conf(notice=notice), **(extra_conf or {})}.items():
        builder = builder.config(name, value)
    return cast("SparkSession", builder.getOrCreate())


def stop_session(session: SparkSession, *, timeout: float = _EXIT_SECONDS) -> None:
    """Stop Spark and its Java process, which would otherwise stay until this process ends.

    :param timeout: seconds to wait for the Java process to end.
    """
    session.stop()
    context: Any = SparkContext
    gateway, context._gateway, context._jvm = context._gateway, None, None  # noqa: SLF001 - no public way
    if gateway is None:
        return
    gateway.shutdown()
    if (process := getattr(gateway, "proc", None)) is not None:
        process.stdin.close()  # the Java process then ends itself
        process.wait(timeout)


def submit(job: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the job.

    pyspark itself calls spark-submit when the job makes its session, with the options of PYSPARK_SUBMIT_ARGS. So Java
    is the job's child, not its parent as with spark-submit on the command line: signals reach the job, the exit code is
    the job's, and Java ends when the job does.

    :param job: the path of a Python file.
    :raises ConfigurationError: the local stack is not running.
    :raises MissingDependency: no Java, or the jars can't be downloaded.
    """
    environment = job_environment(stack.status(), os.environ)
    os.execve(sys.executable, [sys.executable, job, *arguments], environment)  # noqa: S606 - the user's own job


def job_environment(services: Sequence[ServiceStatus], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a job's process.

    OFFSETSTORE_URL, OFFSETSTORE_BOOTSTRAP_SERVERS and PYTHONUNBUFFERED stay as they are where the user has set them,
    and the options of the user's PYSPARK_SUBMIT_ARGS come after ours.

    :param services: what `offsetstore.local.stack.status` returned.
    :param environment: the user's.
    :raises ConfigurationError: a server of the stack is not running.
    :raises MissingDependency: no Java, or the jars can't be downloaded.
    """
    stopped = [service.name for service in services if not service.running]
    if stopped or not services:
        raise ConfigurationError(
            "the local stack is not running",
            found=", ".join(f"{name}: stopped" for name in stopped) or "no local stack",
            expected="a running PostgreSQL and Kafka",
            next_step="Start it: `offsetstore local up`.",
        )
    addresses = {service.name: service.address for service in services}
    options = [word for name, value in spark_conf().items() for word in ("--conf", f"{name}={value}")]
    return {
        "OFFSETSTORE_URL": addresses["PostgreSQL"],
        "OFFSETSTORE_BOOTSTRAP_SERVERS": addresses["Kafka"],
        "PYTHONUNBUFFERED": "1",  # as under spark-submit
        **environment,
        **spark_environment(),
        "SPARK_HOME": str(pyspark_directories()[0]),  # another Spark could not load our jars
        "PYSPARK_SUBMIT_ARGS": f"{shlex.join(options)} {environment.get('PYSPARK_SUBMIT_ARGS', 'pyspark-shell')}",
    }


def main() -> None:
    """Run a stream of some rows through Python and back."""
    session: Any = local_session("offsetstore-warm-up", extra_conf=json.loads(sys.argv[1]))

    def batch(frame: DataFrame, number: int) -> None:
        frame.repartition(2).mapInArrow(lambda rows: rows, frame.schema).toArrow()
        frame.rdd.map(tuple).collect()
        if number:
            query.stop()

    try:
        java = session._jvm  # noqa: SLF001 - no public way
        loader = java.java.lang.Thread.currentThread().getContextClassLoader()
        for name in _LOADED:
            java.java.lang.Class.forName(name, True, loader)  # noqa: FBT003 - Java's order
        rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", "100").load()
        with tempfile.TemporaryDirectory() as checkpoint:
            query = rows.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint).start()
            query.awaitTermination(_STREAM_SECONDS)
            query.stop()
    finally:
        stop_session(session, timeout=_ARCHIVE_SECONDS)  # Java writes the archive when it ends


if __name__ == "__main__":
    main()
