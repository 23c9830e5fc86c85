"""``offsetstore lag``: how far groups are behind Kafka, in records and in time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final, NoReturn

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, ask_options
from offsetstore.cli.output import Table, document, fail_unknown, print_error, print_json, print_text
from offsetstore.errors import ExitCode
from offsetstore.operations.group_state import Lag, PartitionState, TopicState
from offsetstore.operations.group_status import LagLimit, in_words, judge_lag, notes, standing, state_of
from offsetstore.text import counted, short

_BY_TOPIC: Final = ("group", "state", "topic", "#partitions", "#lag", "#behind", "#headroom")
_BY_PARTITION: Final = ("group", "partition", "#stored", "#end", "#lag", "#behind", "#headroom")
_KEYS: Final = (
    "groups[group live=is_live paused=owner.is_paused lag behind_seconds=lag_seconds "
    "topics[topic=@ lag behind_seconds=lag_seconds behind_is_bound=is_bound headroom beyond_end without_offset "
    "error partitions[partition=@.partition stored=stored.next_offset beginning=log.beginning end=log.end lag "
    "behind_seconds=lag_seconds behind_is_bound=is_bound headroom beyond_end suspect=is_suspect]]]"
)


@click.command()
@options.optional_group_option("The consumer group: the job's name.", instead="all_groups")
@click.option(
    "--all",
    "all_groups",
    is_flag=True,
    is_eager=True,
    help="All groups that were ever claimed and have stored offsets.",
)
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
@ask_options
def lag(
    *,
    group: str | None,
    all_groups: bool,
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

    Exit code 1 if there is no such group, or with --fail-above if a group is further behind or its lag is unknown;
    paused groups never fail the check. If Kafka can't be reached, what is stored is shown all the same, with exit
    code 4.

    \b
    Keys of --format json; with --watch, each look is one line:
      groups[]  group, live, paused, lag, behind_seconds,
                topics[]  topic, lag, behind_seconds, behind_is_bound,
                          headroom, beyond_end, without_offset (partitions),
                          error,
                          partitions[]  partition, stored, beginning, end, lag,
                                        behind_seconds, behind_is_bound,
                                        headroom, beyond_end, suspect

    \b
    Examples, with OFFSETSTORE_URL and OFFSETSTORE_BOOTSTRAP_SERVERS set:
      offsetstore lag -g billing --fail-above 5m
      offsetstore lag --all --watch
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if (group is None) != all_groups:
        raise click.UsageError("Give either --group or --all.")
    if kafka.group is not None and all_groups:
        raise click.UsageError("--kafka-group is the name of one group: give --group, too.")
    if watch is not None and limit is not None:
        raise click.UsageError("--watch never ends by itself: --fail-above has no effect.")
    broker = kafka.connect()
    with ask.open() as store:

        def look() -> Lag:
            named = None if group is None else [group]
            names = {group: kafka.group} if group is not None and kafka.group is not None else None
            return store.lag(named, broker, kafka_groups=names)

        found = look()
        if group is not None and group not in found.groups:
            fail_unknown(store, group)
        if watch is not None:
            _watch(found, look, watch, ask, by_partition=partitions)
    ask.show(document(found, _KEYS), *_text(found, by_partition=partitions))
    # After the answer: what is stored is shown all the same.
    if found.broker_error is not None:
        raise found.broker_error
    if limit is not None and any(judge_lag(state, limit) for state in found.groups.values()):
        raise click.exceptions.Exit(ExitCode.NO)


def _watch(found: Lag, look: Callable[[], Lag], seconds: float, ask: AskOptions, *, by_partition: bool) -> NoReturn:
    while True:
        if sys.stdout.isatty():
            click.clear()
        if ask.as_json:
            print_json(document(found, _KEYS), in_one_line=True)
        else:
            print_text(*_text(found, by_partition=by_partition))
        # Printed, not raised: Kafka may answer the next look.
        if found.broker_error is not None:
            print_error(str(found.broker_error), {})
        time.sleep(seconds)
        found = look()


def _text(found: Lag, *, by_partition: bool) -> Iterator[str | Table]:
    yield Table(_BY_PARTITION, [*_partition_rows(found)]) if by_partition else Table(_BY_TOPIC, [*_topic_rows(found)])
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


def _topic_rows(found: Lag) -> Iterator[tuple[object, ...]]:
    for group, state in found.groups.items():
        words = in_words(state.owner, state_of(state))
        for name, topic in state.topics.items():
            behind = _behind(topic)
            yield group, words, name, len(topic.partitions), topic.lag, behind, topic.headroom


def _partition_rows(found: Lag) -> Iterator[tuple[object, ...]]:
    for group, state in found.groups.items():
        for tp, part in state.partitions.items():
            stored = part.stored.next_offset if part.stored else None
            end = part.log.end if part.log else None
            yield group, tp, stored, end, part.lag, _behind(part), part.headroom


def _behind(state: TopicState | PartitionState) -> str | None:
    if state.lag_seconds is None:
        return None
    return f"{'<=' if state.is_bound else ''}{short(timedelta(seconds=state.lag_seconds))}"
