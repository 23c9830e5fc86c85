"""A disk that is small enough to be filled: a tmpfs of our own. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from offsetstore.local.postgres.binaries import temporary_directory, unprivileged_account

_MEGABYTE = 1 << 20


class SmallDisk:
    """Mounted at ``path``, which is the database's account's own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    @property
    def free(self) -> int:
        """Bytes that are left."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Leave nothing."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (_MEGABYTE, 4096, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:  # no room for so much
                    continue

    def make_room(self) -> None:
        """Give back what `fill` has taken."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(megabytes: int) -> Generator[SmallDisk]:
    """Mount one; it is gone at the end, whatever happens."""
    account = unprivileged_account()
    path = temporary_directory(account, prefix="offsetstore-small-disk-")
    try:
        options = f"size={megabytes}m,mode=0700,uid={account.uid or os.getuid()},gid={account.gid or os.getgid()}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "offsetstore-small-disk", str(path)], check=True)
        try:
            yield SmallDisk(path)
        finally:
            # Lazily, should a process that dies have a file open.
            subprocess.run(["umount", "-l", str(path)], check=True)
    finally:
        path.rmdir()
