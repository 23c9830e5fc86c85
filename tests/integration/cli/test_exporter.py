"""``offsetstore exporter`` as a process, through outages of its database and its Kafka."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from offsetstore import Broker, OffsetStore, TopicPartition
from offsetstore.kafka.admin import NewRecord, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.testing.fixtures import NewTopic
from tests.integration.cli.conftest import advance, blocks, words
from tests.support.consumer_groups import consumer_groups_tool
from tests.support.waiting import wait_until

GROUP = "billing"


@pytest.fixture
def topic(offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic) -> str:
    """Ten records in each of two partitions."""
    name = offsetstore_topic(2)
    old = int((time.time() - 3600) * 1000)
    records = (NewRecord(b"x", partition=number % 2, timestamp_ms=old + number) for number in range(20))
    produce(offsetstore_kafka.bootstrap_servers, name, records)
    return name


@contextmanager
def running(url: str, kafka: KafkaBroker, directory: Path) -> Generator[str]:
    """An exporter with a password for Kafka; the address of its metrics."""
    settings = directory / "kafka.properties"
    settings.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username={kafka.user.name}\n"
        f"sasl.password={kafka.user.password}\n",
        encoding="utf-8",
    )
    [(_, line)] = blocks("exporter.md", "console")
    arguments = words(line.replace("localhost:9092", kafka.sasl_bootstrap_servers))
    arguments += ["--port", "0", "--broker-config", str(settings), "--interval", "1", "--timeout", "3"]
    command = [sys.executable, "-c", "from offsetstore.cli.main import main; main()", *arguments]
    log = directory / "exporter.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "OFFSETSTORE_URL": url})
    try:
        found = wait_until(lambda: re.search(r"http://\S+", log.read_text()), timeout=60)
        assert found is not None
        yield found[0]
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(20)
    assert kafka.user.password not in log.read_text()


def scrape(address: str) -> dict[tuple[str, ...], float]:
    assert address.startswith("http:")
    with urlopen(address, timeout=10) as answer:  # noqa: S310 - as the line above says
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


@pytest.mark.behaviour("OPS-5", "OPS-7", "OPS-12")
def test_it_agrees_with_kafkas_own_tool_and_goes_on_through_outages(
    private_postgres: PostgresServer,
    offsetstore_kafka: KafkaBroker,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = private_postgres.url
    broker = Broker({"bootstrap.servers": offsetstore_kafka.bootstrap_servers})
    with OffsetStore.connect(url) as store, store.claim(GROUP, broker, topics=[topic]) as claim:
        advance(store, claim, {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 10})
        [(_, example)] = blocks("exporter.md", "python")
        exec(example, {"store": store, "broker": broker})  # noqa: S102 - the page's own words
        assert re.fullmatch(rf"{topic} 6 3[56]\d\d\.\d+ \n", capsys.readouterr().out)
    broker.close()
    of_tool = consumer_groups_tool(offsetstore_kafka, GROUP)

    def once(*, database: int, kafka: int) -> dict[tuple[str, ...], float]:
        """The page of a refresh that these have answered, or have not."""

        def look() -> dict[tuple[str, ...], float] | None:
            found = scrape(address)
            up = [found["offsetstore_exporter_up", target] for target in ("database", "kafka")]
            return found if up == [database, kafka] else None

        found = wait_until(look, timeout=60)
        assert found is not None
        return found

    with running(url, offsetstore_kafka, tmp_path) as address:
        found = once(database=1, kafka=1)
        lags = {number: found["kafka_consumergroup_lag", GROUP, topic, str(number)] for number in range(2)}
        assert lags == {number: int(of_tool[topic, str(number)]["LAG"]) for number in range(2)} == {0: 6, 1: 0}
        assert found["offsetstore_group_lag_seconds", GROUP, topic] == pytest.approx(3600, rel=0.03)
        assert found["offsetstore_group_mirror_lag_offsets", GROUP] == 0

        private_postgres.stop()
        assert ("offsetstore_group_live", GROUP) not in once(database=0, kafka=1)
        private_postgres.start()
        once(database=1, kafka=1)

        offsetstore_kafka.stop()
        down = once(database=1, kafka=0)
        assert down["offsetstore_group_live", GROUP] == 0
        assert ("kafka_consumergroup_lag_sum", GROUP, topic) not in down
        offsetstore_kafka.start()
        once(database=1, kafka=1)
        # A broker that has just started may know of no leader yet.
        wait_until(lambda: scrape(address).get(("kafka_consumergroup_lag_sum", GROUP, topic)) == 6, timeout=60)
