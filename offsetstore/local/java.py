"""Java on this machine: one that is new enough for Spark 4 and Kafka 4, and archives of the classes that it loads.

A start of Spark or a broker from an archive takes half the processor time. Java calls this class data sharing (JEP
350). Java itself checks whether an archive fits it and the jars; if not, it loads the classes as usual, which only
takes longer (decision 0021).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offsetstore.errors import MissingDependency, OffsetStoreError
from offsetstore.local import Notice, cache_directory, locked, notices

OLDEST_JAVA = 17
"""Spark 4 and Kafka 4 run on this version and newer ones."""

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a Java that runs for minutes on few cores: the second compiler would take half of its time."""

_INSTALL = (
    "Install one: Debian and Ubuntu `apt install openjdk-17-jre-headless`, "
    "Fedora `dnf install java-21-openjdk-headless`, macOS `brew install openjdk@17`, "
    "Windows `winget install EclipseAdoptium.Temurin.17.JRE`; or set JAVA_HOME to an installed one."
)
_ANSWER_SECONDS = 30
_AGAIN_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class Java:
    """A ``java`` program and its major version."""

    program: Path
    version: int

    @property
    def home(self) -> Path:
        """The value of JAVA_HOME with which other programs use this Java."""
        return self.program.resolve().parent.parent

    @property
    def keytool(self) -> Path:
        """The program that manages certificates; every complete Java runtime has it."""
        return self.program.resolve().with_name(f"keytool{self.program.suffix}")


def find_java() -> Java:
    """Find the first Java that is new enough: JAVA_HOME's, then PATH's.

    :raises MissingDependency: none is new enough; with what was found, and what to install.
    """
    candidates: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(home) / "bin" / ("java.exe" if os.name == "nt" else "java")))
    if on_path := shutil.which("java"):
        candidates.append(("PATH", Path(on_path)))
    seen: list[str] = []
    for origin, program in candidates:
        version = java_version(program)
        if version is not None and version >= OLDEST_JAVA:
            return Java(program, version)
        seen.append(f"{origin}: " + (f"Java {version} ({program})" if version else f"{program}, which is not a Java"))
    raise MissingDependency(
        "no Java that is new enough",
        found="; ".join(seen) or "no JAVA_HOME, and no java on the PATH",
        expected=f"Java {OLDEST_JAVA} or newer",
        next_step=_INSTALL,
    )


def java_version(program: Path) -> int | None:
    """Ask a program for its version; ``None`` if it is not a Java (macOS has a ``java`` that only advertises one)."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            [program, "-version"], capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(done.stderr + done.stdout)


def parse_java_version(text: str) -> int | None:
    """Read the major version from what ``java -version`` prints; ``1.8.0_292`` is 8. ``None`` if there is none."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major, minor = match.groups()
    return int(minor) if major == "1" and minor else int(major)


ARCHIVE_SECONDS: Final = 300
"""How long a program that writes an archive may take."""

_SHOWN: Final = 500
_QUIETLY: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")

_log = logging.getLogger(__name__)


def archive_of(
    program: str, parts: Iterable[str], write: Callable[[tuple[str, ...]], object], *, notice: Notice | None = None
) -> Path | None:
    """Return the archive of a program's classes; make it, in half a minute, if it is not in the cache.

    If two processes ask at once, it is made once.

    :param parts: what its classes depend on besides Java, which would refuse any other archive.
    :param write: starts the program with these Java options, and ends it in order.
    :return: ``None`` if it could not be made; an hour later, that is tried again.
    """
    java = find_java()
    release = java.home / "release"
    version = release.read_text(encoding="utf-8") if release.exists() else str(java)
    key = hashlib.sha256("\n".join([version, *parts]).encode()).hexdigest()[:12]
    target = cache_directory() / "classes" / f"{program.lower()}-{key}.jsa"
    if _is_due(target):
        with locked(target.parent / "lock"):
            if _is_due(target):
                with notices(notice) as tell:
                    tell(f"{program}: archiving its classes for quicker starts")
                    _make(program, target, write)
    return target if target.stat().st_size else None


def _is_due(archive: Path) -> bool:
    if not archive.exists():
        return True
    # The machine may only have been too busy at the time.
    found = archive.stat()
    return found.st_size == 0 and time.time() - found.st_mtime > _AGAIN_SECONDS


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
        target.touch()  # empty: not to be tried again soon
        said = getattr(error, "stderr", None) or error
        _log.warning("could not archive the classes of %s; it starts as usual: %s", program, str(said)[-_SHOWN:])
