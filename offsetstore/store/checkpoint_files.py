"""A checkpoint on a local disk; those on Hadoop's file systems are read by `offsetstore.spark.checkpoints`."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from offsetstore.errors import ConfigurationError
from offsetstore.protocol.ports import CheckpointFiles

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/")


class LocalFiles:
    """The files of one checkpoint.

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
        """See `CheckpointFiles`."""
        try:
            return sorted(path.name for path in (self._path / directory).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._unreadable(directory, error) from error

    def read(self, path: str) -> str:
        """See `CheckpointFiles`."""
        try:
            return (self._path / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"{self.location}/{path} of the checkpoint can't be read", found=f"{type(error).__name__}: {error}"
        )


def checkpoint_files(given: str | CheckpointFiles | None) -> CheckpointFiles | None:
    """Take a path as local files, and anything else as it is.

    :raises ConfigurationError: a path on another file system.
    """
    return LocalFiles(given) if isinstance(given, str) else given
