"""``offsetstore consume``: a consumer's processes, and their supervisor."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Final

import click

from offsetstore.cli import options
from offsetstore.cli.consume_process import Told
from offsetstore.cli.output import log_prefix
from offsetstore.lazy import find
from offsetstore.monitoring.processes import Care, Supervisor
from offsetstore.monitoring.supervision import RunningClock, Supervision
from offsetstore.monitoring.web import url_host
from offsetstore.text import visible

# Not on macOS before Python 3.13, where no container's process 1 runs (decision 0104).
_CAN_REAP: Final = hasattr(os, "waitid")
_SIZE: Final = re.compile(r"(\d+)([KMG])?")
_UNITS: Final = {"K": 10, "M": 20, "G": 30}


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.upper())
    if found is None or not int(found[1]):
        raise ValueError(f"{text!r} is not a number of bytes such as 800M or 2G.")
    return int(found[1]) << _UNITS.get(found[2], 0)


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, metavar="COUNT", help="How many.")
@click.option(
    "--static",
    is_flag=True,
    help="Give each process a fixed group.instance.id, HOST-NUMBER: one that is replaced keeps its partitions.",
)
@click.option(
    "--max-rss",
    callback=options.parsed(_size),
    metavar="BYTES",
    help="Replace a process that uses more memory, such as 800M or 2G. Only on Linux.",
)
@click.option(
    "--drain",
    type=options.Seconds(0, 86_400),
    show_default="the consumer's drain=, and 30 s",
    metavar="SECONDS",
    help="From SIGTERM until a process that has not ended is killed.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), help="Serve /livez, /readyz and /metrics here; 0 takes any free port."
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on.")
@click.option(
    "--token",
    envvar="OFFSETSTORE_HEALTH_TOKEN",
    show_envvar=True,
    metavar="TOKEN",
    help="Clients that send it get the probes' reasons; better in the variable.",
)
def consume(
    *,
    function: str,
    processes: int,
    static: bool,
    max_rss: int | None,
    drain: float | None,
    port: int | None,
    host: str,
    token: str | None,
) -> None:
    """Run a consumer's processes, and keep them running.

    FUNCTION takes no arguments and returns an offsetstore.consumer.Consumer; each process imports MODULE, from the
    current directory or where Python finds it, and calls it. The processes share the topics' partitions.

    A process that dies is replaced, after 1 s, then 2 s, up to a minute. So is one that hangs: it does not poll Kafka
    for max.poll.interval.ms, or writes one flush for 600 s. SIGTERM and Ctrl-C have all processes write what they
    polled, and end; a second one kills them.

    The exit code is 0 after a signal, or that of the last failure if no process was ever ready. It is that of a process
    that ends with an error then, such as 5 if a flush has not ended within the consumer's drain=, and 75 if one had to
    be killed. If a process reports that it ends with 1, 2 or 6, all end, with this code: a restart would not help.
    After 6 it goes on if another process of the same fleet has taken the group over. A process that ends otherwise is
    replaced. If none has worked yet, and five in a row end for what only someone can correct, such as a wrong password,
    missing tables or a module that can't be imported, all end with that code. A record that kills its process is named.
    See the page 'Run a consumer' of the documentation.

    \b
    Examples, with OFFSETSTORE_URL set:
      offsetstore consume billing_app:consumer --processes 3
      offsetstore consume billing_app:consumer --port 9464 --max-rss 2G
    """  # noqa: D301 - \b is click's mark, and this is how click wants it

    def command(number: int) -> list[str]:
        told = Told(function, number, processes, is_static=static, has_metrics=port is not None)
        # -P: what is in the current directory must not take the place of offsetstore's own packages.
        return [sys.executable, "-P", "-m", "offsetstore.cli.consume_process", json.dumps(asdict(told))]

    supervisor = Supervisor(processes, command, say=_say, care=Care(drain=drain, max_rss=max_rss, reaps=_CAN_REAP))
    with ExitStack() as closing:
        if port is None:
            # It tells systemd how the processes are, as the monitoring of a port does.
            supervision = Supervision(supervisor.health, RunningClock(), None)
            closing.callback(supervision.close)
        else:
            # Imported here: without --port, the extra monitoring need not be installed.
            what = "`offsetstore consume --port`"
            serving = find("offsetstore.monitoring.whole", "WholeMonitoring", what=what, extra="monitoring")
            monitoring = closing.enter_context(serving(supervisor, port, host=host, token=token))
            _say(f"probes and metrics are at http://{url_host(host)}:{monitoring.port}")
        _say(f"{processes} process{'' if processes == 1 else 'es'} of {function}; Ctrl-C or SIGTERM ends all")
        code = supervisor.run()
    raise click.exceptions.Exit(code)


def _say(text: str) -> None:
    # A terminal that was closed ends no process.
    with suppress(OSError):
        click.echo(f"{log_prefix()}{visible(text)}", err=True)
