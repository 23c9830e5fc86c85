"""A job on the local stack: ``offsetstore local submit``.

pyspark itself calls spark-submit when the job makes its session, with the options of PYSPARK_SUBMIT_ARGS. So Java is
the job's child, not its parent as with spark-submit on the command line: signals reach the job, the exit code is the
job's, and Java ends when the job does.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from offsetstore.errors import ConfigurationError
from offsetstore.local import stack
from offsetstore.local.spark.jars import pyspark_directories
from offsetstore.local.spark.launch import spark_conf, spark_environment
from offsetstore.local.stack import ServiceStatus


def submit(job: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the job.

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
