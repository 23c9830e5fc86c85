"""``offsetstore health``: whether a job is well, by its own word or by the database's."""

from __future__ import annotations

import json
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from typing import Any, Final, NoReturn, cast

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, ask_options
from offsetstore.cli.output import document, fail_unknown
from offsetstore.errors import ExitCode
from offsetstore.operations.group_status import LagLimit, judge_group
from offsetstore.text import command, short

_SECONDS: Final = 10.0  # for the process's answer
_PROBLEMS: Final = {
    "no-live-job": "no live job owns it",
    "starts-fail": "its job fails soon after each start: `offsetstore errors` tells with what",
    "no-live-relay": "rows wait in the outbox, and no relay sends them: `offsetstore status` tells more",
    "lag-too-high": "it is too far behind",
    "lag-unknown": "Kafka has no log of a topic that it has offsets of, or one that ends before them",
    "partition-stands": "partitions have stood for 15 minutes, with unread records, while others advanced: "
    "`offsetstore lag` names them",
    "log-lost-records": "a log lost records that had been read",
}


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65_535), is_eager=True, help="Ask the process whose Monitoring listens here."
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where that process runs.")
@click.option("--ready", is_flag=True, help="With --port: whether the job is ready, and not only whether it is live.")
@click.option(
    "--token",
    envvar="OFFSETSTORE_HEALTH_TOKEN",
    show_envvar=True,
    metavar="TOKEN",
    help="With --port: the token of Monitoring, to see the reasons; better in the variable.",
)
@options.optional_group_option("Ask the database about this consumer group.", instead="port")
@click.option(
    "--max-lag",
    callback=options.lag_limit,
    metavar="LAG",
    help="With --group: how far behind it may be: 10000 records in all partitions together, or a duration such as 90s, "
    "5m or 2h. Needs --bootstrap-servers.",
)
@options.broker_options(required=False, use="; for --max-lag, and for partitions that stand while others advance")
@ask_options
def health(
    *,
    port: int | None,
    host: str,
    ready: bool,
    token: str | None,
    group: str | None,
    max_lag: LagLimit | None,
    kafka: options.Kafka,
    ask: AskOptions,
) -> None:
    """Ask a job's process, or the database, whether a job is well.

    With --port it asks the process for its liveness, as a supervisor does: for a container's health check, say. With
    --group it asks the database whether a job owns the group and is live: for a scheduler or a monitoring system on
    another machine. A paused group is well, however far it is behind.

    Exit code 1 if it is not well, if the process does not answer, or if there is no such group.

    \b
    Keys of --format json, with --port:
      live, ready  true or false
      codes        claim-lost, query-ended, batch-too-long, polling-stalled,
                   jvm-gone, memory, database-unreachable, kafka-unreachable,
                   starting, paused, partition-held; see docs/health.md
      reasons[]    code, group, text; only on the loopback address, or with
                   the token

    \b
    Keys of --format json, with --group:
      group
      well         true or false
      problems     no-live-job, starts-fail, no-live-relay, lag-too-high,
                   lag-unknown, log-lost-records, partition-stands (only
                   if a broker was asked)
      paused       at, until, reason; null if the group is not paused
      lag, behind_seconds
                   null if no broker was asked

    \b
    Examples:
      offsetstore health --port 9464
      offsetstore health -g billing -b localhost:9092 --max-lag 5m
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if (port is None) == (group is None):
        raise click.UsageError("Give either --port or --group.")
    if port is not None:
        _ask_process(ask, host, port, token, ready=ready)
    assert group is not None
    if max_lag is not None and not kafka.bootstrap_servers:
        raise click.UsageError("--max-lag needs --bootstrap-servers.")
    names = {group: kafka.group} if kafka.group else None
    with ask.open() as store:
        asks_kafka = bool(kafka.bootstrap_servers)
        measured = store.lag([group], kafka.connect(), kafka_groups=names).groups if asks_kafka else None
        state = store.group_state(group) if measured is None else measured.get(group)
        if state is None:
            fail_unknown(store, group)
        schema = store.database.schema
    # Without Kafka it is not known whether a partition stands.
    if state.broker_error is not None:
        raise state.broker_error
    problems = judge_group(state, max_lag)
    keys = "group well problems paused=pause lag behind_seconds=lag_seconds"
    made = document(state, keys, well=not problems, problems=problems)
    text = [f"Group {group} is {'not well' if problems else 'well'}."]
    text += [f"{problem}: {_PROBLEMS[problem]}" for problem in problems]
    if "log-lost-records" in problems:
        text.append(f"`{command('status', '-g', group, schema=schema)}` names the log.")
    text += [] if state.pause is None else [f"It is {state.pause}."]
    if state.lag is not None:
        seconds = state.lag_seconds
        behind = "" if seconds is None else f", {short(timedelta(seconds=seconds))} behind"
        text.append(f"Lag {state.lag}{behind}.")
    ask.show(made, *text)
    raise click.exceptions.Exit(ExitCode.NO if problems else ExitCode.OK)


def _ask_process(ask: AskOptions, host: str, port: int, token: str | None, *, ready: bool) -> NoReturn:
    path = "/readyz" if ready else "/livez"
    # No proxy, as urllib would use: the process is on this machine, or near it.
    connection = HTTPConnection(host, port, timeout=_SECONDS)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        found = _read(answer.read())
    except (OSError, HTTPException, ValueError) as error:
        click.echo(f"No answer from a job at {host}:{port}: {type(error).__name__}.", err=True)
        raise click.exceptions.Exit(ExitCode.NO) from None
    finally:
        connection.close()
    states = [word if found[word] else f"not {word}" for word in ("live", "ready")]
    reasons = [f"{reason['code']}: {reason['text']}" for reason in found.get("reasons", ())]
    ask.show(found, f"The job is {' and '.join(states)}.", *(reasons or found["codes"]))
    raise click.exceptions.Exit(ExitCode.OK if found["ready" if ready else "live"] else ExitCode.NO)


def _read(answer: bytes) -> dict[str, Any]:
    """Read what `Monitoring` answers.

    :raises ValueError: another program has answered.
    """
    found: Any = json.loads(answer)
    if not isinstance(found, dict) or not {"live", "ready", "codes"} <= cast("dict[str, Any]", found).keys():
        raise ValueError
    return cast("dict[str, Any]", found)
