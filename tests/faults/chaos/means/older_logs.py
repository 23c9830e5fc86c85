"""The broker's disk is restored: some partitions get older logs back, under the same topic id."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import confluent_kafka

from tests.faults.chaos.harness.scene import Scene
from tests.support.waiting import wait_until


class OlderLogs:
    """Copies of some partitions' logs, never of all, for which the broker is stopped; ``ends`` is where they end."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        chosen = sorted(scene.random.sample(range(scene.partitions), scene.random.randint(1, scene.partitions - 1)))
        ends = scene.ends()
        self.ends = {partition: ends[partition] for partition in chosen}
        scene.kafka.stop()
        for partition in chosen:
            shutil.copytree(self._log(partition), self._copy(partition))
        scene.kafka.start()
        self._wait_for(ends)

    def put_back(self) -> None:
        """Replace the logs by the copies, with the broker stopped. Records that were produced since are lost."""
        scene = self._scene
        stored, before = scene.stored(), scene.ends()
        assert all(stored[partition] > end for partition, end in self.ends.items()), f"{stored}, {self.ends}"
        scene.kafka.stop()
        for partition in self.ends:
            shutil.rmtree(self._log(partition))
            shutil.copytree(self._copy(partition), self._log(partition))
        scene.kafka.start()
        scene.ledger.cut(scene.topic, self.ends)
        now = {**before, **self.ends}
        self._wait_for(now)
        scene.fired(f"stored {stored}; the logs ended at {before}, and end at {now}")

    def regrow(self) -> None:
        """Produce more records than were lost."""
        scene = self._scene
        stored, ends = scene.stored(), scene.ends()
        for partition in self.ends:
            missing = stored[partition] - ends[partition]
            scene.produce(missing + scene.random.randint(1, 60), partition=partition)
        ends = scene.ends()
        assert all(ends[partition] > stored[partition] for partition in self.ends), f"{stored}, {ends}"
        scene.fired(f"stored {stored}; the logs have grown to {ends}")

    def _log(self, partition: int) -> Path:
        return self._scene.kafka.directory / "data" / f"{self._scene.topic}-{partition}"

    def _copy(self, partition: int) -> Path:
        return self._scene.directory / "older-logs" / str(partition)

    def _wait_for(self, ends: Mapping[int, int]) -> None:
        """Wait until Kafka can be asked again, and each log ends there."""

        def are_there() -> bool:
            with suppress(confluent_kafka.KafkaException):
                return self._scene.ends() == ends
            return False

        wait_until(are_there, timeout=60)
