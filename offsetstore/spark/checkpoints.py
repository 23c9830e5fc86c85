"""Checkpoints on any file system that Spark supports.

Checkpoints of stateless queries are pruned: each claim has its own, and earlier ones are not read again. The checkpoint
of a job that is adopted is read.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from py4j.protocol import Py4JError  # pyright: ignore[reportMissingTypeStubs]
from pyspark.sql import SparkSession

from offsetstore.errors import ConfigurationError

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
