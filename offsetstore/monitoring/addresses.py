"""Where a server of ours listens, and what it asks of those who connect from elsewhere."""

from __future__ import annotations

import re
import socket
from collections.abc import Generator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Final

from offsetstore.errors import ConfigurationError
from offsetstore.protocol.numbers import check_whole

SHORTEST_TOKEN: Final = 32
"""Characters."""

MAKE_A_TOKEN: Final = 'Make one: python -c "import secrets; print(secrets.token_urlsafe(32))".'  # noqa: S105 - advice


_SENDABLE: Final = re.compile(r"[!-~]+")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to that address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def family(host: str) -> socket.AddressFamily:
    """The address's family, IPv4 for a name."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def url_host(host: str) -> str:
    """The address as a URL has it."""
    return f"[{host}]" if ":" in host else host


@contextmanager
def listening(what: str, host: str, port: int) -> Generator[None]:
    """Begin to listen in the block.

    :param what: is served, for the message.
    :raises ConfigurationError: it can't listen there.
    """
    check_whole("port", port, most=65535)
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{what} can't be served there",
            found=f"{host}:{port}, {error}",
            expected="a free port and an address of this machine",
            next_step="Choose another one; 0 takes any free port.",
        ) from None


def check_token(token: str | None) -> None:
    """Refuse a token that can be guessed, or that can't be sent.

    :raises ConfigurationError: it is too short, or has other characters than a header can have.
    """
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ConfigurationError(
            "the token is too short",
            found=f"{len(token)} characters",
            expected=f"at least {SHORTEST_TOKEN}",
            next_step=MAKE_A_TOKEN,
        )
    if token is not None and not _SENDABLE.fullmatch(token):
        raise ConfigurationError(
            "the token has characters that can't be sent in a header",
            expected="ASCII letters, digits and punctuation, without blanks",
            next_step=MAKE_A_TOKEN,
        )
