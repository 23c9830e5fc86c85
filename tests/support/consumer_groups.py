"""Kafka's own command line, ``kafka-consumer-groups``, as operators run it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from offsetstore.local.artifacts import KAFKA_BROKER, KAFKA_VERSION, Artifact, JarSet
from offsetstore.local.jars import jars
from offsetstore.local.java import find_java

if TYPE_CHECKING:
    from offsetstore.local.kafka import KafkaBroker

# What the broker's own jars lack of Kafka's command line.
KAFKA_TOOLS = JarSet("kafka-tools", (Artifact("org.apache.kafka", "kafka-tools", KAFKA_VERSION, transitive=False),))


def consumer_groups_tool(kafka: KafkaBroker, group: str) -> dict[tuple[str, str], dict[str, str]]:
    """What Kafka's own tool shows of a group: its columns, by topic and partition."""
    class_path = os.pathsep.join(str(jar) for jar in (*jars(KAFKA_TOOLS), *jars(KAFKA_BROKER)))
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--describe", "--group", group]
    done = subprocess.run(
        [find_java().program, "-Xmx128m", "-cp", class_path, tool, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    names, *rows = [line.split() for line in done.stdout.splitlines() if line.strip() and " has no active " not in line]
    shown = [dict(zip(names, row, strict=False)) for row in rows]
    return {(row["TOPIC"], row["PARTITION"]): row for row in shown}
