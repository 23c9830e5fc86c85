"""``offsetstore dead-letters``: look at records that could not be written, and decide about them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, Decide, ask_options, decide_options, table_options
from offsetstore.cli.output import document, documents, echo, mistyped, print_json, print_text
from offsetstore.cli.tables import Table, stamp
from offsetstore.errors import ExitCode, OffsetStoreError
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import MAX_OFFSET, TopicPartition
from offsetstore.operations import people
from offsetstore.operations.letters import MOST, LettersDecided, Which
from offsetstore.operations.stored_letters import (
    LetterCursor,
    LetterFilter,
    list_letter_errors_of_all,
    list_letters_of_all,
)
from offsetstore.protocol.letters import CAUSES, FINAL, OPEN, STATES, Letter, LetterKey, LetterState, Payload
from offsetstore.text import counted, visible

_LETTERS: Final = (
    "at=created_at, letter=key, state, ?cause, error=error.error_class, ?sqlstate=error.sqlstate, "
    "constraint=error.constraint, ?#attempts, ?#times"
)
_ERRORS: Final = (
    "#letters=count, cause, error=error_class, ?sqlstate, ?table, constraint, ?column, ?first=first_at, last=last_at, "
    "example"
)
_PLACE: Final = "*topic_partition offset topic_id"
_LETTER: Final = (
    "at=created_at *topic_partition offset topic_id state cause error_class=error.error_class sqlstate=error.sqlstate "
    "table=error.table constraint=error.constraint column=error.column attempts times payload=payload_state forced "
    "sequence trace_id decided_at actor reason"
)
_CONTENTS: Final = (
    "error_text=error.text traceback=error.traceback timestamp_ms=payload.timestamp_ms "
    "timestamp_type=payload.timestamp_type"
)
_ERROR: Final = (
    f"letters=count cause error_class sqlstate table constraint column first=first_at last=last_at example[{_PLACE}]"
)
_DECIDED: Final = f"group reason executed plan=digest more without_payload overtaken letters[{_PLACE}]"
_FILTERS: Final = ("topic", "partition", "cause", "error_class", "sqlstate", "table", "constraint", "column")
_EXPORTED: Final = 1_000  # letters read at a time
_LOOKED_AT: Final = 1_000  # the newest letters of all groups, of which a filter or --by error chooses
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP_TYPES: Final = {0: "CreateTime", 1: "LogAppendTime"}
# The record's rows are in the results, or a job has read the record again since: --wait has nothing to report.
_INTACT: Final = frozenset({"replayed", "superseded"})


def _letter_key(text: str) -> LetterKey:
    """``TOPIC:PARTITION:OFFSET``: the name of a topic has no colon."""
    topic, partition, offset = (*text.rsplit(":", 2), "", "")[:3]
    try:
        key = LetterKey(TopicPartition(topic, int(partition)), int(offset))
    except ValueError:
        key = None
    if key is None or not 0 <= key.offset <= MAX_OFFSET:
        raise ValueError(f"{text!r} is not TOPIC:PARTITION:OFFSET.")
    return key


def _states(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> list[LetterState] | None:
    return None if "all" in value else [state for state in STATES if state in value]


def _of_topic(context: click.Context, _parameter: click.Parameter, value: int | None) -> int | None:
    if value is not None and context.params["topic"] is None:
        raise click.UsageError("--partition goes with --topic: each topic has partitions of these numbers.")
    return value


_states_option = click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([*STATES, "all"]),
    default=OPEN,
    show_default=True,
    callback=_states,
    help="Only of this state. May be repeated.",
)
_filter_options = options.together(
    # Eager: the callback of --partition reads it.
    click.option("--topic", "-t", is_eager=True, metavar="TOPIC", help="Only of this topic."),
    click.option(
        "--partition",
        "-p",
        type=click.IntRange(0),
        metavar="N",
        callback=_of_topic,
        help="Only of this partition of --topic.",
    ),
    click.option("--cause", type=click.Choice(CAUSES), help="Only of this cause."),
    click.option("--error-class", metavar="NAME", help="Only of errors of this class."),
    click.option("--sqlstate", metavar="STATE", help="Only of errors with this SQLSTATE; '' for none."),
    click.option("--table", metavar="NAME", help="Only of errors with this table."),
    click.option(
        "--constraint",
        metavar="NAME",
        help="Only of errors with this constraint; '' for none, as with --table and --column.",
    ),
    click.option("--column", metavar="NAME", help="Only of errors with this column."),
)


def _which(given: dict[str, Any]) -> Which:
    letters, all_ = given.pop("letters"), given.pop("all_")
    chosen = {name: given.pop(name) for name in _FILTERS}
    has_filter = any(value is not None for value in chosen.values())
    if (bool(letters) + has_filter + all_) != 1:
        raise click.UsageError("Name letters, or a filter such as --constraint, or --all: one of the three.")
    return letters or LetterFilter(**chosen)


def _limit_option(text: str) -> Callable[[Any], Any]:
    return click.option("--limit", "-n", type=options.COUNT, default=MOST, show_default=True, metavar="N", help=text)


_which_options = options.together(
    click.argument("letters", nargs=-1, metavar="[TOPIC:PARTITION:OFFSET]...", callback=options.parsed(_letter_key)),
    _filter_options,
    click.option("--all", "all_", is_flag=True, help="All of the group's letters; not with a filter."),
    _limit_option("At most N letters, in order of partition and offset."),
    options.gathered("which", _which),
)
"""Which letters to decide about, as the argument ``which``."""


@click.group("dead-letters")
def dead_letters() -> None:
    """List, replay and discard a consumer group's dead letters.

    These are records that could not be written, kept with their errors in the transaction that passed over them.
    """


@dead_letters.command("list")
@options.any_group_option
@_states_option
@_filter_options
@click.option("--by", type=click.Choice(["letter", "error"]), default="letter", help="Each letter, or each error.")
@click.option("--after", metavar="NEXT", help="Continue from the cursor that the previous page printed.")
@click.option(
    "--limit", "-n", type=options.COUNT, default=100, show_default=True, metavar="N", help="Letters per page."
)
@table_options
def list_letters(
    *,
    group: str | None,
    states: list[LetterState] | None,
    by: str,
    after: str | None,
    limit: int,
    ask: AskOptions,
    **chosen: Any,
) -> None:
    """List dead letters, the newest first, or their errors with --by error.

    Keys, values, headers and error texts are not read; `show` and `export` do that. Without --group, a page looks at no
    more than the next 1,000 letters of all groups if there is a filter, and --by error at the newest 1,000. Exit code 1
    if the store does not know the group.

    \b
    Keys of --format json:
      group      null for all groups; then each letter has its group, too
      next       for --after; null if this is the last page
      letters[]  at, topic, partition, offset, topic_id, state, cause,
                 error_class, sqlstate, table, constraint, column, attempts,
                 times, payload, forced, sequence, trace_id, decided_at, actor,
                 reason
    with --by error:
      group      as above
      errors[]   letters (how many), cause, error_class, sqlstate, table,
                 constraint, column, first, last, example (topic, partition,
                 offset, topic_id)

    \b
    Examples, with OFFSETSTORE_URL set:
      offsetstore dead-letters list
      offsetstore dead-letters list -g billing --by error
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if by == "error" and (after or any(value is not None for name, value in chosen.items() if name != "topic")):
        raise click.UsageError("--by error goes with --state, --topic and --limit alone.")
    which = LetterFilter(tuple(states or ()), **chosen)
    groups: list[str] | None = None
    notes: list[str] = []
    with ask.about(group) as store:
        if by == "error":
            if group is not None:
                errors = store.letter_errors(group, state=states, topic=chosen["topic"], limit=limit)
            else:
                of_all = people.ask(
                    store.database,
                    lambda session: list_letter_errors_of_all(session, which, limit=limit, within=_LOOKED_AT),
                )
                errors, groups = [error for _, error in of_all], [name for name, _ in of_all]
            made = {"group": group, "errors": documents(errors, _ERROR, groups)}
            note = f"Counted among the newest {_LOOKED_AT:,} letters of all groups: name a group to count all of its."
            ask.show(made, Table.of(_ERRORS, errors, groups), *([] if groups is None else [note]))
            return
        if group is not None:
            page = store.letters(group, state=states, after=after, limit=limit, **chosen)
            letters, following = page.letters, page.next
            if not letters:
                notes += mistyped("dead letters", which.topic, {tp.topic for tp in store.offsets(group)})
        else:
            cursor = None if after is None else LetterCursor.parse(after)
            within = limit + 1 if which == LetterFilter(which.states) else max(limit + 1, _LOOKED_AT)
            found, end = people.ask(
                store.database,
                lambda session: list_letters_of_all(session, which, after=cursor, limit=limit, within=within),
            )
            letters, groups = [letter for _, letter in found], [name for name, _ in found]
            following = None if end is None else str(end)
    notes += [] if following is None else [f"There are more: --after {following}"]
    made = {"group": group, "next": following, "letters": documents(letters, _LETTER, groups)}
    ask.show(made, Table.of(_LETTERS, letters, groups), *notes)


