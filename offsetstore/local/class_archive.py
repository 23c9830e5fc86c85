"""A file of the classes that Spark has loaded after a start, from which the next start takes half the processor time.

Java calls it class data sharing (JEP 350). Java itself checks that an archive is of this Java and of these jars, and
loads the classes as ever where it is not: nothing depends on it but time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetstore.local.cache import cache_directory, locked
from offsetstore.local.java import find_java
from offsetstore.local.progress import notices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetstore.local.progress import Notice

_SECONDS: Final = 300
_SHOWN: Final = 500

_log = logging.getLogger(__name__)


def class_archive(conf: Mapping[str, str], jars: str, *, notice: Notice | None = None) -> Path | None:
    """Return the archive for a Spark with that configuration; make it, in half a minute, if it is not in the cache.

    Two processes at once make it once.

    :param conf: the whole configuration of a session whose classes are to be kept.
    :param jars: what is on its class path beside Spark's own jars, as `os.pathsep` parts it.
    :return: ``None`` where it could not be made, which is tried once.
    """
    target = cache_directory() / "classes" / f"spark-{_key(conf, jars)}.jsa"
    if not target.exists():
        with locked(target.parent / "lock"):
            if not target.exists():
                with notices() as terminal:
                    (notice or terminal)("Spark: its classes are put into an archive, for quicker starts")
                    _make(target, conf)
    return target if target.stat().st_size else None


def reading(archive: Path) -> str:
    """Return Java's options for a start from an archive."""
    return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off'


def _make(target: Path, conf: Mapping[str, str]) -> None:
    new = target.with_suffix(".new")
    writing = f'"-XX:ArchiveClassesAtExit={new}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    options = "spark.driver.extraJavaOptions"
    whole = {**conf, options: f"{conf[options]} {writing}"}
    try:
        subprocess.run(  # noqa: S603 - our own command line
            [sys.executable, "-m", "offsetstore.local.warm_up", json.dumps(whole)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=_SECONDS,
        )  # fmt: skip
        new.rename(target)
    except (OSError, subprocess.SubprocessError) as error:
        new.unlink(missing_ok=True)
        target.touch()
        said = getattr(error, "stderr", None) or error
        _log.warning("no archive of Spark's classes; it starts as ever: %s", str(said)[-_SHOWN:])


def _key(conf: Mapping[str, str], jars: str) -> str:
    """A new name for what Java would refuse to read, since the jars are others or it is itself another."""
    release = find_java().home / "release"
    pyspark = find_spec("pyspark")
    places = (pyspark.submodule_search_locations or []) if pyspark else []
    parts = [
        release.read_text(encoding="utf-8") if release.exists() else str(find_java()),
        jars,
        *(f"{place} {(Path(place) / 'jars').stat().st_mtime_ns}" for place in places),
        *(f"{name}={value}" for name, value in sorted(conf.items()) if name.endswith("Options")),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
