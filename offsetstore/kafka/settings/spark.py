"""Translate the options of Spark's Kafka reader into librdkafka's settings and the topics to read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from offsetstore.errors import ConfigurationError, UnsupportedQuery
from offsetstore.kafka.settings.java import PREFIX, librdkafka_settings
from offsetstore.protocol.starting import check_reader, spark_boolean

_CONNECT: Final = "SPARK_CONNECT_MODE_ENABLED"
_SOURCES: Final = ("subscribe", "assign", "subscribepattern")


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
    _refuse_connect()
    lowered = {key.lower(): _text(value) for key, value in options.items() if value is not None}
    check_reader(lambda name: lowered.get(name.lower()))
    topics, partitions = _topics(lowered)
    kafka = {key.removeprefix(PREFIX): value for key, value in lowered.items() if key.startswith(PREFIX)}
    headers = spark_boolean("includeHeaders", lowered.get("includeheaders", "false"))
    return ReaderOptions(librdkafka_settings(kafka), topics, partitions, headers)


def _refuse_connect() -> None:
    # Here, before a job is fenced. pyspark itself sets the variable.
    if _CONNECT in os.environ:
        raise UnsupportedQuery(
            "the sink can't run on Spark Connect: it needs the claim in the driver's process",
            found=f"{_CONNECT} is set",
            expected="a classic session",
            next_step="Run the job with spark-submit, or with SparkSession.builder.master(...).",
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
