"""``offsetstore dead-letters``: look at records that could not be written, and decide about them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

import click

from offsetstore.cli import options
from offsetstore.cli.exits import decide, fail_unknown, show_done
from offsetstore.cli.output import columns, document, print_digest, print_json, print_lines, print_rows
from offsetstore.errors import ExitCode
from offsetstore.offsets import MAX_OFFSET, TopicPartition
from offsetstore.operations.letters import MOST, LettersDecided, LettersPruned, Which
from offsetstore.operations.reads import GroupState
from offsetstore.protocol.letters import FINAL, OPEN, Letter, LetterKey, State
from offsetstore.protocol.stored_letters import CAUSES, STATES, LetterFilter
from offsetstore.text import counted

_F = TypeVar("_F", bound="Callable[..., Any] | click.Command")

_LETTERS: Final = columns(
    "at=created_at, letter=key, state, cause, error=error.error_class, sqlstate=error.sqlstate, "
    "constraint=error.constraint, #attempts, #times"
)
_ERRORS: Final = columns(
    "#letters=count, cause, error=error_class, sqlstate, table, constraint, column, first=first_at, last=last_at, "
    "example"
)
_PLACE: Final = "*topic_partition offset topic_id"
_LETTER: Final = (
    "at=created_at *topic_partition offset topic_id state cause error_class=error.error_class sqlstate=error.sqlstate "
    "table=error.table constraint=error.constraint column=error.column attempts times payload=payload_state forced "
    "sequence trace_id decided_at actor reason"
)
_ERROR: Final = "letters=count cause error_class sqlstate table constraint column first=first_at last=last_at example"
_DECIDED: Final = "group reason executed plan=digest more without_payload overtaken letters"
_FILTERS: Final = ("topic", "partition", "cause", "error_class", "sqlstate", "table", "constraint", "column")
_SHOWN: Final = 20  # letters that a plan lists
_EXPORTED: Final = 1_000  # letters read at a time
_AGE: Final = re.compile(r"[0-9]{1,5}[dhm]")
_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60}


class _LetterName(click.ParamType[LetterKey]):
    """``TOPIC:PARTITION:OFFSET``: the name of a topic has no colon."""

    name = "letter"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LetterKey:
        if isinstance(value, LetterKey):
            return value
        topic, partition, offset = (*str(value).rsplit(":", 2), "", "")[:3]
        try:
            key = LetterKey(TopicPartition(topic, int(partition)), int(offset))
        except ValueError:
            self.fail(f"{value!r} is not TOPIC:PARTITION:OFFSET.", param, ctx)
        if not 0 <= key.offset <= MAX_OFFSET:
            self.fail(f"{value!r} is not TOPIC:PARTITION:OFFSET.", param, ctx)
        return key


class _Age(click.ParamType[timedelta]):
    """``30d``, ``12h``, ``90m``."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        text = str(value)
        if not _AGE.fullmatch(text):
            self.fail(f"{text!r} is not a number of days, hours or minutes, such as 30d, 12h or 90m.", param, ctx)
        return timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])


def _states(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> list[State] | None:
    return None if "all" in value else [one for one in STATES if one in value]


def _states_option(function: _F) -> _F:
    """The states of letters, ``None`` for all."""
    return click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice([*STATES, "all"]),
        default=OPEN,
        show_default=True,
        callback=_states,
        help="Only of this state. May be repeated.",
    )(function)


def _filter_options(function: _F) -> _F:
    """Which letters, by their error and place."""
    for name, text in (
        ("column", "Only of errors with this column."),
        ("constraint", "Only of errors with this constraint; '' for none, as with --table and --column."),
        ("table", "Only of errors with this table."),
        ("sqlstate", "Only of errors with this SQLSTATE; '' for none."),
        ("error-class", "Only of errors of this class."),
    ):
        function = click.option(f"--{name}", metavar="NAME" if name != "sqlstate" else "STATE", help=text)(function)
    function = click.option("--cause", type=click.Choice(CAUSES), help="Only of this cause.")(function)
    function = click.option(
        "--partition", "-p", type=click.IntRange(0), metavar="N", help="Only of this partition of the topic."
    )(function)
    return click.option("--topic", "-t", metavar="TOPIC", help="Only of this topic.")(function)


