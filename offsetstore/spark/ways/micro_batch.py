"""One micro-batch, as Spark hands it to the sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.processing.unit import Stored, Written
from offsetstore.store.claim import Claim

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetstore.spark.plans.query import RunningQuery


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch, with the exact ranges that it reads, and what is stored of it in several transactions."""

    frame: DataFrame = field(repr=False)
    number: int
    query: RunningQuery
    ranges: dict[TopicPartition, OffsetRange]
    stored: Stored = field(default_factory=Stored)

    def sleep(self, claim: Claim, seconds: float) -> None:
        """Sleep as `RunningQuery.sleep` does.

        :raises Py4JJavaError: the query is being stopped.
        :raises ProtocolMisuse: the claim was closed meanwhile.
        """
        self.query.sleep(seconds)
        claim.require_open()


class Way(Protocol):
    """A way to write micro-batches: in one transaction, in one for each partition, or with a kept checkpoint."""

    def write(self, batch: MicroBatch) -> Written | None:
        """Plan and write one micro-batch, or nothing of it.

        :raises PlanOutdated: it must be planned again.
        :raises GroupPaused: it must be planned again when the group is resumed.
        """
        ...
