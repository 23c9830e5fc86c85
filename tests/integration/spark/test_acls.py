"""The whole job on a Kafka that allows nothing but what ``offsetstore acls print`` gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from click.testing import CliRunner

from offsetstore import Append, Broker, TopicPartition
from offsetstore.cli.commands import cli
from offsetstore.kafka.acls import Acl
from offsetstore.kafka.admin import create_topic
from offsetstore.local.kafka import KafkaBroker
from tests.support.authorized import JOB, Authorized
from tests.support.transforms import EVENTS, traced
from tests.support.waiting import wait_until
from tests.support.world import World

DEPRECATED = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"


@pytest.fixture
def world(authorized: Authorized, world_of: Callable[[KafkaBroker], World]) -> World:
    return world_of(authorized.kafka)


@pytest.fixture
def topic(authorized: Authorized) -> str:
    name = f"topic-{uuid4().hex[:12]}"
    create_topic(authorized.kafka.bootstrap_servers, name, partitions=2)
    return name


@pytest.fixture
def broker(authorized: Authorized) -> Iterator[Broker]:
    broker = authorized.broker()
    yield broker
    broker.close()


def printed(topic: str, group: str, *more: str) -> list[Acl]:
    """What ``acls print`` gives, as values."""
    arguments = ["acls", "print", "--principal", JOB, "-t", topic, "-g", group, *more, "--format", "json"]
    fields = ("principal", "resource", "name", "operation", "pattern")
    documents = json.loads(CliRunner().invoke(cli, arguments).stdout)["acls"]
    return [Acl(*(document[name] for name in fields)) for document in documents]


@pytest.mark.behaviour("OPS-14")
def test_the_job_and_its_mirror_run_with_exactly_the_acls_that_are_printed(
    world: World, authorized: Authorized, broker: Broker, topic: str, request: pytest.FixtureRequest
) -> None:
    world.database.execute(EVENTS)
    for partition in range(2):
        world.produce(topic, ["a", "b", "c"], partition=partition)
    prefix = f"jobs-{uuid4().hex[:8]}"
    acls = printed(topic, world.group, "--spark-groups", prefix)
    authorized.allow(*acls)
    wait_until(lambda: broker.missing_acls(acls) == ())

    claim = world.store.claim(world.group, broker, topics=[topic])
    reader = world.spark.readStream.format("kafka").options(**authorized.options(), subscribe=topic)
    stream = reader.option("startingOffsets", claim.starting_offsets).load()
    world.run(claim, traced, Append("events"), stream=stream, atomicity="partition")
    claim.close()  # a job that ends in order copies its offsets

    assert world.database.column("SELECT value FROM events ORDER BY value") == ["a", "a", "b", "b", "c", "c"]
    committed = broker.view(world.group, [topic]).committed
    assert {tp: each.next_offset for tp, each in committed.items()} == {
        TopicPartition(topic, 0): 3,
        TopicPartition(topic, 1): 3,
    }
    # Spark's consumers joined no group, and had none to be allowed.
    assert [name for name in authorized.groups() if name.startswith(("spark-kafka-source", prefix))] == []

    # Those of the deprecated reader do. A read without a stream asks for its ends in the same way.
    request.addfinalizer(lambda: world.spark.conf.unset(DEPRECATED))
    world.spark.conf.set(DEPRECATED, "true")
    options = {**authorized.options(), "subscribe": topic, "groupIdPrefix": prefix}
    assert world.spark.read.format("kafka").options(**options).load().count() == 6
    assert [name for name in authorized.groups() if name.startswith(f"{prefix}-")]
