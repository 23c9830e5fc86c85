"""Kafka's own command line, for a shell to find."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from offsetstore.local.spark.artifacts import KAFKA_BROKER
from offsetstore.local.spark.jars import jars
from offsetstore.local.spark.java import QUICK, find_java
from tests.support.consumer_groups import KAFKA_TOOLS

_PROGRAMS: Final = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}

_PATIENCE: Final = {"kafka-consumer-groups": ("--timeout", "60000")}  # it waits five seconds, the others a minute


def install_kafka_tools(directory: Path) -> None:
    """Put the programs into the directory."""
    class_path = os.pathsep.join(str(jar) for jar in (*jars(KAFKA_TOOLS), *jars(KAFKA_BROKER)))
    java = [str(find_java().program), *QUICK.split(), "-Xmx128m", "-cp", class_path]
    for name, main in _PROGRAMS.items():
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join([*java, main])} "$@" {shlex.join(_PATIENCE.get(name, ()))}\n')
        program.chmod(0o755)
