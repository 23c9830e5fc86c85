"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.core import ParameterSource

from offsetstore.cli.output import fail_unknown, fail_unknown_source
from offsetstore.errors import ConfigurationError, MissingPrivilege
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.group_status import LagLimit
from offsetstore.postgres.url import SCHEMA_VARIABLE
from offsetstore.protocol.arguments import misplaced
from offsetstore.text import parse_duration, parse_time, visible

if TYPE_CHECKING:
    from offsetstore.kafka.broker import Broker

_F = TypeVar("_F", bound="Callable[..., Any] | click.Command")
_T = TypeVar("_T")

_SPARK = "kafka."
_COMPLETION_SECONDS = 2.0
COUNT: Final = click.IntRange(1, 1_000_000)
"""How many of something a list shows."""
READS: Final = "--dashboard-role"
"""The option of `offsetstore grants` for a role that reads."""


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """The values of `database_options`."""

    url: str | None
    schema: str | None

    def open(self, *, otherwise: str = "", role: str = "--role") -> AbstractContextManager[OffsetStore]:
        return open_store(self.url, self.schema, otherwise=otherwise, role=role)

    @contextmanager
    def about(self, group: str | None, *, or_source: bool = False) -> Generator[OffsetStore]:
        """Connect to the store, which must know the group.

        :param group: ``None`` for all groups.
        :param or_source: whether it may be the source of an application's outbox rows.
        """
        with self.open() as store:
            is_known = group is None or store.owner(group) is not None or (or_source and _is_source(store, group))
            if not is_known and or_source:
                fail_unknown_source(store, cast("str", group))
            if not is_known:
                fail_unknown(store, cast("str", group))
            yield store


def _is_source(store: OffsetStore, name: str) -> bool:
    # Imported here: to complete a command, the shell waits for this module.
    from offsetstore.operations.outbox import is_source  # noqa: PLC0415
    from offsetstore.operations.people import ask  # noqa: PLC0415

    return ask(store.database, lambda session: is_source(session, name))


@dataclass(frozen=True, slots=True)
class Kafka:
    """The values of `broker_options`."""

    bootstrap_servers: str | None
    broker_option: tuple[str, ...]
    broker_config: Path | None
    timeout: float
    group: str | None = None

    def connect(self) -> Broker:
        assert self.bootstrap_servers is not None
        return make_broker(self.bootstrap_servers, self.broker_option, self.broker_config, self.timeout)

    def find(self) -> Broker | None:
        return self.connect() if self.bootstrap_servers else None


