"""A broker client's settings: librdkafka's as the user gives them, or from the options of Spark's Kafka reader.

They are checked without a connection, and never shown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from offsetstore.errors import ConfigurationError, UnsupportedQuery
from offsetstore.kafka.java_settings import PREFIX, check_token_source, librdkafka_settings
from offsetstore.protocol.starting import check_reader, spark_boolean

_OTHER_CLIENTS: Final = frozenset({"subscribe", "assign", "subscribePattern", "sasl.jaas.config"})
_OF_PATTERNS: Final = frozenset("^$*+?()[]{}|\\")  # no topic's name can have these
_LEVELS: Final = ("read_uncommitted", "read_committed")  # the first is Kafka's and Spark's default
_CONNECT: Final = "SPARK_CONNECT_MODE_ENABLED"
_SOURCES: Final = ("subscribe", "assign", "subscribepattern")


class ClientSettings:
    """Settings for an admin client, of which only the address is shown: any other could be a secret.

    ``config`` goes to librdkafka. ``read_committed`` is ``isolation.level``, which an admin client takes with each
    request instead.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        """Copy and check the settings.

        :raises ConfigurationError: no address, a setting of Spark's or Java's, ``error_cb``, ``default.topic.config``,
            a wrong isolation level, OAUTHBEARER without a source of tokens.
        """
        for key in given:
            if key.startswith("kafka.") or key in _OTHER_CLIENTS:
                raise ConfigurationError(
                    f"{key} is a setting of Spark's reader or of the Java client",
                    expected="librdkafka's settings",
                    next_step="Use Broker.from_spark(…).",
                )
        if "default.topic.config" in given:
            raise ConfigurationError(
                "default.topic.config overrides all other settings, also those that offsetstore makes",
                expected="its settings beside the others",
                next_step="Move each of them out of it.",
            )
        if "error_cb" in given:
            raise ConfigurationError(
                "error_cb is reserved: a Broker uses it to detect wrong credentials",
                next_step="Leave it out, and catch BrokerError instead.",
            )
        check_token_source(given)
        self.address: Final = str(given.get("bootstrap.servers") or given.get("metadata.broker.list") or "").strip()
        if not self.address:
            raise ConfigurationError(
                "bootstrap.servers is missing", next_step='Give at least {"bootstrap.servers": "host:9092"}.'
            )
        level = str(given.get("isolation.level", _LEVELS[0])).strip().lower()
        if level not in _LEVELS:
            raise ConfigurationError(
                "isolation.level is not one of Kafka's",
                expected=" | ".join(_LEVELS),
                next_step="Give the same as the job.",
            )
        self.read_committed: Final = level == "read_committed"
        self.config: Final[Mapping[str, Any]] = {
            **{key: value for key, value in given.items() if key != "isolation.level"},
            # An admin client counts as a producer, whose default is True: asking for a misspelt topic could create it.
            "allow.auto.create.topics": False,
        }

    def __repr__(self) -> str:
        return f"{{'bootstrap.servers': {self.address!r}, …}}"


def topic_names(topics: Collection[str]) -> tuple[str, ...]:
    """Put names into a tuple, each once.

    :raises ConfigurationError: a string instead of a list, an empty name, or a pattern.
    """
    if isinstance(topics, str) or not all(topics):
        raise ConfigurationError("topics must be a list of names", found=repr(topics), expected='["payments"]')
    if patterns := [name for name in topics if name != "*" and not _OF_PATTERNS.isdisjoint(name)]:  # ACLs have a "*"
        raise ConfigurationError(
            "topics must be names: patterns are not supported",
            found=", ".join(map(repr, patterns)),
            expected='["payments", "refunds"]',
            next_step="List the topics; start again to read one that is created later.",
        )
    return tuple(dict.fromkeys(topics))


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """The options of Spark's reader that concern a broker client.

    ``topics`` is ``None`` if the options name none. ``partitions`` holds the partitions that ``assign`` names: Spark
    reads only those, and refuses starting offsets of any other. ``settings`` may hold passwords and is never shown.
    ``headers`` says whether the reader has a column with them.
    """

    settings: Mapping[str, str] = field(repr=False)
    topics: tuple[str, ...] | None = None
    partitions: Mapping[str, frozenset[int]] | None = None
    headers: bool = False


def read_options(options: Mapping[str, object]) -> ReaderOptions:
    """Take what a broker client needs from the reader's options; Spark's own tuning is left to Spark.

    As in Spark, the case of keys does not matter, and values become text as in PySpark.

    :raises ConfigurationError: a setting can't be translated, a boolean is not one, or topics are given twice, by a
        pattern, or by no name.
    :raises UnsupportedQuery: ``failOnDataLoss=false``, an option that overrides ``startingOffsets``, or Spark Connect.
    """
    # Here, before a job is fenced. pyspark itself sets the variable.
    if _CONNECT in os.environ:
        raise UnsupportedQuery(
            "the sink can't run on Spark Connect: it needs the claim in the driver's process",
            found=f"{_CONNECT} is set",
            expected="a classic session",
            next_step="Run the job with spark-submit, or with SparkSession.builder.master(...).",
        )
    lowered = {
        key.lower(): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in options.items()
        if value is not None
    }
    check_reader(lambda name: lowered.get(name.lower()))
    topics, partitions = _topics(lowered)
    kafka = {key.removeprefix(PREFIX): value for key, value in lowered.items() if key.startswith(PREFIX)}
    headers = spark_boolean("includeHeaders", lowered.get("includeheaders", "false"))
    return ReaderOptions(librdkafka_settings(kafka), topics, partitions, headers)


def _topics(options: Mapping[str, str]) -> tuple[tuple[str, ...] | None, dict[str, frozenset[int]] | None]:
    sources = [name for name in _SOURCES if name in options]
    if "subscribepattern" in sources:
        raise ConfigurationError(
            "subscribePattern can't be used: its topics are only known while Spark runs, and can change "
            "from batch to batch",
            expected="topics by name",
            next_step='Name the topics: "subscribe": "payments,refunds".',
        )
    if len(sources) > 1:
        raise ConfigurationError(
            "the topics are named twice", found=sources, expected="subscribe or assign", next_step="Remove one of them."
        )
    if "subscribe" in options:
        topics = tuple(dict.fromkeys(name.strip() for name in options["subscribe"].split(",") if name.strip()))
        if not topics:
            raise ConfigurationError(
                "subscribe names no topic", found=repr(options["subscribe"]), expected="names, separated by commas"
            )
        return topics, None
    if "assign" in options:
        partitions = _assigned(options["assign"])
        return tuple(partitions), partitions
    return None, None


def _assigned(text: str) -> dict[str, frozenset[int]]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict) and parsed:
        entries = cast("dict[str, Any]", parsed)
        if all(_is_partitions(numbers) for numbers in entries.values()):
            return {topic: frozenset(numbers) for topic, numbers in entries.items()}
    raise ConfigurationError(
        "assign does not name partitions",
        found=text,
        expected='JSON such as {"payments": [0, 1]}',
        next_step="Correct it, or use subscribe.",
    )


def _is_partitions(value: Any) -> bool:
    numbers = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(numbers) and all(type(number) is int and number >= 0 for number in numbers)
