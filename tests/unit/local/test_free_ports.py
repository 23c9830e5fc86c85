"""Ports that stay ours while a server restarts."""

from __future__ import annotations

import socket

from offsetstore.local.free_ports import LOOPBACK, answers, free_port, is_free


def test_a_port_is_free_until_somebody_listens_there() -> None:
    port = free_port()
    assert is_free(port)
    assert not answers(port)
    with socket.create_server((LOOPBACK, port)):
        assert not is_free(port)
        assert answers(port)


def test_ports_are_below_those_of_outgoing_connections() -> None:
    assert all(20_000 <= free_port() < 32_000 for _ in range(50))
