"""The JAAS line from which Kafka's Java client takes its user name and password."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NoReturn

from offsetstore.errors import ConfigurationError

KEY: Final = "kafka.sasl.jaas.config"

# Java reads the line with a StreamTokenizer: words, "=", ";", and strings in either quote with backslash escapes.
_TOKEN: Final = re.compile(
    r"""\s*(?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>(?:\\.|[^'\\])*)'|(?P<word>[^\s=;"']+)|(?P<mark>[=;]))"""
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_PASSWORD_MODULES: Final = {"PlainLoginModule": ("PLAIN",), "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512")}


@dataclass(frozen=True, slots=True)
class Login:
    """A user name and a password, and the SASL mechanisms that the login module stands for."""

    username: str
    password: str = field(repr=False)
    mechanisms: tuple[str, ...]


def parse_jaas(line: str) -> Login:
    """Read ``…PlainLoginModule required username="…" password="…";``, or the same of ``ScramLoginModule``.

    :raises ConfigurationError: another login module, several of them, no user name or no password, a delegation token
        (librdkafka supports none). The message never holds a value.
    """
    tokens = _tokens(line)
    if not _is_one_module(tokens):
        _refuse("it must name exactly one login module")
    # Without its package: some platforms ship Kafka's classes under another one.
    module = tokens[0].rpartition(".")[2]
    if module not in _PASSWORD_MODULES:
        _refuse(f"unknown login module {module}")
    options = _options(tokens[2:-1])
    if options.get("tokenauth", "").lower() == "true":
        _refuse("librdkafka does not support delegation tokens (tokenauth)")
    if not options.get("username") or not options.get("password"):
        _refuse(f"{module} needs a username and a password")
    return Login(options["username"], options["password"], _PASSWORD_MODULES[module])


def _is_one_module(tokens: list[str]) -> bool:
    match tokens:
        case [_, flag, *options, ";"]:
            return flag.lower() in _FLAGS and ";" not in options
        case _:
            return False


def _tokens(line: str) -> list[str]:
    tokens: list[str] = []
    position, line = 0, line.rstrip()
    while position < len(line):
        match = _TOKEN.match(line, position)
        if match is None:
            _refuse("a quote is not closed")
        quoted = match["double"] if match["double"] is not None else match["single"]
        tokens.append(match["word"] or match["mark"] if quoted is None else _ESCAPE.sub(r"\1", quoted))
        position = match.end()
    return tokens


def _options(tokens: list[str]) -> dict[str, str]:
    if len(tokens) % 3 or any(mark != "=" for mark in tokens[1::3]):
        _refuse("options must be name=value")
    return dict(zip(tokens[0::3], tokens[2::3], strict=True))


def _refuse(what: str) -> NoReturn:
    raise ConfigurationError(
        f"{KEY}: {what}",
        expected='…PlainLoginModule or …ScramLoginModule, required username="…" password="…";',
        next_step="Correct it, or pass librdkafka's own settings: Broker({'sasl.mechanism': …, …}, topics=[…]).",
    )
