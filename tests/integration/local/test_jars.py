"""Downloads: with the real Ivy, from a repository that is a directory of this test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from offsetstore.errors import MissingDependency
from offsetstore.local.jars import Artifact, JarSet, jars

THINGS = JarSet("things", (Artifact("org.things", "thing", "1.0"),))
SETTINGS = """\
<ivysettings>
  <settings defaultResolver="here"/>
  <resolvers>
    <filesystem name="here" m2compatible="true">
      <ivy pattern="{0}/[module]-[revision].pom"/>
      <artifact pattern="{0}/[artifact]-[revision].[ext]"/>
    </filesystem>
  </resolvers>
</ivysettings>
"""
POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.things</groupId><artifactId>{}</artifactId><version>1.0</version>
  {}
</project>
"""
NEEDS_PART = """<dependencies><dependency>
  <groupId>org.things</groupId><artifactId>part</artifactId><version>1.0</version>
</dependency></dependencies>"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with ``thing``, which needs ``part``; and an empty cache."""
    directory = tmp_path / "repository"
    directory.mkdir()
    (directory / "thing-1.0.pom").write_text(POM.format("thing", NEEDS_PART))
    (directory / "part-1.0.pom").write_text(POM.format("part", ""))
    (directory / "thing-1.0.jar").write_bytes(b"thing")
    (directory / "part-1.0.jar").write_bytes(b"part")
    settings = tmp_path / "settings.xml"
    settings.write_text(SETTINGS.format(directory))
    monkeypatch.setenv("OFFSETSTORE_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("OFFSETSTORE_CACHE", str(tmp_path / "cache"))
    return directory


def test_a_set_is_downloaded_with_what_it_needs_again_if_it_is_not_whole_and_then_found(repository: Path) -> None:
    told: list[str] = []
    found = jars(THINGS, notice=told.append)
    assert [jar.name for jar in found] == ["part-1.0.jar", "thing-1.0.jar"]
    assert told[-1] == "things: 2 jars, 0 MB"
    found[1].write_bytes(b"thi")
    assert [jar.read_bytes() for jar in jars(THINGS, notice=print)] == [b"part", b"thing"]
    for file in repository.iterdir():
        file.unlink()
    assert jars(THINGS, notice=told.append) == found


def test_a_failed_download_says_what_to_do_and_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    (repository / "part-1.0.jar").unlink()
    with pytest.raises(MissingDependency) as raised:
        jars(THINGS, notice=print)
    assert raised.value.found == "org.things#part;1.0!part.jar"
    assert raised.value.expected == "org.things:thing:1.0"
    assert "OFFSETSTORE_IVY_SETTINGS" in raised.value.next_step
    assert [entry.name for entry in (tmp_path / "cache" / "jars").iterdir()] == ["lock"]


def test_what_is_not_published_is_replaced_by_what_is_and_found_again(repository: Path) -> None:
    unpublished = JarSet("things", (Artifact("org.things", "thing", "1.1"),))
    told: list[str] = []
    found = jars(unpublished, instead=[THINGS], notice=told.append)
    assert [jar.name for jar in found] == ["part-1.0.jar", "thing-1.0.jar"]
    assert "things: 1.1 is unavailable, trying 1.0" in told
    for file in repository.iterdir():
        file.unlink()
    assert jars(unpublished, instead=[THINGS], notice=told.append) == found
    with pytest.raises(MissingDependency) as raised:
        jars(JarSet("others", (Artifact("org.things", "other", "1.1"),)), instead=[], notice=print)
    assert raised.value.found == "org.things#other;1.1: not found"


def test_two_processes_at_once_download_once(repository: Path) -> None:
    script = f"from offsetstore.local.jars import Artifact, JarSet, jars\nprint(len(jars({THINGS!r})))\n"
    both = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=180) for process in both]
    assert [found for found, _ in answers] == ["2\n", "2\n"]
    assert sum("2 jars" in told for _, told in answers) == 1
