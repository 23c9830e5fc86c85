"""TCP ports on the loopback that stay ours while a server is down."""

from __future__ import annotations

import secrets
import socket

from offsetstore.errors import ConfigurationError

LOOPBACK = "127.0.0.1"

# Below the ephemeral ranges of Linux (32768) and macOS (49152). While our server restarts, any outgoing connection can
# take an ephemeral port, even our own client's, which retries and is then connected to itself.
_FIRST, _LAST = 20_000, 32_000
_ATTEMPTS = 100


def free_port() -> int:
    """Find a port that is free now. It is not reserved: a server may still find it taken.

    :raises ConfigurationError: the loopback has none.
    """
    for _ in range(_ATTEMPTS):
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if is_free(port):
            return port
    raise ConfigurationError(
        "no free TCP port on the loopback",
        found=f"{_ATTEMPTS} ports in use",
        expected=f"one between {_FIRST} and {_LAST}",
        next_step="Check what listens there (`ss -ltn`), and that this process may open sockets.",
    )


def is_free(port: int) -> bool:
    """Whether a server could bind the port. Connections of an earlier server that are still closing do not matter."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def answers(port: int, *, timeout: float = 0.5) -> bool:
    """Whether something on the loopback accepts a connection."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout):
            return True
    except OSError:
        return False
