"""Adopts an existing job at the offsets in the checkpoint of its query.

Spark keeps a query's offsets in its checkpoint, not in Kafka. It writes ``offsets/N`` before batch N, ``commits/N``
after it, and ``sources/<i>/0`` once, with the start of source i. So ``offsets/N`` is certain for the last batch that
has ``commits/N``. A later ``offsets/M`` belongs to a batch that began; the checkpoint does not show whether its results
exist.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from offsetstore.errors import ConfigurationError, UncertainBatch
from offsetstore.offsets import BrokerView, OffsetRange, StoredOffset, TopicPartition
from offsetstore.protocol.database import HistoryEvent
from offsetstore.protocol.ports import CheckpointFiles
from offsetstore.protocol.starting import OnUncertain, Reason, StartingOffsets, StartPolicy

_log = logging.getLogger(__name__)
_CORRECT = "Correct adopt_checkpoint. To start without the job's offsets, leave it out."

_NO_OFFSET = "-"  # of a source that has not read anything yet
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/")


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """The content of a checkpoint.

    ``offsets`` is the end of the last committed batch, ``batch_id``; if that is ``None``, no batch was committed, and
    ``offsets`` is the query's start. ``uncertain`` has the ranges that were begun after it, up to batch
    ``uncertain_id``.
    """

    location: str
    batch_id: int | None
    offsets: Mapping[TopicPartition, int]
    uncertain_id: int | None
    uncertain: Mapping[TopicPartition, OffsetRange]

    def starts(
        self, policy: StartPolicy, stored: Collection[TopicPartition], topics: Collection[str]
    ) -> dict[TopicPartition, int]:
        """The starts of the partitions that have no row in the store.

        :raises UncertainBatch: one of them is in the uncertain batch, or that batch has no records; and the policy does
            not decide it.
        """
        missing = [tp for tp in sorted(self.offsets) if tp not in stored and tp.topic in topics]
        uncertain = {tp: self.uncertain[tp] for tp in missing if tp in self.uncertain}
        # A batch without records can also write windows.
        is_uncertain = bool(uncertain) or (bool(missing) and self.uncertain_id is not None and not self.uncertain)
        if is_uncertain and policy.on_uncertain == "fail":
            what = f"{self._uncertain_batch} of the checkpoint {self.location} began but did not commit"
            ranges = ", ".join(f"{tp} {range_}" for tp, range_ in uncertain.items()) or "a batch without records"
            raise UncertainBatch(what, topic_partition=next(iter(uncertain), None), found=ranges)
        skips = policy.on_uncertain == "skip"
        return {tp: uncertain[tp].until if skips and tp in uncertain else self.offsets[tp] for tp in missing}

    def annotate(
        self, events: Iterable[HistoryEvent], starting: StartingOffsets, policy: StartPolicy
    ) -> list[HistoryEvent]:
        """Add to a start's history which batch was adopted, and what was decided about the uncertain one."""
        return [line for event in events for line in self._annotate(event, starting, policy)]

    def _annotate(self, event: HistoryEvent, starting: StartingOffsets, policy: StartPolicy) -> list[HistoryEvent]:
        tp = event.topic_partition
        if tp is None or tp not in starting.starts or starting.starts[tp].reason is not Reason.CHECKPOINT:
            return [event]
        last_batch = "which has no committed batch" if self.batch_id is None else f"batch {self.batch_id}"
        reason = f"{event.reason}: {self.location}, {last_batch}"
        if tp not in self.uncertain:
            return [replace(event, reason=reason)]
        decided = f'{self._uncertain_batch}, {self.uncertain[tp]}, on_uncertain="{policy.on_uncertain}"'
        if policy.on_uncertain != "skip":
            return [replace(event, reason=f"{reason}; read again: {decided}")]
        adopted = replace(event, to_offset=self.offsets[tp], reason=reason)
        skipped = f"assumed to be in the results: {decided}"
        return [adopted, replace(event, event="skip", from_offset=self.offsets[tp], reason=skipped)]

    @property
    def _uncertain_batch(self) -> str:
        first = 0 if self.batch_id is None else self.batch_id + 1
        return f"batch {first}" if first == self.uncertain_id else f"batches {first} to {self.uncertain_id}"


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a claim would take over from the checkpoint of a query.

    ``adopted`` is where the partitions without a stored offset start. With a ``refusal`` the claim would adopt nothing:
    ``adopted`` then holds the partitions that the uncertain batch leaves alone.
    """

    checkpoint: QueryCheckpoint
    stored: Mapping[TopicPartition, StoredOffset]
    adopted: Mapping[TopicPartition, int]
    refusal: UncertainBatch | None = None

    def start(self, tp: TopicPartition) -> int | None:
        """Where the partition starts: at the stored offset, else at the adopted one; ``None`` if it is refused."""
        return self.stored[tp].next_offset if tp in self.stored else self.adopted.get(tp)


def read_adoption(
    checkpoint: QueryCheckpoint, stored: Mapping[TopicPartition, StoredOffset], on_uncertain: OnUncertain
) -> Adoption:
    """Find out what a claim would adopt of the checkpoint, for all its topics."""
    topics = {tp.topic for tp in checkpoint.offsets}
    try:
        return Adoption(checkpoint, stored, checkpoint.starts(StartPolicy(on_uncertain=on_uncertain), stored, topics))
    except UncertainBatch as error:
        certain = checkpoint.starts(StartPolicy(on_uncertain="replay"), stored, topics)
        # A batch without records leaves no partition alone: windows also come out of it.
        alone = {tp: at for tp, at in certain.items() if checkpoint.uncertain and tp not in checkpoint.uncertain}
        return Adoption(checkpoint, stored, alone, error)


def read_for(
    files: CheckpointFiles | None, stored: Collection[TopicPartition], view: BrokerView | None
) -> QueryCheckpoint | None:
    """Read the checkpoint if it is needed; ``None`` if the store has an offset for every partition.

    :raises ConfigurationError: there is none, or it can't be read, or it belongs to another job.
    """
    if files is None:
        return None
    if view is None:
        raise ConfigurationError(
            "adopt_checkpoint was given without a broker",
            expected="a broker, which knows all partitions",
        )
    wanted = {TopicPartition(topic, number) for topic, log in view.topics.items() for number in log.partitions}
    if wanted <= set(stored):
        return None
    checkpoint = read(files)
    known = {tp.topic for tp in stored}
    unknown = set(view.topics) - known
    if checkpoint is None and not unknown:
        _log.info("the job was adopted before, and the checkpoint %s is gone", files.location)
        return None
    if checkpoint is None:
        raise _missing(files.location)
    topics = {tp.topic for tp in checkpoint.offsets}
    # A topic that was added after the adoption is not in the checkpoint, whose own topics were adopted then.
    if unknown and not topics & unknown and topics.isdisjoint(known):
        raise ConfigurationError(
            "the checkpoint to adopt belongs to a query that reads other topics",
            found=", ".join(sorted(topics)),
            expected=", ".join(sorted(view.topics)),
        )
    return checkpoint


def read_or_fail(files: CheckpointFiles, *, next_step: str) -> QueryCheckpoint:
    """Read a checkpoint.

    :param next_step: what to do if there is none.
    :raises ConfigurationError: there is none, or it can't be read.
    """
    checkpoint = read(files)
    if checkpoint is None:
        raise _missing(files.location, next_step)
    return checkpoint


def read(files: CheckpointFiles) -> QueryCheckpoint | None:
    """Read a checkpoint; ``None`` if there is none.

    :raises ConfigurationError: a file of it can't be read, or the query reads something other than Kafka.
    """
    begun, committed = _numbers(files, "offsets"), _numbers(files, "commits")
    initial = _initial(files)
    if not begun and not initial:
        return None
    last = max(committed, default=None)
    offsets = initial if last is None else initial | _batch(files, last)
    later = [number for number in begun if last is None or number > last]
    if not later:
        return QueryCheckpoint(files.location, last, offsets, None, {})
    end = _batch(files, max(later))
    # A partition that was created since is read from 0.
    offsets = dict.fromkeys(end, 0) | offsets
    try:
        ranges = {tp: OffsetRange(offsets[tp], max(offsets[tp], until)) for tp, until in sorted(end.items())}
    except ValueError as error:
        raise ConfigurationError(
            "the checkpoint to adopt has impossible offsets", found=f"{error} in {files.location}", next_step=_CORRECT
        ) from error
    return QueryCheckpoint(
        files.location, last, offsets, max(later), {tp: range_ for tp, range_ in ranges.items() if range_}
    )


def _missing(location: str, next_step: str = _CORRECT) -> ConfigurationError:
    return ConfigurationError(
        "there is no checkpoint of a streaming query to adopt",
        found=f"neither offsets nor sources in {location}",
        expected='the directory of the job\'s "checkpointLocation"',
        next_step=next_step,
    )


def _numbers(files: CheckpointFiles, directory: str) -> list[int]:
    return [int(name) for name in files.names(directory) if name.isascii() and name.isdigit()]


def _initial(files: CheckpointFiles) -> dict[TopicPartition, int]:
    """The offsets at which the sources began. Their files begin with a zero byte, for Spark 2.1."""
    parts: list[dict[TopicPartition, int]] = []
    for name in files.names("sources"):
        path = f"sources/{name}/0"
        if "0" in files.names(f"sources/{name}"):
            text = files.read(path).lstrip("\0")
            parts.append(_offsets(text.partition("\n")[2] if text.startswith("v") else text, files, path))
    return _joined(parts, files)


def _batch(files: CheckpointFiles, number: int) -> dict[TopicPartition, int]:
    """The end of a batch. Its file has a version, a line of metadata, and a line for each source."""
    path = f"offsets/{number}"
    version, *lines = files.read(path).splitlines() or [""]
    if version not in {"v1", "v2"} or not lines:
        raise _unreadable(files, path, f"version {version!r}", "v1 or v2")
    # The second version has the source's name before its offsets.
    sources = lines[1:] if version == "v1" else [line.partition(":")[2] for line in lines[1:]]
    return _joined([_offsets(line, files, path) for line in sources if line != _NO_OFFSET], files)


def _offsets(text: str, files: CheckpointFiles, path: str) -> dict[TopicPartition, int]:
    try:
        topics: dict[str, dict[str, Any]] = json.loads(text)
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, partitions in topics.items()
            for number, offset in partitions.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(
            files, path, text[:80] or "nothing", 'offsets of Kafka, as {"payments": {"0": 42}}'
        ) from error


def _joined(sources: Sequence[Mapping[TopicPartition, int]], files: CheckpointFiles) -> dict[TopicPartition, int]:
    joined: dict[TopicPartition, int] = {}
    for source in sources:
        if shared := sorted(joined.keys() & source.keys()):
            raise ConfigurationError(
                f"two sources of the query in {files.location} read the same topic",
                topic_partition=shared[0],
                expected="each topic in one source",
            )
        joined |= source
    return joined


def _unreadable(files: CheckpointFiles, path: str, found: str, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"could not parse the checkpoint's file {files.location}/{path}", found=found, expected=expected
    )


class LocalFiles:
    """A checkpoint on a local disk; `offsetstore.spark.checkpoints` reads those on Hadoop's file systems.

    :param location: a path, or a ``file:`` URI, as Spark takes it.
    :raises ConfigurationError: it is on another file system.
    """

    def __init__(self, location: str) -> None:
        scheme = _SCHEME.match(location)
        if scheme is not None and scheme["scheme"].lower() != "file":
            raise ConfigurationError(
                "a checkpoint outside of the local file system can't be read from its path alone",
                found=location,
                expected="a path, or a file: URI",
                next_step="Let Spark read it: from offsetstore.spark.checkpoints import HadoopFiles; "
                "adopt_checkpoint=HadoopFiles(spark, location). Or copy its directories offsets, commits and sources.",
            )
        self.location = location.rstrip("/")
        self._path = Path(unquote(urlsplit(location).path) if scheme is not None else location)

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(path.name for path in (self._path / directory).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._unreadable(directory, error) from error

    def read(self, path: str) -> str:
        try:
            return (self._path / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"{self.location}/{path} of the checkpoint can't be read", found=f"{type(error).__name__}: {error}"
        )
