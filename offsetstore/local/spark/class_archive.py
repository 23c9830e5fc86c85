"""An archive of the classes that Spark has loaded after a start; with it, a start takes half the processor time.

Java calls it class data sharing (JEP 350). Java itself checks that an archive fits this Java and these jars; if not, it
loads the classes as usual and only takes longer.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from offsetstore.local import cache_directory, locked
from offsetstore.local.spark.jars import Notice, notices, pyspark_directories
from offsetstore.local.spark.java import find_java

_SECONDS: Final = 300
_SHOWN: Final = 500
_QUIETLY: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"

_log = logging.getLogger(__name__)


def class_archive(conf: Mapping[str, str], *, notice: Notice | None = None) -> Path | None:
    """Return the archive for a Spark with that configuration; make it, in half a minute, if it is not in the cache.

    If two processes ask at once, it is made once.

    :param conf: the whole configuration of a session whose classes are to be kept.
    :return: ``None`` if it could not be made; this is tried only once.
    """
    target = cache_directory() / "classes" / f"spark-{_key(conf)}.jsa"
    if not target.exists():
        with locked(target.parent / "lock"):
            if not target.exists():
                with notices(notice) as tell:
                    tell("Spark: archiving its classes for quicker starts")
                    _make(target, conf)
    return target if target.stat().st_size else None


def reading(archive: Path) -> str:
    """Return Java's options for a start from an archive."""
    return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto {_QUIETLY}'


def _make(target: Path, conf: Mapping[str, str]) -> None:
    new = target.with_suffix(".new")
    writing = f'"-XX:ArchiveClassesAtExit={new}" {_QUIETLY}'
    options = "spark.driver.extraJavaOptions"
    whole = {**conf, options: f"{conf[options]} {writing}"}
    try:
        subprocess.run(  # noqa: S603 - our own command line
            [sys.executable, "-m", "offsetstore.local.spark.launch", json.dumps(whole)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=_SECONDS,
        )  # fmt: skip
        new.rename(target)
    except (OSError, subprocess.SubprocessError) as error:
        new.unlink(missing_ok=True)
        target.touch()
        said = getattr(error, "stderr", None) or error
        _log.warning("could not archive Spark's classes; it starts as usual: %s", str(said)[-_SHOWN:])


def _key(conf: Mapping[str, str]) -> str:
    """A name that changes with the jars and with Java, which would refuse an archive of others."""
    release = find_java().home / "release"
    parts = [
        release.read_text(encoding="utf-8") if release.exists() else str(find_java()),
        *(f"{place} {(place / 'jars').stat().st_mtime_ns}" for place in pyspark_directories()),
        *(f"{name}={value}" for name, value in sorted(conf.items()) if name.endswith(("ClassPath", "Options"))),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
