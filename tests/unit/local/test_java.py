"""Which Java is taken, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from offsetstore.errors import MissingDependency
from offsetstore.local.java import find_java, parse_java_version


def java_home(where: Path, says: str) -> Path:
    program = where / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return where


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('java version "1.8.0_292"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion="1"\nopenjdk version "11.0.2" 2019-01-15', 11),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_version_is_read_in_every_form(says: str, version: int | None) -> None:
    assert parse_java_version(says) == version


@pytest.mark.parametrize(("at_home", "found"), [("21.0.1", 21), ("11.0.2", 17)])
def test_java_home_comes_before_the_path_unless_it_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_home: str, found: int
) -> None:
    home = java_home(tmp_path / "home", f'openjdk version "{at_home}"')
    path = java_home(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(path / "bin"), prepend=":")
    assert (find_java().version, find_java().home == home) == (found, found == 21)


def test_where_there_are_none_or_only_old_ones_it_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_home(tmp_path / "home", 'openjdk version "11.0.2"')
    path = java_home(tmp_path / "path", 'java version "1.8.0_292"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(path / "bin"))
    with pytest.raises(MissingDependency) as raised:
        find_java()
    assert raised.value.found == f"JAVA_HOME: Java 11 ({home}/bin/java); PATH: Java 8 ({path}/bin/java)"
    assert raised.value.expected == "Java 17 or newer"
    assert "apt install openjdk-17-jre-headless" in raised.value.next_step
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="no JAVA_HOME, and no java on the PATH"):
        find_java()