def _decision_options(function: _F) -> _F:
    """Which letters to decide about, as the argument ``which``, and whether to do it."""
    function = options.gathered(function, "which", _which)
    function = click.option(
        "--limit",
        "-n",
        type=click.IntRange(1),
        default=MOST,
        show_default=True,
        metavar="N",
        help="At most N letters, in order of partition and offset.",
    )(options.execute_options(function))
    function = click.option("--all", "all_", is_flag=True, help="All of the group's letters; not with a filter.")(
        _filter_options(function)
    )
    return click.argument("letters", nargs=-1, metavar="[TOPIC:PARTITION:OFFSET]...", type=_LetterName())(function)


def _which(given: dict[str, Any]) -> Which:
    letters, all_ = given.pop("letters"), given.pop("all_")
    chosen = {name: given.pop(name) for name in _FILTERS}
    has_filter = any(value is not None for value in chosen.values())
    if (bool(letters) + has_filter + all_) != 1:
        raise click.UsageError("Name letters, or a filter such as --constraint, or --all: one of the three.")
    return letters or LetterFilter(**chosen)


@click.group("dead-letters")
def dead_letters() -> None:
    """List, replay and discard a consumer group's dead letters.

    These are records that could not be written, kept with their errors in the transaction that passed over them.
    """


