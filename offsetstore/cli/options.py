"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, cast

import click
from click.core import ParameterSource

from offsetstore.errors import ConfigurationError
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.group_status import LagLimit
from offsetstore.postgres.url import SCHEMA_VARIABLE
from offsetstore.protocol.texts import misplaced
from offsetstore.text import parse_duration, parse_time

if TYPE_CHECKING:
    from offsetstore.kafka.broker import Broker

_F = TypeVar("_F", bound="Callable[..., Any] | click.Command")

_GROUP: Final = "OFFSETSTORE_GROUP"
_SPARK = "kafka."
_LAG: Final = re.compile(r"(\d+)([smhd])?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_COMPLETION_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Database:
    """The values of `database_options`."""

    url: str | None
    schema: str | None

    def open(self, *, otherwise: str = "") -> AbstractContextManager[OffsetStore]:
        """Connect to the store; see `open_store`."""
        return open_store(self.url, self.schema, otherwise=otherwise)


@dataclass(frozen=True, slots=True)
class Kafka:
    """The values of `broker_options`."""

    bootstrap_servers: str | None
    broker_option: tuple[str, ...]
    broker_config: Path | None
    timeout: float
    group: str | None = None

    def connect(self) -> Broker:
        """Create the broker; see `make_broker`."""
        assert self.bootstrap_servers is not None
        return make_broker(self.bootstrap_servers, self.broker_option, self.broker_config, self.timeout)

    def find(self) -> Broker | None:
        """Create the broker if one was named."""
        return self.connect() if self.bootstrap_servers else None


class How(TypedDict):
    """How a decision is carried out, for the methods of `OffsetStore`."""

    reason: str
    dry_run: bool
    if_plan: str | None


def gathered(function: _F, name: str, gather: Callable[[dict[str, Any]], object]) -> _F:
    """Give the command one argument for several options, which ``gather`` takes out of those that are given."""

    @wraps(cast("Callable[..., Any]", function))
    def command(**given: Any) -> Any:
        given[name] = gather(given)
        return cast("Callable[..., Any]", function)(**given)

    return cast("_F", command)


def database_options(function: _F) -> _F:
    """``--url`` and ``--schema``, as the argument ``database``."""
    function = gathered(function, "database", lambda given: Database(given.pop("url"), given.pop("schema")))
    function = click.option(
        "--schema",
        metavar="NAME",
        envvar=SCHEMA_VARIABLE,
        show_envvar=True,
        help="Schema of the tables; by default, the connection's search path.",
    )(function)
    return click.option(
        "--url",
        metavar="URL",
        envvar="OFFSETSTORE_URL",
        show_envvar=True,
        help="The database: postgresql://user@host/database, a jdbc: URL, or libpq's key=value form. "
        "A password in the variable stays out of the process list.",
    )(function)


def group_option(function: _F) -> _F:
    """``--group``."""
    return click.option(
        "--group",
        "-g",
        required=True,
        callback=names,
        shell_complete=complete_group,
        metavar="GROUP",
        envvar=_GROUP,
        show_envvar=True,
        help="The consumer group: the job's name.",
    )(function)


def optional_group_option(what: str, *, instead: str) -> Callable[[_F], _F]:
    """``--group``, which may be left out.

    :param what: its help.
    :param instead: the eager option that is given in its place; the variable then names no group.
    """

    def check(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        is_from_variable = context.get_parameter_source("group") is ParameterSource.ENVIRONMENT
        return None if is_from_variable and context.params[instead] else optional_name(context, parameter, value)

    return click.option(
        "--group",
        "-g",
        callback=check,
        shell_complete=complete_group,
        metavar="GROUP",
        envvar=_GROUP,
        show_envvar=True,
        help=what,
    )


def reason_option(function: _F) -> _F:
    """``--reason``."""
    return click.option("--reason", required=True, metavar="TEXT", help="Why; recorded in the history.")(function)


def execute_options(function: _F) -> _F:
    """``--reason``, ``--execute`` and ``--if-plan``, as the argument ``how``."""
    function = gathered(
        function,
        "how",
        lambda given: How(reason=given.pop("reason"), dry_run=not given.pop("execute"), if_plan=given.pop("if_plan")),
    )
    function = _if_plan_option("execute", needs=True)(function)
    return reason_option(
        click.option("--execute", is_flag=True, is_eager=True, help="Do it; without this nothing is written.")(function)
    )


def dry_run_options(function: _F) -> _F:
    """``--reason``, ``--dry-run`` and ``--if-plan``, for a command that does what it says at once."""
    function = gathered(
        function,
        "how",
        lambda given: How(reason=given.pop("reason"), dry_run=given.pop("dry_run"), if_plan=given.pop("if_plan")),
    )
    function = _if_plan_option("dry_run", needs=False)(function)
    return reason_option(
        click.option("--dry-run", is_flag=True, is_eager=True, help="Print the plan; nothing is written.")(function)
    )


def _if_plan_option(flag: str, *, needs: bool) -> Callable[[_F], _F]:
    """``--if-plan``.

    :param flag: the eager option that has to be given with it, or must not be.
    """

    def check(context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and context.params[flag] is not needs:
            raise click.UsageError(
                "--if-plan goes with --execute: without it nothing is done."
                if needs
                else "--if-plan does not go with --dry-run, which does nothing."
            )
        return value

    return click.option(
        "--if-plan",
        metavar="DIGEST",
        callback=check,
        help="Do it only if the plan is still the one that was printed with this digest.",
    )


def lines_options(noun: str) -> Callable[[_F], _F]:
    """``--since``, ``--limit`` and ``--follow``, for a list with times; `output.print_followed` prints it.

    :param noun: what a line is.
    """

    def add(function: _F) -> _F:
        function = click.option("--follow", "-f", is_flag=True, help=f"Keep printing new {noun}s until interrupted.")(
            function
        )
        function = click.option("--limit", "-n", type=click.IntRange(1), metavar="N", help=f"Only the last N {noun}s.")(
            function
        )
        return click.option(
            "--since",
            callback=moment,
            metavar="TIME",
            help=f"Only {noun}s since then (2025-03-01T00:00Z), by the database's clock.",
        )(function)

    return add


def format_option(function: _F) -> _F:
    """``--format``."""
    return _format(["table", "json"], "Output for people (table) or for programs (json).")(function)


def format_or_csv_option(function: _F) -> _F:
    """``--format``, with the CSV of kafka-consumer-groups."""
    return _format(
        ["table", "json", "csv"],
        "Output for people (table), for programs (json), or as --from-file reads it (csv).",
    )(function)


def _format(formats: Sequence[str], text: str) -> Callable[[_F], _F]:
    return click.option(
        "--format", "format_", type=click.Choice(formats), default="table", show_default=True, help=text
    )


def kafka_groups_option(function: _F) -> _F:
    """``--kafka-group`` for many groups, as a mapping."""

    def parse(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
        pairs = [value.partition("=") for value in values]
        if any(not group or not name for group, _separator, name in pairs):
            raise click.BadParameter("write GROUP=NAME.")
        return {group: name for group, _separator, name in pairs}

    return click.option(
        "--kafka-group",
        "kafka_groups",
        multiple=True,
        callback=parse,
        metavar="GROUP=NAME",
        help="The name in Kafka of a group that has a different one there. May be repeated.",
    )(function)


def broker_options(*, required: bool, use: str = "", kafka_group: bool = True) -> Callable[[_F], _F]:
    """``--bootstrap-servers`` and how to connect to them, as the argument ``kafka``.

    :param use: what they are for, appended to the help of ``--bootstrap-servers``.
    :param kafka_group: whether there is ``--kafka-group`` too.
    """

    def gather(given: dict[str, Any]) -> Kafka:
        names = ("bootstrap_servers", "broker_option", "broker_config", "timeout")
        return Kafka(**{name: given.pop(name) for name in names}, group=given.pop("kafka_group", None))

    def add(function: _F) -> _F:
        function = gathered(function, "kafka", gather)
        function = click.option(
            "--timeout",
            type=click.FloatRange(0, 3600, min_open=True),
            default=15.0,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait for Kafka's answer.",
        )(function)
        if kafka_group:
            function = click.option(
                "--kafka-group", metavar="GROUP", help="The group to look up in Kafka; by default, the same as --group."
            )(function)
        function = click.option(
            "--broker-config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="A file of further broker options, one KEY=VALUE per line: for passwords.",
        )(function)
        function = click.option(
            "--broker-option",
            "-o",
            multiple=True,
            metavar="KEY=VALUE",
            help="A librdkafka setting (sasl.username=job); or all of them in Spark's form "
            "(kafka.security.protocol=SASL_SSL). May be repeated.",
        )(function)
        return click.option(
            "--bootstrap-servers",
            "-b",
            required=required,
            metavar="HOST:PORT",
            envvar="OFFSETSTORE_BOOTSTRAP_SERVERS",
            show_envvar=True,
            help=f"The Kafka brokers, separated by commas{use}.",
        )(function)

    return add


def complete_group(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The groups of the store that begin with this, for the shell; none if the store does not answer in time.

    It is silent about errors: the shell would show them in the middle of the line that is typed. Names that a shell
    would take apart are left out.
    """
    url, schema = context.params.get("url"), context.params.get("schema")
    found: list[str] = []

    def ask() -> None:
        with suppress(Exception), open_store(url, schema) as store:
            found.extend(name for one in store.groups() if _is_plain(name := one.group, incomplete))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_COMPLETION_SECONDS)
    return sorted(found)


def _is_plain(name: str, beginning: str) -> bool:
    return name.startswith(beginning) and name.isprintable() and " " not in name


def names(_context: click.Context, _parameter: click.Parameter, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Check the name of a group, a topic or a role; a click callback."""
    for name in [value] if isinstance(value, str) else value:
        if not name:
            raise click.BadParameter("a name must not be empty.")
        if (found := misplaced(name)) is not None:
            raise click.BadParameter(f"a name can't have {found}.")
    return value


def optional_name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check a name that may be left out; a click callback."""
    if value is not None:
        names(context, parameter, value)
    return value


def start_time(_context: click.Context, _parameter: click.Parameter, value: str) -> str | datetime:
    """Parse ``earliest``, ``latest``, ``none``, or a time with its zone; a click callback."""
    if value in {"earliest", "latest", "none"}:
        return value
    return _time(value, "earliest, latest, none or ")


def moment(_context: click.Context, _parameter: click.Parameter, value: str | None) -> datetime | None:
    """Parse a time with its zone; a click callback."""
    return None if value is None else _time(value, "")


def duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> timedelta | None:
    """Parse an ISO 8601 duration as kafka-consumer-groups takes it, from days to seconds; a click callback."""
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _time(value: str, others: str) -> datetime:
    try:
        return parse_time(value, others)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def lag_limit(_context: click.Context, _parameter: click.Parameter, value: str | None) -> LagLimit | None:
    """Parse a number of records, or a time such as ``5m``; a click callback."""
    if value is None:
        return None
    found = _LAG.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is neither a number of records nor a time such as 90s, 5m, 2h or 1d.")
    number, unit = int(found[1]), found[2]
    return LagLimit(records=number) if unit is None else LagLimit(seconds=number * _SECONDS[unit])


@contextmanager
def open_store(url: str | None, schema: str | None, *, otherwise: str = "") -> Generator[OffsetStore]:
    """Connect to the store, and close it at the end of the block.

    :param otherwise: the alternative to a database, appended to the error's next step.
    :raises ConfigurationError: there is no URL.
    """
    with OffsetStore.connect(require_url(url, otherwise=otherwise), schema=schema) as store:
        yield store


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
