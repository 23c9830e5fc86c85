"""Kafka's own command line, ``kafka-consumer-groups``, as operators run it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from offsetstore.local.jars import KAFKA_VERSION, Artifact, JarSet, jars
from offsetstore.local.java import QUICK
from offsetstore.local.kafka import KafkaBroker

# What the broker's own jars lack of Kafka's command line.
KAFKA_TOOLS = JarSet("kafka-tools", (Artifact("org.apache.kafka", "kafka-tools", KAFKA_VERSION, transitive=False),))


def kafkas_java() -> list[str]:
    """Java with Kafka's tools on its class path; the archive of a broker's classes takes half of the time to start."""
    *java, class_path = KafkaBroker()._launcher
    return [*java, os.pathsep.join([class_path, *map(str, jars(KAFKA_TOOLS))]), *QUICK.split(), "-Xmx128m"]


def consumer_groups_tool(kafka: KafkaBroker, group: str) -> dict[tuple[str, str], dict[str, str]]:
    """What Kafka's own tool shows of a group: its columns, by topic and partition."""
    shown = _run("--bootstrap-server", kafka.bootstrap_servers, "--group", group, "--describe")
    lines = [line.split() for line in shown.splitlines() if line.strip() and " has no active " not in line]
    names, *rows = lines
    columns = [dict(zip(names, row, strict=False)) for row in rows]
    return {(row["TOPIC"], row["PARTITION"]): row for row in columns}


def set_offsets_by_tool(kafka: KafkaBroker, group: str, topic: str, offsets: Mapping[int, int], scratch: Path) -> None:
    """Set a group's offsets, by partition."""
    wanted = scratch / "offsets.csv"
    wanted.write_text("".join(f"{topic},{partition},{offset}\n" for partition, offset in offsets.items()))
    reset_by_tool(kafka, group, "--from-file", str(wanted), "--execute")


def reset_by_tool(kafka: KafkaBroker, group: str, *arguments: str) -> str:
    """Reset a group's offsets; return what is printed."""
    return _run("--bootstrap-server", kafka.bootstrap_servers, "--group", group, "--reset-offsets", *arguments)


def options_of_tool() -> set[str]:
    """The names of its options, as its help lists them."""
    return set(re.findall(r"^(--[a-z][a-z-]+)", _run("--help", exit_code=1), re.MULTILINE))


def _run(*arguments: str, exit_code: int = 0) -> str:
    """Return what it prints; its help comes with an exit code of 1, and on stderr."""
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    done = subprocess.run(
        [*kafkas_java(), tool, "--timeout", "60000", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == exit_code, done.stderr
    return done.stdout or done.stderr
