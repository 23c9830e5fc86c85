"""A broker that says what a test wants it to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore.offsets import BrokerView, CommittedOffset, TopicLog, TopicPartition, Watermarks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


class ScriptedBroker:
    """Shows ``logs`` (topic -> partition -> (beginning, end)), which a test may change.

    ``script`` holds what the next views do instead, one entry a view: an error is raised, logs are shown, a function is
    called first, and ``None`` shows the truth.
    """

    def __init__(
        self,
        logs: Mapping[str, Mapping[int, tuple[int, int]]],
        *,
        committed: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self.logs = {topic: dict(log) for topic, log in logs.items()}
        self.committed = dict(committed or {})
        self._copies: dict[TopicPartition, CommittedOffset] = {}
        self.script: list[Exception | Mapping[str, Mapping[int, tuple[int, int]]] | Callable[[], object] | None] = []
        self.views = 0
        self.groups: set[str] = set()
        self.has_ids = True
        """Whether it tells the topics' ids; brokers before 2.8 do not."""

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self.logs)

    def view(self, group: str, topics: Collection[str], *, timestamp_ms: int | None = None) -> BrokerView:
        self.views += 1
        self.groups.add(group)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        shown: Mapping[str, Mapping[int, tuple[int, int]]] = self.logs
        if callable(step):
            step()
        elif step is not None:
            shown = step
        logs = {
            topic: TopicLog(self._id(topic), {number: Watermarks(*ends) for number, ends in shown[topic].items()})
            for topic in topics
        }
        committed = {tp: offset for tp, offset in self._committed().items() if tp.topic in logs}
        # No record is as young as a test asks for.
        ends = {TopicPartition(topic, n): log.end for topic in topics for n, log in logs[topic].partitions.items()}
        return BrokerView("cluster-1", logs, committed, None if timestamp_ms is None else ends)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str | None]:
        return {topic: self._id(topic) for topic in topics}

    def _id(self, topic: str) -> str | None:
        return f"id of {topic}" if self.has_ids else None

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        self.groups.add(group)
        return {tp: offset for tp, offset in self._committed().items() if tp in partitions}

    def has_members(self, group: str) -> bool:
        self.groups.add(group)
        return False

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self.groups.add(group)
        self.committed.update({tp: offset.next_offset for tp, offset in offsets.items()})
        self._copies.update(offsets)

    def _committed(self) -> dict[TopicPartition, CommittedOffset]:
        """With its text, what has come by `commit`; without, what the test has set."""
        copies = {tp: copy for tp, copy in self._copies.items() if self.committed.get(tp) == copy.next_offset}
        return {tp: copies.get(tp, CommittedOffset(offset)) for tp, offset in self.committed.items()}
