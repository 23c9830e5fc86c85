"""Prometheus: its programs, the system's or those in Debian's package, which needs no installation; and a server."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from offsetstore.local import cache_directory, locked
from offsetstore.local.servers import LOOPBACK, free_port, tail
from tests.support.waiting import wait_until

_PROGRAMS: Final = ("prometheus", "promtool")
_SECONDS = 300


def find_prometheus() -> Path | None:
    """Return the server: the system's, else the cache's; get it from apt first. ``None`` if it can't be had."""
    return _find("prometheus")


def find_promtool() -> Path | None:
    """Return ``promtool``, found in the same way."""
    return _find("promtool")


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server that runs."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """Ask its API; ``match`` is its ``match[]``."""
        sent = urlencode({"match[]" if name == "match" else name: value for name, value in parameters.items()})
        with urlopen(f"{self.url}/api/v1/{path}?{sent}", timeout=60) as answer:  # noqa: S310 - http
            return json.load(answer)["data"]

    def now(self, query: str) -> list[Any]:
        """The samples of a query at this moment."""
        return self.get("query", query=query)["result"]

    def between(self, query: str, start: float, end: float) -> list[Any]:
        """The series of a query in that time, with a sample a second."""
        return self.get("query_range", query=query, start=str(start), end=str(end), step="1")["result"]

    def series(self, selector: str) -> list[dict[str, str]]:
        """The labels of each series that was ever there."""
        return self.get("series", match=selector)

    @property
    def own_metrics(self) -> str:
        """What it tells of itself."""
        with urlopen(f"{self.url}/metrics", timeout=60) as answer:  # noqa: S310 - http
            return answer.read().decode()


@contextmanager
def running(directory: Path, config: Mapping[str, Any]) -> Generator[Prometheus]:
    """Run a server on the loopback, with its files and data in a directory, until the block is left."""
    program = find_prometheus()
    assert program is not None
    (directory / "prometheus.yml").write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    port = free_port()
    command = [program, "--config.file=prometheus.yml", f"--web.listen-address={LOOPBACK}:{port}"]
    log = directory / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--storage.tsdb.path=data"], cwd=directory, stdout=out, stderr=out)
    server = Prometheus(f"http://{LOOPBACK}:{port}")

    def answers() -> bool:
        assert process.poll() is None, tail(log, lines=10)
        try:
            with urlopen(f"{server.url}/-/ready", timeout=5):  # noqa: S310 - http
                return True
        except OSError:  # refused, reset, too late, or not ready
            return False

    try:
        wait_until(answers, timeout=60)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()


def _find(name: str) -> Path | None:
    if system := shutil.which(name):
        return Path(system)
    directory = cache_directory() / "prometheus"
    with locked(directory / "lock"):
        if not (directory / name).exists():
            _download(directory)
    return directory / name if (directory / name).exists() else None


def _download(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target) as name:
        directory = Path(name)
        directory.chmod(0o755)  # apt gives up root's rights to download
        try:
            # With lists of its own: the system's may be missing or old, and only root may renew them.
            (directory / "lists" / "partial").mkdir(parents=True)
            (directory / "cache" / "archives" / "partial").mkdir(parents=True)
            own = [f"-oDir::State::Lists={directory / 'lists'}", f"-oDir::Cache={directory / 'cache'}"]
            _run(directory, "apt-get", *own, "update")
            _run(directory, "apt-get", *own, "download", "prometheus")
            _run(directory, "dpkg-deb", "--extract", str(next(directory.glob("*.deb"))), "unpacked")
        except (OSError, subprocess.SubprocessError, StopIteration):
            return
        for program in _PROGRAMS:
            (directory / "unpacked" / "usr" / "bin" / program).rename(target / program)


def _run(directory: Path, *command: str) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=_SECONDS)