def together(*options: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Make one decorator of several options; the help lists them in this order."""

    def add(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def gathered(name: str, gather: Callable[[dict[str, Any]], object]) -> Callable[[_F], _F]:
    """Give the command one argument ``name`` for several options, which ``gather`` takes out of its arguments.

    In `together`, it follows these options.
    """

    def add(function: _F) -> _F:
        # click keeps its list of options as an attribute of the function, which `wraps` copies.
        @wraps(cast("Callable[..., Any]", function))
        def command(**given: Any) -> Any:
            given[name] = gather(given)
            return cast("Callable[..., Any]", function)(**given)

        return cast("_F", command)

    return add


def parsed(parse: Callable[[str], _T]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Make a click callback that parses an option's value, or each of its values, unless it is missing.

    :param parse: raises ``ValueError`` with the message.
    """

    def callback(_context: click.Context, _parameter: click.Parameter, value: str | tuple[str, ...] | None) -> Any:
        try:
            return tuple(map(parse, value)) if isinstance(value, tuple) else None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


def name(value: str) -> str:
    """Check the name of a group, a topic or a role.

    :raises ValueError: see its text.
    """
    if not value:
        raise ValueError("a name must not be empty.")
    if (found := misplaced(value)) is not None:
        raise ValueError(f"a name can't have {found}.")
    return value


def _start_time(value: str) -> str | datetime:
    others = ("earliest", "latest", "none")
    return value if value in others else parse_time(value, "earliest, latest, none or ")


def _lag_limit(value: str) -> LagLimit:
    if value.isdecimal():
        return LagLimit(records=int(value))
    try:
        return LagLimit(seconds=parse_duration(value).total_seconds())
    except ValueError as error:
        raise ValueError(f"{value!r} is not a number of records. {error}") from None


def _renaming(value: str) -> tuple[str, str]:
    group, _separator, name = value.partition("=")
    if not group or not name:
        raise ValueError("write GROUP=NAME.")
    return group, name


names = parsed(name)
"""See `name`. This and the following are click callbacks."""
moment = parsed(parse_time)
"""Parse a time with its zone."""
duration = parsed(parse_duration)
"""See `parse_duration`."""
start_time = parsed(_start_time)
"""Parse ``earliest``, ``latest``, ``none``, or a time with its zone."""
lag_limit = parsed(_lag_limit)
"""Parse a number of records, or a duration."""


class Seconds(click.FloatRange):
    """A number of seconds, or a duration such as ``5m``, within bounds."""

    name = "number of seconds, or duration such as 5m"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        with suppress(ValueError):
            value = parse_duration(str(value)).total_seconds()
        seconds: float = super().convert(value, param, ctx)
        if not isfinite(seconds):  # click lets NaN pass any range
            self.fail(f"{value!r} is not a {self.name}.", param, ctx)
        return seconds


def complete_group(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of groups that begin with ``incomplete``; none if the store does not answer in time."""
    url, schema = context.params.get("url"), context.params.get("schema")
    found: list[str] = []

    def ask() -> None:
        # Silent about errors: the shell would show them in the middle of the line that is typed.
        with suppress(Exception), open_store(url, schema) as store:
            names = [name for group in store.groups() if (name := group.group).startswith(incomplete)]
            # A shell would take a name with a space apart.
            found.extend(name for name in names if visible(name) == name and " " not in name)

    # A thread can be left behind: to connect may take longer than a person waits for a completion.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_COMPLETION_SECONDS)
    return sorted(found)


database_options = together(
    click.option(
        "--url",
        metavar="URL",
        envvar="OFFSETSTORE_URL",
        show_envvar=True,
        help="The database: postgresql://user@host/database, a jdbc: URL, or libpq's key=value form. "
        "A password in the variable stays out of the process list.",
    ),
    click.option(
        "--schema",
        metavar="NAME",
        envvar=SCHEMA_VARIABLE,
        show_envvar=True,
        help="Schema of the tables; by default, the connection's search path.",
    ),
    gathered("database", lambda given: DatabaseOptions(given.pop("url"), given.pop("schema"))),
)
"""``--url`` and ``--schema``, as the argument ``database``."""


def _group_option(callback: Callable[..., Any], text: str, *, required: bool) -> Callable[[_F], _F]:
    return click.option(
        "--group",
        "-g",
        required=required,
        callback=callback,
        shell_complete=complete_group,
        metavar="GROUP",
        envvar="OFFSETSTORE_GROUP",
        show_envvar=True,
        help=text,
    )


group_option = _group_option(names, "The consumer group: the job's name.", required=True)
any_group_option = _group_option(names, "The consumer group: the job's name; by default, all groups.", required=False)
"""``--group``, which may be left out."""


def optional_group_option(what: str, *, instead: str) -> Callable[[_F], _F]:
    """``--group``, which may be left out.

    :param what: its help.
    :param instead: the eager option that can be given in its place.
    """

    def check(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        # OFFSETSTORE_GROUP may be set for other commands: it does not contradict the other option.
        is_from_variable = context.get_parameter_source("group") is ParameterSource.ENVIRONMENT
        return None if is_from_variable and context.params[instead] else names(context, parameter, value)

    return _group_option(check, what, required=False)


reason_option = click.option("--reason", required=True, metavar="TEXT", help="Why; recorded in the history.")


def format_option(csv: str = "") -> Callable[[_F], _F]:
    """``--format``.

    :param csv: whom CSV is for, if the command can print it.
    """
    formats = ["table", "json", *(["csv"] if csv else [])]
    text = f"Output for people (table){',' if csv else ' or'} for programs (json){f', or {csv} (csv)' if csv else ''}."
    return click.option(
        "--format", "format_", type=click.Choice(formats), default="table", show_default=True, help=text
    )


def lines_options(noun: str) -> Callable[[_F], _F]:
    """``--since``, ``--limit`` and ``--follow``, for a list with times; `output.print_followed` prints it.

    :param noun: what a line is.
    """
    since = f"Only {noun}s since then (2025-03-01T00:00Z), by the database's clock."
    return together(
        click.option("--since", callback=moment, metavar="TIME", help=since),
        click.option("--limit", "-n", type=click.IntRange(1), metavar="N", help=f"Only the last N {noun}s."),
        click.option("--follow", "-f", is_flag=True, help=f"Keep printing new {noun}s until interrupted."),
    )


kafka_groups_option = together(
    click.option(
        "--kafka-group",
        "kafka_groups",
        multiple=True,
        callback=parsed(_renaming),
        metavar="GROUP=NAME",
        help="The name in Kafka of a group that has a different one there. May be repeated.",
    ),
    gathered("kafka_groups", lambda given: dict(given["kafka_groups"])),
)
"""``--kafka-group`` for many groups, as a mapping."""


def broker_options(*, required: bool, use: str = "", kafka_group: bool = True) -> Callable[[_F], _F]:
    """``--bootstrap-servers`` and how to connect to them, as the argument ``kafka``.

    :param use: what they are for, appended to the help of ``--bootstrap-servers``.
    :param kafka_group: whether there is ``--kafka-group`` too.
    """

    def gather(given: dict[str, Any]) -> Kafka:
        names = ("bootstrap_servers", "broker_option", "broker_config", "timeout")
        return Kafka(**{name: given.pop(name) for name in names}, group=given.pop("kafka_group", None))

    of_kafka = "The group to look up in Kafka; by default, the same as --group."
    return together(
        click.option(
            "--bootstrap-servers",
            "-b",
            required=required,
            metavar="HOST:PORT",
            envvar="OFFSETSTORE_BOOTSTRAP_SERVERS",
            show_envvar=True,
            help=f"The Kafka brokers, separated by commas{use}.",
        ),
        click.option(
            "--broker-option",
            "-o",
            multiple=True,
            metavar="KEY=VALUE",
            help="A librdkafka setting (sasl.username=job); or all of them in Spark's form "
            "(kafka.security.protocol=SASL_SSL). May be repeated.",
        ),
        click.option(
            "--broker-config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="A file of further broker options, one KEY=VALUE per line: for passwords.",
        ),
        *([click.option("--kafka-group", metavar="GROUP", help=of_kafka)] if kafka_group else []),
        click.option(
            "--timeout",
            type=Seconds(0, 3600, min_open=True),
            default=15.0,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait for Kafka's answer.",
        ),
        gathered("kafka", gather),
    )


@contextmanager
def open_store(
    url: str | None, schema: str | None, *, otherwise: str = "", role: str = "--role"
) -> Generator[OffsetStore]:
    """Connect to the store, and close it at the end of the block.

    :param otherwise: the alternative to a database, appended to the error's next step.
    :param role: the option of `offsetstore grants` for the role that connects.
    :raises ConfigurationError: there is no URL.
    """
    with connect(require_url(url, otherwise=otherwise), schema, role=role) as store:
        yield store


def connect(url: str, schema: str | None, *, role: str) -> OffsetStore:
    """Connect to the store.

    :param role: as in `open_store`: if a privilege is missing, the error names the command that grants it.
    """
    try:
        return OffsetStore.connect(url, schema=schema)
    except MissingPrivilege as error:
        raise error.granted_as(role) from error.__cause__


def require_url(url: str | None, *, otherwise: str = "") -> str:
    """Return the URL.

    :raises ConfigurationError: there is none.
    """
    if url:
        return url
    raise ConfigurationError(
        "no database was named",
        found="neither --url nor OFFSETSTORE_URL",
        expected="postgresql://user@host:5432/database",
        next_step=f"Set OFFSETSTORE_URL or pass --url{otherwise}.",
    )


def make_broker(bootstrap_servers: str, options: Sequence[str], config: Path | None, timeout: float) -> Broker:
    """Create a broker from the settings of the command line; this loads librdkafka.

    :raises ConfigurationError: the settings are of both kinds, or one is invalid; only keys are named.
    """
    from offsetstore import Broker  # noqa: PLC0415 - loads confluent_kafka, which most commands don't need

    lines = [] if config is None else config.read_text(encoding="utf-8").splitlines()
    given = dict(_setting(line) for line in lines if line.strip() and not line.lstrip().startswith("#"))
    given |= dict(_setting(option) for option in options)
    if any(key.startswith(_SPARK) for key in given):
        if others := sorted(key for key in given if not key.startswith(_SPARK)):
            raise ConfigurationError(
                "librdkafka and Spark broker options can't be mixed",
                found=f"{', '.join(others)} beside {_SPARK}*",
                expected=f"all in librdkafka's form, or all in Spark's, beginning with {_SPARK}",
            )
        return Broker.from_spark({**given, "kafka.bootstrap.servers": bootstrap_servers}, timeout=timeout)
    return Broker({**given, "bootstrap.servers": bootstrap_servers}, timeout=timeout)


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        # The text may be a password without its key, so it is not repeated.
        raise ConfigurationError(
            "a broker option is not KEY=VALUE", next_step="Write it as security.protocol=SASL_SSL."
        )
    return key.strip(), value.strip()
