"""Kafka's own command line, ``kafka-consumer-groups``, as operators run it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from offsetstore.local.spark.artifacts import KAFKA_BROKER, KAFKA_VERSION, Artifact, JarSet
from offsetstore.local.spark.jars import jars
from offsetstore.local.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offsetstore.local.kafka.server import KafkaBroker

# What the broker's own jars lack of Kafka's command line.
KAFKA_TOOLS = JarSet("kafka-tools", (Artifact("org.apache.kafka", "kafka-tools", KAFKA_VERSION, transitive=False),))


def consumer_groups_tool(kafka: KafkaBroker, group: str) -> dict[tuple[str, str], dict[str, str]]:
    """What Kafka's own tool shows of a group: its columns, by topic and partition."""
    names, *rows = _run(kafka, group, "--describe")
    shown = [dict(zip(names, row, strict=False)) for row in rows]
    return {(row["TOPIC"], row["PARTITION"]): row for row in shown}


def set_offsets_by_tool(kafka: KafkaBroker, group: str, topic: str, offsets: Mapping[int, int], scratch: Path) -> None:
    """Set a group's offsets, by partition."""
    wanted = scratch / "offsets.csv"
    wanted.write_text("".join(f"{topic},{partition},{offset}\n" for partition, offset in offsets.items()))
    _run(kafka, group, "--reset-offsets", "--from-file", str(wanted), "--execute")


def _run(kafka: KafkaBroker, group: str, *arguments: str) -> list[list[str]]:
    class_path = os.pathsep.join(str(jar) for jar in (*jars(KAFKA_TOOLS), *jars(KAFKA_BROKER)))
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    asked = ["--bootstrap-server", kafka.bootstrap_servers, "--group", group, *arguments]
    done = subprocess.run(
        [find_java().program, "-Xmx128m", "-cp", class_path, tool, *asked],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [line.split() for line in done.stdout.splitlines() if line.strip() and " has no active " not in line]
