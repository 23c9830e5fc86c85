"""What an error that a user sees has to say: where, what was found, and the way out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Report:
    """How a job failed: ``during`` connect, claim, sink or batch. ``ours`` is whether the class is of offsetstore's
    tree.

    ``stored`` is what a refused batch has stored all the same: begin and end of each partition.
    """

    class_name: str
    text: str
    during: str
    ours: bool
    found: str | None = None
    expected: str | None = None
    next_step: str = ""
    topic_partition: str | None = None
    stored: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    spark: str = ""

    def lacks(self, topics: list[str]) -> list[str]:
        """What a reader of this error is not told.

        Without the database or the broker nobody knows yet which partitions there are: a claim that fails names its
        topics, and a connection that fails is nobody's, and neither is a sink that is refused when it is made.
        """
        if not self.ours:
            return []
        number = "" if self.during == "claim" else r"-\d+"
        names_one = self.during in {"connect", "sink"} or any(
            re.search(re.escape(topic) + number, self.text) for topic in topics
        )
        # Of a topic that is not the job's, such as another query's.
        names_one = names_one or (self.topic_partition is not None and self.topic_partition in self.text)
        said = {"a partition": names_one, "what was found": self.found is not None, "the way out": bool(self.next_step)}
        return [word for word, is_there in said.items() if not is_there]
