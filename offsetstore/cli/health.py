"""``offsetstore lag``: how far groups are behind Kafka; ``health``: whether a job is well."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from typing import Any, Final, NoReturn, cast

import click

from offsetstore.cli import options, sources
from offsetstore.cli.asking import AskOptions, ask_options, table_options
from offsetstore.cli.output import (
    document,
    fail,
    fail_unknown,
    print_error,
    print_json,
    print_text,
)
from offsetstore.cli.tables import Table
from offsetstore.errors import BrokerError, ConfigurationError, ExitCode
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.group_state import GroupState, Lag
from offsetstore.operations.group_status import (
    LagLimit,
    State,
    behind,
    in_words,
    judge_group,
    judge_lag,
    notes,
    standing,
    state_of,
)
from offsetstore.protocol.starting import similar_names
from offsetstore.text import command, counted, did_you_mean, short

_BY_TOPIC: Final = ("group", "state", "topic", "?#partitions", "#lag", "#behind", "?#headroom")
_BY_PARTITION: Final = ("group", "partition", "?#stored", "?#end", "#lag", "#behind", "?#headroom")
_LAG_KEYS: Final = (
    "group state live=is_live paused=pause lag behind_seconds=lag_seconds "
    "topics[topic=@ lag behind_seconds=lag_seconds behind_is_bound=is_bound headroom beyond_end without_offset "
    "error partitions[partition=@.partition stored=stored.next_offset beginning=log.beginning end=log.end lag "
    "behind_seconds=lag_seconds behind_is_bound=is_bound headroom beyond_end suspect=is_suspect]]"
)


@click.command()
@options.optional_group_option(
    "The consumer group: the job's name; by default, all groups that have stored offsets.", instead="all_groups"
)
@click.option("--all", "all_groups", is_flag=True, is_eager=True, help="All groups, as without --group.")
@click.option("--topic", "-t", callback=options.names, metavar="TOPIC", help="Only of this topic.")
@click.option("--partitions", is_flag=True, help="One line per partition instead of per topic.")
@click.option(
    "--watch",
    type=options.Seconds(0.5),
    is_flag=False,
    flag_value=5.0,
    metavar="[SECONDS]",
    help="Repeat every SECONDS (default 5) until interrupted.",
)
@click.option(
    "--fail-above",
    "limit",
    callback=options.lag_limit,
    metavar="LAG",
    help="Exit with 1 if a group is further behind: 10000 records, or a duration such as 90s, 5m or 2h.",
)
@options.broker_options(required=True)
@table_options
def lag(
    *,
    group: str | None,
    all_groups: bool,
    topic: str | None,
    partitions: bool,
    watch: float | None,
    limit: LagLimit | None,
    kafka: options.Kafka,
    ask: AskOptions,
) -> None:
    """Show how far consumer groups are behind Kafka.

    The lag is the number of offsets from the stored one to the end of the log, as Kafka's own tool counts it.
    "Behind" is the age of the oldest unread record, by its timestamp; "<=" means that it may be younger, where
    compaction has removed records or many have one timestamp. Headroom is how many offsets retention has to remove
    before it removes unread ones.

    A partition of which the store has no offset is left out of the lag. DESCRIBE on the topics is all that is needed
    in Kafka.

    Exit code 1 if there is no such group, if none has offsets of --topic, or with --fail-above if a group is
    further behind or its lag is unknown; paused groups never fail the check. If Kafka can't be reached, what is
    stored is shown all the same, with exit code 4.

    \b
    Keys of --format json; with --watch, each look is one line:
      groups[]  group, state (live, paused, stalled, silent, ended, failed or
                fenced), live, paused (at, until, reason; or null), lag,
                behind_seconds,
                topics[]  topic, lag, behind_seconds, behind_is_bound,
                          headroom, beyond_end, without_offset (partitions),
                          error,
                          partitions[]  partition, stored, beginning, end, lag,
                                        behind_seconds, behind_is_bound,
                                        headroom, beyond_end, suspect

    \b
    Examples, with OFFSETSTORE_URL and OFFSETSTORE_BOOTSTRAP_SERVERS set:
      offsetstore lag -g billing --fail-above 5m
      offsetstore lag --watch
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if group is not None and all_groups:
        raise click.UsageError("Give either --group or --all.")
    if kafka.group is not None and group is None:
        raise click.UsageError("--kafka-group is the name of one group: give --group, too.")
    if watch is not None and limit is not None:
        raise click.UsageError("--watch never ends by itself: --fail-above has no effect.")
    broker = kafka.connect()
    with ask.open() as store:

        def look() -> _Looked:
            named = None if group is None else [group]
            names = {group: kafka.group} if group is not None and kafka.group is not None else None
            return _Looked.at(store.lag(named, broker, kafka_groups=names), topic)

        found = look()
        if group is not None and group not in found.states:
            fail_unknown(store, group)
        if topic is not None and not found.groups:
            _fail_without(topic, found.topics, group)
        if watch is not None:
            _watch_lag(found, look, watch, ask, by_partition=partitions)
    ask.show(_lag_document(found), *_lag_text(found, by_partition=partitions))
    # After the answer: what is stored is shown all the same.
    if found.broker_error is not None:
        raise found.broker_error
    if limit is not None and any(judge_lag(state, limit) for state in found.groups.values()):
        raise click.exceptions.Exit(ExitCode.NO)


