"""Kafka's own command line, for a shell to find."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from tests.support.consumer_groups import kafkas_java

_PROGRAMS: Final = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}

_PATIENCE: Final = {"kafka-consumer-groups": ("--timeout", "60000")}  # it waits five seconds, the others a minute


def install_kafka_tools(directory: Path) -> None:
    """Put the programs into the directory."""
    java = kafkas_java()
    for name, main in _PROGRAMS.items():
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join([*java, main])} "$@" {shlex.join(_PATIENCE.get(name, ()))}\n')
        program.chmod(0o755)
