"""Finds a Java that is new enough for Spark 4 and Kafka 4, and says what to install if there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from offsetstore.errors import MissingDependency

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
    seen: list[str] = []
    for origin, program in _candidates():
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


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / ("java.exe" if os.name == "nt" else "java")
    if program := shutil.which("java"):
        yield "PATH", Path(program)
