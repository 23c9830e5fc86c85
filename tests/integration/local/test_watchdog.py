"""Servers end with the process that started them, however it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from offsetstore.local.servers import is_process_of
from tests.support.waiting import wait_until

POSTGRES = "from offsetstore.local.postgres import PostgresServer as Server; server = Server(durability='none').start()"
KAFKA = "from offsetstore.local.kafka import KafkaBroker as Server; server = Server().start()"
THEN_WAIT = "print(server.pid, server.directory, flush=True); input()"


@pytest.mark.parametrize("start", [POSTGRES, KAFKA], ids=["postgres", "kafka"])
def test_a_server_ends_when_its_owner_is_killed(start: str) -> None:
    command = [sys.executable, "-c", f"{start}; {THEN_WAIT}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, where = owner.stdout.readline().split()
        assert is_process_of(int(pid), Path(where))
        owner.kill()
    wait_until(lambda: not (is_process_of(int(pid), Path(where)) or Path(where).exists()))
