"""The network between the job and its servers is bad."""

from __future__ import annotations

import random
import time
from typing import Final

from offsetstore.kafka import admin
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.slow_kafka import slow_kafka
from tests.support.slow_proxy import FINE, SlowProxy, Weather
from tests.support.tcp import server_of, url_at

ROW: Final = "slow, lossy network"
MUST: Final = "I8: the job catches up"


def _slow(dice: random.Random) -> Weather:
    return Weather(dice.uniform(0.005, 0.02), piece=dice.randint(20, 400), pause=0.01, pause_seconds=0.5)


def _lossy(dice: random.Random) -> Weather:
    return Weather(0.002, dice.randint(100, 1400), pause=0.02, pause_seconds=dice.uniform(0.5, 2), reset=0.02)


@fault(row=ROW, must=MUST, variants=("slow", "lossy"), seeds=6)
def network_to_the_database(scene: Scene) -> None:
    """A proxy before PostgreSQL delivers late, in small packets and with pauses; when lossy, it resets connections as
    well, until the weather is fine again."""
    scene.expect("TransactionLost", "StoreUnavailable")
    with SlowProxy(server_of(scene.url), scene.random) as proxy:
        _run_in_bad_weather(scene, proxy, url=url_at(scene.url, proxy.port), timeouts={"commit": 10.0})


@fault(row=ROW, must=MUST, variants=("slow", "lossy"), seeds=3)
def network_to_kafka(scene: Scene) -> None:
    """A proxy before Kafka (whose listener advertises it) delivers late, in small packets and with pauses; when lossy,
    it resets connections as well, until the weather is fine again."""
    broker, proxy = scene.at_end.enter_context(slow_kafka(scene.random))
    admin.create_topic(broker.bootstrap_servers, scene.topic, partitions=scene.partitions)
    scene.use_kafka(broker.bootstrap_servers)
    scene.expect("BrokerUnavailable")
    _run_in_bad_weather(scene, proxy, servers=f"127.0.0.1:{proxy.port}")


def _run_in_bad_weather(scene: Scene, proxy: SlowProxy, **settings: object) -> None:
    scene.produce(100)
    with scene.supervise(**settings) as supervisor:
        supervisor.job.wait_for("done")
        proxy.weather = _slow(scene.random) if scene.variant == "slow" else _lossy(scene.random)
        proxy.happened.clear()
        with scene.producing(rate=100):
            time.sleep(scene.random.uniform(4, 8))
            if scene.variant == "lossy":
                proxy.happened["resets"] += proxy.reset_all()
        scene.fired(f"{proxy.weather}: {dict(proxy.happened)}; {len(supervisor.jobs)} jobs so far")
        assert proxy.happened["pieces"]
        if scene.variant == "lossy":
            assert proxy.happened["resets"]
            proxy.weather = FINE
        scene.caught_up()
