"""Archives of the classes that Spark or a broker has loaded: a start from one takes half the processor time.

Java calls this class data sharing (JEP 350). Java itself checks whether an archive fits it and the jars; if not, it
loads the classes as usual, which only takes longer (decision 0021).
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from offsetstore.errors import OffsetStoreError
from offsetstore.local import cache_directory, locked
from offsetstore.local.spark.jars import Notice, notices, pyspark_directories
from offsetstore.local.spark.java import find_java

ARCHIVE_SECONDS: Final = 300
"""How long a program that writes an archive may take."""

_SHOWN: Final = 500
_QUIETLY: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")

_log = logging.getLogger(__name__)


def class_archive(conf: Mapping[str, str], *, notice: Notice | None = None) -> Path | None:
    """Return the archive of Spark's classes, as `archive_of` does.

    :param conf: the whole configuration of a session whose classes are to be kept.
    """
    parts = [
        *(f"{place} {(place / 'jars').stat().st_mtime_ns}" for place in pyspark_directories()),
        *(f"{name}={value}" for name, value in sorted(conf.items()) if name.endswith(("ClassPath", "Options"))),
    ]
    return archive_of("Spark", parts, lambda options: _run_spark(conf, options), notice=notice)


def archive_of(
    program: str, parts: Iterable[str], write: Callable[[tuple[str, ...]], object], *, notice: Notice | None = None
) -> Path | None:
    """Return the archive of a program's classes; make it, in half a minute, if it is not in the cache.

    If two processes ask at once, it is made once.

    :param parts: what its classes depend on besides Java, which would refuse any other archive.
    :param write: starts the program with these Java options, and ends it in order.
    :return: ``None`` if it could not be made, which is tried only once.
    """
    java = find_java()
    release = java.home / "release"
    version = release.read_text(encoding="utf-8") if release.exists() else str(java)
    key = hashlib.sha256("\n".join([version, *parts]).encode()).hexdigest()[:12]
    target = cache_directory() / "classes" / f"{program.lower()}-{key}.jsa"
    if not target.exists():
        with locked(target.parent / "lock"):
            if not target.exists():
                with notices(notice) as tell:
                    tell(f"{program}: archiving its classes for quicker starts")
                    _make(program, target, write)
    return target if target.stat().st_size else None


def reading(archive: Path) -> tuple[str, ...]:
    """Return Java's options for a start from an archive."""
    return f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_QUIETLY


def in_one(options: Iterable[str]) -> str:
    """Join Java options for one of Spark's settings."""
    return " ".join(f'"{option}"' for option in options)


def _make(program: str, target: Path, write: Callable[[tuple[str, ...]], object]) -> None:
    new = target.with_suffix(".new")
    try:
        write((f"-XX:ArchiveClassesAtExit={new}", *_QUIETLY))
        new.rename(target)
    except (OSError, subprocess.SubprocessError, OffsetStoreError) as error:
        new.unlink(missing_ok=True)
        target.touch()  # empty: not to be tried again
        said = getattr(error, "stderr", None) or error
        _log.warning("could not archive the classes of %s; it starts as usual: %s", program, str(said)[-_SHOWN:])


def _run_spark(conf: Mapping[str, str], java: tuple[str, ...]) -> None:
    options = "spark.driver.extraJavaOptions"
    whole = {**conf, options: f"{conf[options]} {in_one(java)}"}
    subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "offsetstore.local.spark.launch", json.dumps(whole)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=ARCHIVE_SECONDS,
    )  # fmt: skip
