"""Checkpoints on any file system that Spark supports, and what a query that continues from one must satisfy.

Checkpoints of stateless queries are pruned: each claim has its own, and earlier ones are not read again. The checkpoint
of a job that is adopted is read.

A query must continue exactly at the stored offsets.

If its checkpoint is not kept, this is checked when it starts: a partition without records would never tell.

If it is kept, each batch is checked. Spark numbers a query's batches without gaps, and begins one only after it has
committed the one before. The database holds the number of the last batch in the results (the mark), and the stored
offsets, which moved with it. So:

==========================  ====================================================================================
no mark                     the batch must begin at the stored offsets: APPLY
the batch after the mark    the same
the marked batch itself     Spark does not know that it was written; it must end at the stored offsets: SKIP
the same, with another end  the checkpoint is an older copy, of before the batch was planned: now it has other records;
                            or the stored offsets were moved since
a batch below the mark      the checkpoint is an older copy: its batches are not those with these numbers
a batch beyond that         results of batches in between are missing: the database is an older copy
==========================  ====================================================================================

Offsets alone are not enough: windows also fire in batches without data, which move no offset. A batch that was begun
but not written is not committed in the checkpoint either, so a crash in the middle of it causes none of these errors.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError  # pyright: ignore[reportMissingTypeStubs]
from pyspark.sql import SparkSession

from offsetstore.errors import CheckpointAhead, CheckpointBehind, ConfigurationError, OffsetGap
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.replay import Outcome
from offsetstore.spark.plans.query import RunningQuery
from offsetstore.store.claim import Claim

_log = logging.getLogger(__name__)
# As `Claim.checkpoint` names them; whatever else is under the base stays.
_OURS = re.compile(r"(?P<epoch>\d+)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class HadoopFiles:
    """The files of one checkpoint, for ``store.claim(..., adopt_checkpoint=HadoopFiles(spark, location))``.

    :param location: any path that Spark takes.
    """

    def __init__(self, session: SparkSession, location: str) -> None:
        self.location = location.rstrip("/")
        self._session: Any = session

    def names(self, directory: str) -> list[str]:
        """See `offsetstore.protocol.ports.CheckpointFiles`."""
        try:
            files, path = _file_system(self._session, f"{self.location}/{directory}")
            if not files.exists(path):
                return []
            return sorted(status.getPath().getName() for status in files.listStatus(path))
        except Py4JError as error:
            raise self._unreadable(directory, error) from error

    def read(self, path: str) -> str:
        """See `offsetstore.protocol.ports.CheckpointFiles`."""
        try:
            files, file = _file_system(self._session, f"{self.location}/{path}")
            stream = files.open(file)
            try:
                return self._session._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")  # noqa: SLF001
            finally:
                stream.close()
        except Py4JError as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, error: Exception) -> ConfigurationError:
        return ConfigurationError(f"{self.location}/{path} of the checkpoint can't be read", found=_first_line(error))


def prune(session: SparkSession, base: str, *, epoch: int, retain: int) -> None:
    """Remove the oldest checkpoints under ``base``, on any file system, and keep ``retain`` in all.

    Removes only directories named as `Claim.checkpoint` names them, of epochs before ``epoch``. If that fails, it logs
    a warning: old checkpoints only take space.
    """
    try:
        files, directory = _file_system(session, base)
        paths = {status.getPath().getName(): status.getPath() for status in files.listStatus(directory)}
        for name in outdated(paths, epoch=epoch, retain=retain):
            files.delete(paths[name], True)  # noqa: FBT003 - Hadoop's "recursive"
    except Py4JError as error:
        _log.warning("old checkpoints under %s could not be removed: %s", base, _first_line(error))


def outdated(names: dict[str, Any], *, epoch: int, retain: int) -> list[str]:
    epochs = {name: int(match["epoch"]) for name in names if (match := _OURS.fullmatch(name))}
    earlier = sorted((name for name, of in epochs.items() if of < epoch), key=lambda name: epochs[name])
    # The claim's own is one of the retained.
    return earlier[: max(0, len(earlier) - (retain - 1))]


def _first_line(error: Exception) -> str:
    java: Any = getattr(error, "java_exception", None)
    return str(java.toString() if java is not None else error).splitlines()[0]


def _file_system(session: Any, base: str) -> tuple[Any, Any]:
    # Hadoop's client reads local paths too, so one way is enough (decision 0001).
    path = session._jvm.org.apache.hadoop.fs.Path(base)  # noqa: SLF001 - py4j's gateway
    return path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), path  # noqa: SLF001


_START_OVER = (
    'Give the reader .option("startingOffsets", claim.starting_offsets), and remove this checkpoint: it began at other '
    "offsets. If a reset or another tool has moved the stored offset since, removing the checkpoint is enough."
)


def judge(
    batch_id: int,
    mark: int | None,
    *,
    begin: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    stored: Mapping[TopicPartition, int],
) -> Outcome:
    """Decide whether a batch must be written (APPLY) or is already in the results (SKIP).

    :param mark: the last batch of this query that is in the results, if any.
    :param begin: where the batch begins: the end of the last batch that Spark has committed.
    :param stored: the stored offset of every partition in ``begin`` and ``end``.
    :raises CheckpointAhead: results that the checkpoint has committed are missing.
    :raises CheckpointBehind: the batch would repeat results.
    :raises OffsetGap: a new checkpoint begins above the stored offset.
    """
    if mark is not None and batch_id < mark:
        raise CheckpointBehind(
            f"the kept checkpoint continues with batch {batch_id}, but later ones of this query are in the results",
            found=f"batch {batch_id}",
            expected=f"batch {mark} or {mark + 1}",
        )
    if mark is not None and batch_id > mark + 1:
        raise CheckpointAhead(
            f"the kept checkpoint continues with batch {batch_id}, but the one before it is not in the results",
            found=f"batch {mark} in the database",
            expected=f"batch {batch_id - 1}",
        )
    is_marked = batch_id == mark
    is_new = batch_id == 0 and not is_marked
    ends = "the last committed batch of the kept checkpoint ends"
    # What is missing anywhere is told before what would be repeated elsewhere.
    for tp, offset in sorted(begin.items(), key=lambda item: (stored[item[0]] >= item[1], item)):
        at = stored[tp]
        places: dict[str, Any] = {"topic_partition": tp, "found": f"{at} stored", "expected": str(offset)}
        if is_new and at < offset:  # nothing is committed before batch 0: it began at the reader's startingOffsets
            what = f"the new checkpoint begins above the stored offset: [{at}, {offset}) is missing"
            raise OffsetGap(what, **places, next_step=_START_OVER)
        if is_new and at > offset:
            what = f"the new checkpoint begins below the stored offset: [{offset}, {at}) is in the results"
            raise CheckpointBehind(what, **places, next_step=_START_OVER)
        if at < offset:  # also of the marked batch: results that Spark has committed would be missing
            raise CheckpointAhead(f"{ends} beyond the stored offset", **places)
        if at > offset and not is_marked:
            raise CheckpointBehind(f"{ends} below the stored offset", **places)
    for tp, offset in sorted(end.items()) if is_marked else ():
        if stored[tp] != offset:
            raise CheckpointBehind(
                f"batch {batch_id} is in the results, but the kept checkpoint has planned it with another end: it is "
                "an older copy, or the stored offset was moved since",
                topic_partition=tp,
                found=f"end {offset}",
                expected=f"{stored[tp]}, which is stored",
            )
    return Outcome.SKIP if is_marked else Outcome.APPLY


def check_start(claim: Claim, query: RunningQuery) -> bool:
    """Compare where the query starts with the stored offsets, for every partition that it reads.

    :return: whether its start is known: it has begun its first trigger.
    :raises OffsetGap: it starts above a stored offset; nothing was written.
    """
    # Before the stored offsets, which a batch meanwhile moves first.
    begin = query.positions().begin
    if not begin:
        return False
    # With a flush or manual marking, a query that is started again goes on above what is stored.
    delivered = claim.delivered
    stored = {tp: max(row.next_offset, delivered.get(tp, 0)) for tp, row in claim.offsets().items()}
    _refuse_above(begin, stored)
    # Below costs only time, and is usual with a checkpoint that is not the claim's own, after a crash (decision 0060).
    if claim.starting is not None and claim.checkpoint_base is not None:
        _tell_below(begin, claim.starting.offsets)
    return True


def _refuse_above(begin: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, int]) -> None:
    above = [tp for tp, offset in sorted(begin.items()) if offset > stored.get(tp, offset)]
    if not above:
        return
    first = above[0]
    missing = OffsetRange(stored[first], begin[first])
    others = f", and {len(above) - 1} more partitions" if len(above) > 1 else ""
    raise OffsetGap(
        f"the query starts above the stored offset: {missing} is missing{others}",
        topic_partition=first,
        found=f"a start at {begin[first]}",
        expected=f"a start at {stored[first]}",
        next_step='Give the reader .option("startingOffsets", claim.starting_offsets), and the query a checkpoint that '
        "no query has used: claim.checkpoint(base).",
    )


def _tell_below(begin: Mapping[TopicPartition, int], claimed: Mapping[TopicPartition, int]) -> None:
    below = [tp for tp, offset in sorted(begin.items()) if offset < claimed.get(tp, offset)]
    if below:
        _log.warning(
            "%s: the query starts at %d, below the claim's offset %d%s: it reads records that are in the results, and "
            'drops them. Give the reader .option("startingOffsets", claim.starting_offsets)',
            below[0],
            begin[below[0]],
            claimed[below[0]],
            f" (and so do {len(below) - 1} more partitions)" if len(below) > 1 else "",
        )