@dead_letters.command("show")
@options.group_option
@click.argument("letter", metavar="TOPIC:PARTITION:OFFSET", callback=options.parsed(_letter_key))
@click.option("--topic-id", metavar="ID", help="Of a topic that was created again; by default, the newest letter's.")
@ask_options
def show_letter(*, group: str, letter: LetterKey, topic_id: str | None, ask: AskOptions) -> None:
    """Show one dead letter with its key, value, headers, error and traceback.

    Bytes are printed as text if they are UTF-8, else in base64. Exit code 1 if there is no such letter.

    \b
    Keys of --format json: those of `list`, and
      timestamp_ms, timestamp_type, error_text, traceback
      key, value    {"text": ...} or {"base64": ...}; null if there is none
      headers[]     [name, value], the value like those; null if not read

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore dead-letters show -g billing payments:0:17
    """  # noqa: D301 - as above
    with ask.open() as store:
        found = store.letter(group, letter.topic_partition, letter.offset, topic_id)
    if ask.as_json:
        print_json(_with_contents(found, _readable))
        return
    # Never wrapped: a record's value is copied as it is.
    for line in _lines(found):
        echo(visible(line))


@dead_letters.command("replay")
@options.group_option
@_which_options
@click.option("--force", is_flag=True, help="Replay even where older rows may replace those of later records.")
# A flag, and --timeout beside it: letters follow as arguments, and one could be taken for its value (decision 0061).
@click.option(
    "--wait", is_flag=True, help="With --execute: wait for the outcome, and fail if a letter is not replayed."
)
@click.option(
    "--timeout",
    type=options.Seconds(0, 86_400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long --wait waits.",
)
@decide_options()
def replay_letters(
    *, group: str, which: Which, limit: int, force: bool, wait: bool, timeout: float, decide: Decide
) -> None:
    """Request that the group's job replays dead letters: the letters named, or those that match.

    Without --execute it prints what would be chosen and writes nothing. A running job replays the letters within
    seconds; what fails again is dead again. Letters whose records are not kept can't be replayed.

    Exit code 1 if there is no such group or letter, if it can't be replayed, if the plan is not --if-plan (the new one
    is printed), or with --wait if a letter has failed again or was not replayed in time.

    \b
    Keys of --format json:
      group, reason
      executed         whether anything was written
      plan             for --if-plan
      more             whether more letters fit than --limit allows
      without_payload  how many fit whose records are not kept
      overtaken        with --force: for how many of them a job has not waited
      outcome          with --wait: how many letters are in each state now;
                       null without
      letters[]        topic, partition, offset, topic_id

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore dead-letters replay -g billing --constraint positive \\
          --reason "the limit was wrong, ticket 17" --execute
    """  # noqa: D301 - as above
    if wait and decide.how["dry_run"]:
        raise click.UsageError("--wait goes with --execute: without it nothing is requested.")

    def show(done: LettersDecided) -> None:
        outcome: dict[LetterState, int] | None = None
        if not decide.as_json:
            decide.print_plan(done, _DECIDED)
            if done.executed and (left := _unreplayed(store, done)) is not None:
                print_text(f"Requested letters are to be replayed {left}.")
        try:
            if wait and done.executed:
                outcome = store.wait_for_replay(group, done.letters, seconds=timeout)
        finally:
            # What was requested stays requested, whatever ends the wait.
            if decide.as_json:
                decide.print_plan(done, f"{_DECIDED} outcome", outcome=outcome)
        words = {
            "dead": "failed again: see `offsetstore dead-letters show`",
            "requested": f"not replayed in {timeout:g} s",
        }
        if outcome is not None and not decide.as_json:
            counts = [(counted(count, "dead letter"), words.get(state, state)) for state, count in outcome.items()]
            print_text(*(f"{letters} {state}." for letters, state in counts))
        if outcome is not None and not _INTACT.issuperset(outcome):
            raise click.exceptions.Exit(ExitCode.NO)

    with decide.open() as store:
        decide.carry_out(lambda: store.request_replay(group, which, forced=force, limit=limit, **decide.how), show)


@dead_letters.command("discard")
@options.group_option
@_which_options
@click.option(
    "--erase",
    is_flag=True,
    help="Delete keys, values, headers and error texts; also of letters that are settled, which keep their state.",
)
@decide_options()
def discard_letters(*, group: str, which: Which, limit: int, erase: bool, decide: Decide) -> None:
    """Give up dead letters: those named, or those that match. Their records stay out of the results.

    Without --execute it prints what would be chosen and writes nothing. A requested replay is withdrawn.

    Exit code 1 if there is no such group or letter, if it is settled already, or if the plan is not --if-plan (the new
    one is printed).

    \b
    Keys of --format json:
      group, reason
      executed         whether anything was written
      plan             for --if-plan
      more             whether more letters fit than --limit allows
      without_payload  0
      overtaken        0
      letters[]        topic, partition, offset, topic_id

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore dead-letters discard -g billing payments:0:17 --erase \\
          --reason "asked for by the customer, ticket 18" --execute
    """  # noqa: D301 - as above
    decide(_DECIDED, lambda store: store.discard(group, which, erase=erase, limit=limit, **decide.how))


@dead_letters.command("export")
@options.group_option
@_states_option
@_filter_options
@options.database_options
def export_letters(
    *, group: str, states: list[LetterState] | None, database: options.DatabaseOptions, **chosen: Any
) -> None:
    """Write dead letters to the standard output with all they hold, one JSON document a line.

    The newest is the first. Exit code 1 if the store does not know the group.

    \b
    Keys of each line: those of `list`, and
      timestamp_ms, timestamp_type, error_text, traceback
      key, value    in base64; null if there is none
      headers[]     [name, value in base64 or null]; null if not read

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore dead-letters export -g billing > letters.jsonl
    """  # noqa: D301 - as above
    with database.about(group) as store:
        after = None
        while True:
            page = store.letters(group, state=states, after=after, limit=_EXPORTED, contents=True, **chosen)
            for letter in page.letters:
                click.echo(json.dumps(_with_contents(letter, _base64)))
            if (after := page.next) is None:
                return


@dead_letters.command("prune")
@options.group_option
@click.option(
    "--older-than",
    required=True,
    callback=options.duration,
    metavar="AGE",
    help="Only letters that were settled longer ago, such as 30d or 12h.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(FINAL),
    default=FINAL,
    show_default=True,
    help="Only of this state. May be repeated.",
)
@_limit_option("At most N letters.")
@decide_options()
def prune_letters(
    *, group: str, older_than: timedelta, states: tuple[LetterState, ...], limit: int, decide: Decide
) -> None:
    """Delete dead letters that were replayed, discarded or superseded long ago.

    Without --execute it counts them. Others are never deleted: discard them first. It must be run as the owner of the
    tables, or as a role with DELETE on dead_letters; a job's role has no such privilege.

    Exit code 1 if there is no such group, or if the plan is not --if-plan (the new one is printed).

    \b
    Keys of --format json:
      group, reason, executed, plan (for --if-plan), letters (how many), more

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore dead-letters prune -g billing --older-than 90d \\
          --reason "retention" --execute
    """  # noqa: D301 - as above
    decide(
        "group reason executed plan=digest letters=count more",
        lambda store: store.prune(group, older_than=older_than, states=states, limit=limit, **decide.how),
    )


def _unreplayed(store: OffsetStore, done: LettersDecided) -> str | None:
    """Who replays the requested letters, in words, if not the running job; ``None`` if it does, or none runs."""
    if not done.owner.is_live or done.owner.is_paused:
        return None
    try:
        state = store.group_state(done.group)
    except OffsetStoreError:
        # The replay was requested: the command must not fail for what it only adds.
        return None
    return None if state is None else state.unreplayed


def _with_contents(letter: Letter, write: Callable[[bytes | None], object]) -> dict[str, object]:
    payload = letter.payload
    headers = None if payload is None else payload.headers
    return {
        **document(letter, f"{_LETTER} {_CONTENTS}"),
        "key": None if payload is None else write(payload.key),
        "value": None if payload is None else write(payload.value),
        "headers": None if headers is None else [[name, write(value)] for name, value in headers],
    }


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _readable(value: bytes | None) -> dict[str, str] | None:
    if value is None:
        return None
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _lines(letter: Letter) -> Iterator[str]:
    error, payload = letter.error, letter.payload
    named = {"SQLSTATE": error.sqlstate, "table": error.table, "constraint": error.constraint, "column": error.column}
    place = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
    of_topic = f" of topic {letter.topic_id}" if letter.topic_id else ""
    yield f"{letter.key}{of_topic}: {letter.state}, {letter.cause}"
    attempts = f"{counted(letter.attempts, 'attempt')}, {counted(letter.times, 'time')} a letter"
    yield f"Since:      {stamp(letter.created_at)}, {attempts}"
    if letter.decided_at is not None:
        forced = ", forced" if letter.forced else ""
        yield f"Decided:    {stamp(letter.decided_at)} by {letter.actor}{forced}: {letter.reason}"
    yield f"Error:      {error.error_class}{f' ({place})' if place else ''}"
    yield from (f"            {line}" for line in error.text.splitlines())
    if letter.trace_id is not None:
        yield f"Trace:      {letter.trace_id}"
    if payload is None:
        yield f"Record:     {letter.payload_state}"
    else:
        yield f"Timestamp:  {_time_of(payload)}"
        yield f"Key:        {_in_words(payload.key)}"
        yield f"Value:      {_in_words(payload.value)}"
        yield "Headers:    not read" if payload.headers is None else "Headers:"
        yield from (f"  {name}: {_in_words(value)}" for name, value in payload.headers or ())
    if error.traceback:
        yield "Traceback:"
        yield from (f"  {line}" for line in error.traceback.splitlines())


def _time_of(payload: Payload) -> str:
    """The record's time in UTC, and whose clock it is from, in Kafka's word."""
    if payload.timestamp_ms is None:
        return "none"
    try:
        time = (_EPOCH + timedelta(milliseconds=payload.timestamp_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        # A producer may write any number.
        time = str(payload.timestamp_ms)
    kind = None if payload.timestamp_type is None else _TIMESTAMP_TYPES.get(payload.timestamp_type)
    return f"{time} ({kind})" if kind else time


def _in_words(value: bytes | None) -> str:
    if (found := _readable(value)) is None:
        return "none"
    [(kind, text)] = found.items()
    return text if kind == "text" else f"base64 {text}"
