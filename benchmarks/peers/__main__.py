"""Measure the peers, kill them, and write down what was found: ``make bench-peers``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

from benchmarks.peers.page import write_page
from benchmarks.peers.programs import BUILD, HEAP, JDBC, PEERS, Peer
from benchmarks.peers.runs import WARM, Kill, Services
from benchmarks.shapes import PARTITIONS, SMALL
from offsetstore.local.jars import KAFKA_VERSION
from offsetstore.local.java import find_java
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine

POSTGRES: Final = {"max_prepared_transactions": "20"}
RESULTS: Final = BUILD / "peers.json"


def main() -> None:
    """Run everything; the page is only written if all peers were run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--records", type=int, default=SMALL.count)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each peer")
    parser.add_argument("--kills", type=int, default=3, help="of each peer and kind: at random, as rows become visible")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=[*PEERS], help="leaves the page as it is")
    given = parser.parse_args()
    peers = {name: PEERS[name] for name in given.only}
    with KafkaBroker() as kafka, PostgresServer(settings=POSTGRES) as postgres:
        engine = make_engine(postgres.url)
        with engine.begin() as connection:
            upgrade(connection)
        engine.dispose()
        services = Services(kafka, postgres, given.records)
        results = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {
                "cores": os.cpu_count(),
                "system": platform.platform(),
                "java": find_java().version,
                "heap": HEAP,
            },
            "kafka": {"version": KAFKA_VERSION, "partitions": PARTITIONS},
            "postgresql": {"version": postgres.sql("SHOW server_version"), "fsync": "on", **POSTGRES},
            "records": given.records,
            "jdbc": JDBC,
            "warm": WARM,
            "seed": given.seed,
            "peers": run(services, peers, given.rounds, given.kills, random.Random(given.seed)),  # noqa: S311 - no secret
        }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(f"All samples: {RESULTS}")
    if len(peers) == len(PEERS):
        print(f"Written: {write_page(results)}")


def run(services: Services, peers: dict[str, Peer], rounds: int, kills: int, moments: random.Random) -> dict[str, Any]:
    """Measure in rounds, each of which has all peers; then kill each of them."""
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(rounds):
        for name, peer in peers.items():
            seconds[name].append(services.measure(peer))
            print(f"round {number + 1}: {peer.name}: {seconds[name][-1]:.2f} s", flush=True)
    found: dict[str, Any] = {}
    for name, peer in peers.items():
        usual, done = median(seconds[name]), list[Kill]()
        for moment in [moments.uniform(0, usual) for _ in range(kills)] + [None] * kills:
            done.append(services.kill(peer, moment))
            print(f"{peer.name}: {done[-1]}", flush=True)
        found[name] = {
            "name": peer.name,
            "guarantee": peer.guarantee,
            "versions": peer.versions,
            "settings": peer.settings,
            "seconds": seconds[name],
            "kills": [asdict(one) for one in done],
        }
    return found


if __name__ == "__main__":
    main()
