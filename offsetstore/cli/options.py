"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from offsetstore.errors import ConfigurationError
from offsetstore.store.store import OffsetStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from offsetstore.kafka.broker import Broker

_F = TypeVar("_F", bound="Callable[..., Any] | click.Command")

_SPARK = "kafka."


def database_options(function: _F) -> _F:
    """``--url`` and ``--schema``."""
    function = click.option(
        "--schema", metavar="NAME", help="Schema of the tables; by default, the connection's search path."
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
        "--group", "-g", required=True, callback=names, metavar="GROUP", help="The consumer group: the job's name."
    )(function)


def reason_option(function: _F) -> _F:
    """``--reason``."""
    return click.option("--reason", required=True, metavar="TEXT", help="Why; recorded in the history.")(function)


def format_option(function: _F) -> _F:
    """``--format``."""
    return click.option(
        "--format",
        "format_",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output for people (table) or for programs (json).",
    )(function)


def broker_options(*, required: bool, use: str = "") -> Callable[[_F], _F]:
    """``--bootstrap-servers`` and how to connect to them; `make_broker` takes the values.

    :param use: what they are for, appended to the help of ``--bootstrap-servers``.
    """

    def add(function: _F) -> _F:
        function = click.option(
            "--timeout",
            type=click.FloatRange(0, 3600, min_open=True),
            default=15.0,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait for Kafka's answer.",
        )(function)
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


def names(_context: click.Context, _parameter: click.Parameter, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Check the name of a group, a topic or a role; a click callback."""
    if any(not name or "\0" in name for name in ([value] if isinstance(value, str) else value)):
        raise click.BadParameter("a name must not be empty.")
    return value


def start_time(_context: click.Context, _parameter: click.Parameter, value: str) -> str | datetime:
    """Parse ``earliest``, ``latest``, ``none``, or a time with its zone; a click callback."""
    if value in {"earliest", "latest", "none"}:
        return value
    return _time(value, "earliest, latest, none or ")


def moment(_context: click.Context, _parameter: click.Parameter, value: str | None) -> datetime | None:
    """Parse a time with its zone; a click callback."""
    return None if value is None else _time(value, "")


def _time(value: str, others: str) -> datetime:
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not {others}a time such as 2025-03-01T00:00Z.") from None
    if time.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone; write 2025-03-01T00:00Z or 2025-03-01T00:00+01:00.")
    return time


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