@dead_letters.command("list")
@options.group_option
@_states_option
@_filter_options
@click.option("--by", type=click.Choice(["letter", "error"]), default="letter", help="Each letter, or each error.")
@click.option("--after", metavar="NEXT", help="Continue from the cursor that the previous page printed.")
@click.option(
    "--limit", "-n", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="Letters per page."
)
@options.database_options
@options.format_option
def list_letters(
    *,
    group: str,
    states: list[State] | None,
    by: str,
    after: str | None,
    limit: int,
    database: options.Database,
    format_: str,
    **chosen: Any,
) -> None:
    """List dead letters, the newest first, or their errors with --by error.

    Keys, values, headers and error texts are not read; `show` and `export` do that. The exit code is 1 if the store
    does not know the group.

    \b
    Keys of --format json:
      group
      next       for --after; null if this is the last page
      letters[]  at, topic, partition, offset, topic_id, state, cause,
                 error_class, sqlstate, table, constraint, column, attempts,
                 times, payload, forced, sequence, trace_id, decided_at, actor,
                 reason
    with --by error:
      group
      errors[]   letters (how many), cause, error_class, sqlstate, table,
                 constraint, column, first, last, example (topic, partition,
                 offset, topic_id)

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore dead-letters list -g billing --by error
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if by == "error" and (after or any(value is not None for name, value in chosen.items() if name != "topic")):
        raise click.UsageError("--by error goes with --state, --topic and --limit alone.")
    with database.open() as store:
        if store.owner(group) is None:
            fail_unknown(group)
        if by == "error":
            errors = store.letter_errors(group, state=states, topic=chosen["topic"], limit=limit)
            if format_ == "json":
                shown = [document(one, _ERROR, example=document(one.example, _PLACE)) for one in errors]
                print_json({"group": group, "errors": shown})
            else:
                print_rows(_ERRORS, errors)
            return
        page = store.letters(group, state=states, after=after, limit=limit, **chosen)
    if format_ == "json":
        print_json({"group": group, "next": page.next, "letters": [_document(one) for one in page.letters]})
        return
    print_rows(_LETTERS, page.letters)
    if page.next is not None:
        print_lines(f"There are more: --after {page.next}")


@dead_letters.command("show")
@options.group_option
@click.argument("letter", metavar="TOPIC:PARTITION:OFFSET", type=_LetterName())
@click.option("--topic-id", metavar="ID", help="Of a topic that was created again; by default, the newest letter's.")
@options.database_options
@options.format_option
def show_letter(
    *, group: str, letter: LetterKey, topic_id: str | None, database: options.Database, format_: str
) -> None:
    """Show one dead letter with its key, value, headers, error and traceback.

    Bytes are printed as text if they are UTF-8, else in base64.

    \b
    Exit codes:
      0  it is shown
      1  there is no such letter
      2  wrong usage
      3  the database can't be reached or refuses

    \b
    Keys of --format json: those of `list`, and
      timestamp_ms, timestamp_type, error_text, traceback
      key, value    {"text": ...} or {"base64": ...}; null if there is none
      headers[]     [name, value], the value like those; null if not read

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore dead-letters show -g billing payments:0:17
    """  # noqa: D301 - as above
    with database.open() as store:
        found = store.letter(group, letter.topic_partition, letter.offset, topic_id)
    if format_ == "json":
        print_json(_full_document(found, _readable))
    else:
        _print_letter(found)


@dead_letters.command("replay")
@options.group_option
@_decision_options
@click.option("--force", is_flag=True, help="Replay even where older rows may replace those of later records.")
@click.option(
    "--wait", is_flag=True, help="With --execute: wait for the outcome, and fail if a letter is not replayed."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long --wait waits.",
)
@options.database_options
@options.format_option
def replay_letters(
    *,
    group: str,
    which: Which,
    limit: int,
    how: options.How,
    force: bool,
    wait: bool,
    timeout: float,
    database: options.Database,
    format_: str,
) -> None:
    """Request that the group's job replays dead letters: the letters named, or those that match.

    Without --execute it prints what would be chosen and writes nothing. A running job replays the letters within
    seconds; what fails again is dead again. Letters whose records are not kept can't be replayed.

    \b
    Exit codes:
      0  requested, with --wait: replayed; without --execute: it can be done
      1  there is no such group or letter, it can't be replayed, the plan is
         not --if-plan (the new one is printed), or with --wait: a letter has
         failed again, or was not replayed in time
      2  wrong usage
      3  the database can't be reached or refuses

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
      offsetstore dead-letters replay -g billing --constraint positive
          --reason "the limit was wrong, ticket 17" --execute
    """  # noqa: D301 - as above
    if wait and how["dry_run"]:
        raise click.UsageError("--wait goes with --execute: without it nothing is requested.")

    def show(done: LettersDecided) -> None:
        is_text = format_ != "json"
        if is_text:
            _print_decided(done, would="would be replayed", does="requested")
            if done.executed:
                _print_who_replays(store.group_state(group))
        outcome = None
        try:
            if wait and done.executed:
                outcome = store.wait_for_replay(group, done.letters, seconds=timeout)
        finally:  # what is requested stays so, whatever ends the wait
            if not is_text:
                print_json({**_decided(done, how["reason"]), "outcome": outcome})
        if outcome is not None and is_text:
            _print_outcome(outcome, timeout)
        if outcome is not None and not {"replayed", "superseded"}.issuperset(outcome):
            raise click.exceptions.Exit(ExitCode.NO)

    with database.open() as store:
        show_done(lambda: store.request_replay(group, which, forced=force, limit=limit, **how), show)


@dead_letters.command("discard")
@options.group_option
@_decision_options
@click.option(
    "--erase",
    is_flag=True,
    help="Delete keys, values, headers and error texts; also of letters that are settled, which keep their state.",
)
@options.database_options
@options.format_option
def discard_letters(
    *,
    group: str,
    which: Which,
    limit: int,
    how: options.How,
    erase: bool,
    database: options.Database,
    format_: str,
) -> None:
    """Give up dead letters: those named, or those that match. Their records stay out of the results.

    Without --execute it prints what would be chosen and writes nothing. A requested replay is withdrawn.

    \b
    Exit codes:
      0  done; without --execute: it can be done
      1  there is no such group or letter, it is settled already, or the plan
         is not --if-plan (the new one is printed)
      2  wrong usage
      3  the database can't be reached or refuses

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
      offsetstore dead-letters discard -g billing payments:0:17 --erase
          --reason "asked for by the customer, ticket 18" --execute
    """  # noqa: D301 - as above
    verb = "erased" if erase else "discarded"
    decide(
        database,
        lambda store: store.discard(group, which, erase=erase, limit=limit, **how),
        lambda done: (
            print_json(_decided(done, how["reason"]))
            if format_ == "json"
            else _print_decided(done, would=f"would be {verb}", does=verb)
        ),
    )


@dead_letters.command("export")
@options.group_option
@_states_option
@_filter_options
@options.database_options
def export_letters(
    *,
    group: str,
    states: list[State] | None,
    database: options.Database,
    **chosen: Any,
) -> None:
    """Write dead letters to the standard output with all they hold, one JSON document a line.

    The newest is the first. The exit code is 1 if the store does not know the group.

    \b
    Keys of each line: those of `list`, and
      timestamp_ms, timestamp_type, error_text, traceback
      key, value    in base64; null if there is none
      headers[]     [name, value in base64 or null]; null if not read

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore dead-letters export -g billing > letters.jsonl
    """  # noqa: D301 - as above
    with database.open() as store:
        if store.owner(group) is None:
            fail_unknown(group)
        after = None
        while True:
            page = store.letters(group, state=states, after=after, limit=_EXPORTED, contents=True, **chosen)
            for letter in page.letters:
                click.echo(json.dumps(_full_document(letter, _base64)))
            if (after := page.next) is None:
                return


@dead_letters.command("prune")
@options.group_option
@click.option(
    "--older-than",
    required=True,
    type=_Age(),
    metavar="AGE",
    help="Only letters that were settled longer ago: 30d, 12h, 90m.",
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
@click.option(
    "--limit", "-n", type=click.IntRange(1), default=MOST, show_default=True, metavar="N", help="At most N letters."
)
@options.execute_options
@options.database_options
@options.format_option
def prune_letters(
    *,
    group: str,
    older_than: timedelta,
    states: tuple[State, ...],
    limit: int,
    how: options.How,
    database: options.Database,
    format_: str,
) -> None:
    """Delete dead letters that were replayed, discarded or superseded long ago.

    Without --execute it counts them. Others are never deleted: discard them first. It must be run as the owner of the
    tables, or as a role with DELETE on dead_letters; a job's role has no such privilege.

    \b
    Exit codes:
      0  done; without --execute: they are counted
      1  there is no such group, or the plan is not --if-plan (the new one is
         printed)
      2  wrong usage
      3  the database can't be reached or refuses

    \b
    Keys of --format json:
      group, reason, executed, plan (for --if-plan), letters (how many), more

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore dead-letters prune -g billing --older-than 90d
          --reason "retention" --execute
    """  # noqa: D301 - as above
    decide(
        database,
        lambda store: store.prune(group, older_than=older_than, states=states, limit=limit, **how),
        lambda done: (
            print_json(document(done, "group reason executed plan=digest letters=count more", reason=how["reason"]))
            if format_ == "json"
            else _print_pruned(done, execute=not how["dry_run"])
        ),
    )


def _decided(done: LettersDecided, reason: str) -> dict[str, object]:
    return document(done, _DECIDED, reason=reason, letters=[document(key, _PLACE) for key in done.letters])


def _print_who_replays(state: GroupState) -> None:
    if not state.is_live:
        print_lines("No job of the group is running: the next one replays them, or sink.drain(spark) in a program.")
    elif state.pause is not None:
        print_lines("The group is paused: the running job replays them once it is resumed.")
    elif state.replays_letters is False:
        print_lines("The running job has no dead_letters=, and replays none: start it with dead_letters=.")
    else:
        print_lines("The running job replays them within seconds; --wait shows the outcome.")


def _print_outcome(outcome: Mapping[State, int], timeout: float) -> None:
    words = {"dead": "failed again: see `offsetstore dead-letters show`", "requested": f"not replayed in {timeout:g} s"}
    for state, count in outcome.items():
        print_lines(f"{counted(count, 'dead letter')} {words.get(state, state)}.")


def _print_decided(done: LettersDecided, *, would: str, does: str) -> None:
    for key in done.letters[:_SHOWN]:
        print_lines(str(key))
    if len(done.letters) > _SHOWN:
        print_lines(f"and {len(done.letters) - _SHOWN} more")
    if not done.letters:
        print_lines("No dead letters match.")
    else:
        print_lines(f"{counted(len(done.letters), 'dead letter')} {does if done.executed else would}.")
    if done.more:
        print_lines("More letters match than --limit allows: repeat the command for them, or raise the limit.")
    if done.without_payload:
        print_lines(f"{counted(done.without_payload, 'letter')} can't be replayed: their records are not kept.")
    if done.overtaken:
        letters = counted(done.overtaken, "letter")
        print_lines(f"A job has gone on without waiting for {letters} of these: later rows may be replaced.")
    if not done.executed and done.letters:
        print_lines("Nothing was written. Add --execute to do it.")
        print_digest(done.digest)


def _print_pruned(done: LettersPruned, *, execute: bool) -> None:
    is_done = done.executed or (execute and done.is_empty)
    print_lines(f"{counted(done.count, 'dead letter')} {'deleted' if is_done else 'would be deleted'}.")
    if done.more:
        print_lines("There are more than --limit allows: repeat the command for them, or raise the limit.")
    if done.count and not is_done:
        print_lines("Nothing was deleted. Add --execute to do it.")
        print_digest(done.digest)


def _document(letter: Letter) -> dict[str, object]:
    return document(letter, _LETTER, sequence=None if letter.sequence is None else letter.sequence.hex())


def _full_document(letter: Letter, write: Callable[[bytes | None], object]) -> dict[str, object]:
    payload = letter.payload
    headers = None if payload is None else payload.headers
    return {
        **_document(letter),
        **document(letter.error, "error_text=text traceback"),
        **document(payload, "timestamp_ms timestamp_type"),
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


def _print_letter(letter: Letter) -> None:
    error, payload = letter.error, letter.payload
    place = ", ".join(
        f"{name} {value}"
        for name, value in (
            ("SQLSTATE", error.sqlstate),
            ("table", error.table),
            ("constraint", error.constraint),
            ("column", error.column),
        )
        if value is not None
    )
    of_topic = f" of topic {letter.topic_id}" if letter.topic_id else ""
    attempts = f"{counted(letter.attempts, 'attempt')}, {counted(letter.times, 'time')} a letter"
    print_lines(
        f"{letter.key}{of_topic}: {letter.state}, {letter.cause}",
        f"Since:      {letter.created_at.isoformat(timespec='seconds')}, {attempts}",
    )
    if letter.decided_at is not None:
        forced = ", forced" if letter.forced else ""
        at = letter.decided_at.isoformat(timespec="seconds")
        print_lines(f"Decided:    {at} by {letter.actor}{forced}: {letter.reason}")
    print_lines(f"Error:      {error.error_class}{f' ({place})' if place else ''}")
    _print_text("            ", error.text)
    if letter.trace_id is not None:
        print_lines(f"Trace:      {letter.trace_id}")
    if payload is None:
        print_lines(f"Record:     {letter.payload_state}")
    else:
        print_lines(f"Timestamp:  {payload.timestamp_ms} (type {payload.timestamp_type})")
        for name, value in (("Key", payload.key), ("Value", payload.value)):
            print_lines(f"{name + ':':<12}{_in_words(value)}")
        print_lines("Headers:    not read" if payload.headers is None else "Headers:")
        for name, value in payload.headers or ():
            print_lines(f"  {name}: {_in_words(value)}")
    if error.traceback:
        print_lines("Traceback:")
        _print_text("  ", error.traceback)


def _print_text(indent: str, text: str) -> None:
    print_lines(*(f"{indent}{line}" for line in text.splitlines()))


def _in_words(value: bytes | None) -> str:
    match _readable(value):
        case None:
            return "none"
        case {"text": text}:
            return text
        case {"base64": text}:
            return f"base64 {text}"
        case _:
            raise AssertionError