@dataclass(frozen=True, slots=True)
class _Looked:
    """What is shown: groups with the topics that were asked for, and the states and topics of whole groups."""

    groups: Mapping[str, GroupState]
    states: Mapping[str, State]
    topics: Collection[str]
    broker_error: BrokerError | None

    @classmethod
    def at(cls, found: Lag, topic: str | None) -> _Looked:
        groups, topics = found.groups, {name for group in found.groups.values() for name in group.topics}
        states: dict[str, State] = {name: state_of(group) for name, group in groups.items()}
        if topic is not None:
            groups = {
                name: replace(group, topics={topic: group.topics[topic]})
                for name, group in groups.items()
                if topic in group.topics
            }
        return cls(groups, states, topics, found.broker_error)


def _fail_without(topic: str, topics: Collection[str], group: str | None) -> NoReturn:
    of = "any group" if group is None else f"group {group!r}"
    error = ConfigurationError(
        f"the store has no offsets of topic {topic!r} for {of}",
        expected=", ".join(sorted(topics)) or None,
        next_step=did_you_mean(similar_names(topic, topics)) + "Correct the topic; a claim makes its rows.",
    )
    fail(error, code=ExitCode.NO)


def _lag_document(found: _Looked) -> dict[str, object]:
    groups = found.groups.items()
    return {"groups": [document(group, _LAG_KEYS, state=found.states[name]) for name, group in groups]}


def _watch_lag(
    found: _Looked, look: Callable[[], _Looked], seconds: float, ask: AskOptions, *, by_partition: bool
) -> NoReturn:
    while True:
        if sys.stdout.isatty():
            click.clear()
        if ask.as_json:
            print_json(_lag_document(found), in_one_line=True)
        else:
            print_text(*_lag_text(found, by_partition=by_partition), wide=ask.wide)
        # Printed, not raised: Kafka may answer the next look.
        if found.broker_error is not None:
            print_error(str(found.broker_error), {})
        time.sleep(seconds)
        found = look()


def _lag_text(found: _Looked, *, by_partition: bool) -> Iterator[str | Table]:
    yield _lag_table(found, by_partition=by_partition)
    for group, state in found.groups.items():
        for name, topic in state.topics.items():
            if topic.error is not None:
                yield f"{group}, {name}: {topic.error.what}."
            for tp, part in topic.partitions.items():
                yield from (f"{group}, {tp}: {note}" for note in notes(part))
            if topic.without_offset:
                yield f"{group}, {name}: no stored offset of {counted(topic.without_offset, 'partition')}."
        for tp, part in standing(state).items():
            assert part.age is not None
            yield f"{group}, {tp}: has stood for {short(part.age)}, with unread records, while others advanced."


def _lag_table(found: _Looked, *, by_partition: bool) -> Table:
    rows: list[tuple[object, ...]] = []
    for group, state in found.groups.items():
        if by_partition:
            for tp, part in state.partitions.items():
                stored = part.stored.next_offset if part.stored else None
                end = part.log.end if part.log else None
                rows.append((group, tp, stored, end, part.lag, behind(part), part.headroom))
            continue
        words = in_words(state.owner, found.states[group])
        for name, topic in state.topics.items():
            rows.append((group, words, name, len(topic.partitions), topic.lag, behind(topic), topic.headroom))
    return Table(_BY_PARTITION if by_partition else _BY_TOPIC, rows)


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

    For the source of rows that an application has put into the outbox, in place of a group, it tells whether they are
    late while no relay runs.

    Exit code 1 if it is not well, if the process does not answer, or if there is no such group.

    \b
    Keys of --format json, with --port:
      live, ready  true or false
      codes        claim-lost, query-ended, batch-too-long, polling-stalled,
                   jvm-gone, memory, database-unreachable, kafka-unreachable,
                   starting, paused, partition-held; see the page 'Health'
                   of the documentation
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
            _fail_without_group(store, group)
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


def _fail_without_group(store: OffsetStore, name: str) -> NoReturn:
    """Say that the name is no group's. A source without a row can't be told from a typo, so none has a health."""
    if sources.source(store, name) is None:
        fail_unknown(store, name)
    status = command("status", "-g", name, schema=store.database.schema)
    raise ConfigurationError(
        "--group must be a consumer group",
        found=f"{name}, under which an application put rows into the outbox",
        next_step=f"Run `{status}`; the alert OutboxStalled watches these rows.",
    )


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
