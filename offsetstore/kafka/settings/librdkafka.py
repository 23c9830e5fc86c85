"""librdkafka's settings as the user gives them: checked without a connection, never shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from offsetstore.errors import ConfigurationError
from offsetstore.kafka.settings.java import check_token_source

_OTHER_CLIENTS: Final = frozenset({"subscribe", "assign", "subscribePattern", "sasl.jaas.config"})
_OF_PATTERNS: Final = frozenset("^$*+?()[]{}|\\")  # no topic's name can have these
_LEVELS: Final = ("read_uncommitted", "read_committed")  # the first is Kafka's and Spark's default


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
