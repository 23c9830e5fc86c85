"""A pytest plugin: with ``-p tests.matrix.broker_version --broker-version=3.9.2`` all brokers have that version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offsetstore.local import kafka
from offsetstore.local.jars import KAFKA_BROKER, Artifact, JarSet


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--broker-version", required=True, metavar="VERSION", help="of all brokers of the run")


def pytest_configure(config: pytest.Config) -> None:
    """Replace the broker's jars for this process."""
    setattr(kafka, "KAFKA_BROKER", kafka_broker(str(config.getoption("--broker-version"))))  # noqa: B010 - no assignment to a constant


def kafka_broker(version: str) -> JarSet:
    """Return the jars of a broker of that version."""
    broker, binding = KAFKA_BROKER.artifacts
    # Kafka 3 and 4.0 do not bring log4j 2, and Kafka 3 asks for classes of log4j 1.
    missing = ("log4j-api", "log4j-core", "log4j-1.2-api") if version.startswith(("3.", "4.0.")) else ()
    log4j = (Artifact(binding.organisation, name, binding.revision, transitive=False) for name in missing)
    return replace(KAFKA_BROKER, artifacts=(replace(broker, revision=version), binding, *log4j))
