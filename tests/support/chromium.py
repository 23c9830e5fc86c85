"""Chromium, the system's or npm's, and axe-core from npm, which finds what keeps people from using a page."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from offsetstore.local import cache_directory, locked

_SYSTEM: Final = ("chromium", "chromium-browser", "google-chrome")
_SECONDS: Final = 300

# Without it, text would need the system's fonts, and where it has none Chromium ends.
_FONTS: Final = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <dir prefix="relative">fonts</dir>
</fontconfig>
"""
_DECOMPRESS: Final = "process.stdin.pipe(zlib.createBrotliDecompress()).pipe(process.stdout)"


@dataclass(frozen=True, slots=True)
class Chromium:
    """A browser that starts here, and the variables that it needs."""

    executable: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    def works(self) -> bool:
        """Ask for its version: a program that is there may lack a library, or be Ubuntu's hint to install a snap."""
        try:
            subprocess.run(
                (self.executable, "--version"),
                env={**os.environ, **self.environment},
                check=True,
                capture_output=True,
                timeout=_SECONDS,
            )
        except (OSError, subprocess.SubprocessError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Package:
    """A package of npm; the integrity is the registry's ``dist.integrity``, held here against what arrives."""

    name: str
    version: str
    integrity: str

    @property
    def directory(self) -> Path:
        return cache_directory() / self.name.rpartition("/")[-1] / self.version

    def find(self, prepare: Callable[[Path, Path], None]) -> Path | None:
        """Return its directory in the cache, downloaded and prepared first if need be; ``None`` if that fails."""
        target = self.directory
        with locked(target.parent / "lock"):
            if not target.exists():
                with tempfile.TemporaryDirectory(dir=target.parent) as work:
                    try:
                        self._unpack(Path(work))
                        (prepared := Path(work) / "prepared").mkdir()
                        prepare(Path(work) / "package", prepared)
                    except (OSError, subprocess.SubprocessError):
                        return None
                    prepared.rename(target)
        return target

    def _unpack(self, work: Path) -> None:
        pack = ("npm", "pack", "--silent", "--ignore-scripts", "--cache", work / "npm", f"{self.name}@{self.version}")
        subprocess.run(pack, cwd=work, check=True, capture_output=True, timeout=_SECONDS)
        (packed,) = work.glob("*.tgz")
        if (arrived := integrity(packed)) != self.integrity:
            raise pytest.UsageError(f"npm brought another {self.name} {self.version} than the one pinned: {arrived}")
        with tarfile.open(packed) as archive:
            archive.extractall(work, filter="data")


def integrity(file: Path) -> str:
    """Return the file's sha512 as npm writes it."""
    with file.open("rb") as opened:
        return "sha512-" + base64.b64encode(hashlib.file_digest(opened, "sha512").digest()).decode()


CHROMIUM: Final = _Package(
    "@sparticuz/chromium",
    "153.0.0",
    "sha512-jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==",
)
AXE: Final = _Package(
    "axe-core",
    "4.14.1",
    "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)


def find_chromium() -> Chromium | None:
    """Return the system's, else npm's, which is built for Linux on x86-64. ``None`` if neither can be had."""
    for name in _SYSTEM:
        if (path := shutil.which(name)) and (system := Chromium(Path(path))).works():
            return system
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    if (directory := CHROMIUM.find(_prepare_chromium)) is None:
        return None
    environment = {"LD_LIBRARY_PATH": str(directory / "lib"), "FONTCONFIG_FILE": str(directory / "fonts.conf")}
    bundled = Chromium(directory / "chromium", environment)
    return bundled if bundled.works() else None


def find_axe() -> Path | None:
    """Return the script that is loaded into a page. ``None`` if npm can't bring it."""
    directory = AXE.find(_prepare_axe)
    return None if directory is None else directory / "axe.min.js"


def _prepare_chromium(package: Path, target: Path) -> None:
    """Decompress the program, the libraries of NSS that it needs, and fonts."""
    for part in ("chromium", "al2023.tar", "fonts.tar"):
        with (package / "bin" / f"{part}.br").open("rb") as packed, (package / part).open("wb") as unpacked:
            subprocess.run(("node", "-e", _DECOMPRESS), stdin=packed, stdout=unpacked, check=True, timeout=_SECONDS)
    for part in ("al2023.tar", "fonts.tar"):
        with tarfile.open(package / part) as archive:
            archive.extractall(target, filter="data")
    (target / "fonts.conf").write_text(_FONTS)
    (package / "chromium").rename(target / "chromium").chmod(0o755)


def _prepare_axe(package: Path, target: Path) -> None:
    (package / "axe.min.js").rename(target / "axe.min.js")
