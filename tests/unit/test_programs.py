"""What the run says of tests whose program can't be had, and how a browser is looked for."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.programs import VARIABLE
from tests.support import chromium

pytest_plugins = ["pytester"]

TESTS = """
import pytest

from tests.support.prometheus import find_promtool

@pytest.mark.needs_program("promtool")
def test_rules():
    assert find_promtool() is not None

def test_other():
    pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A run where neither the system nor apt has promtool."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("OFFSETSTORE_CACHE", str(pytester.path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeini("[pytest]\nmarkers =\n    needs_program(name)")
    pytester.makepyfile(TESTS)
    return pytester


def test_they_are_left_out_and_the_last_lines_say_so(run: pytest.Pytester) -> None:
    done = run.runpytest_subprocess("-p", "tests.programs", "-n", "1")
    assert done.ret == 0
    done.assert_outcomes(passed=1)
    *_, title, text, _counts = [line for line in done.outlines if line]
    assert "NOT EVERY TEST WAS RUN" in title
    assert text.startswith("Left out: 1, for lack of promtool")


def test_where_every_test_is_wanted_they_fail(run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    run.runpytest_subprocess("-p", "tests.programs").assert_outcomes(passed=1, failed=1)


def test_what_is_not_selected_is_not_looked_for(run: pytest.Pytester) -> None:
    done = run.runpytest_subprocess("-p", "tests.programs", "-k", "other")
    assert "NOT EVERY TEST" not in str(done.stdout)
    assert not (run.path / "prometheus").exists()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory where programs are looked for; nothing is in the cache."""
    (directory := tmp_path / "programs").mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setenv("OFFSETSTORE_CACHE", str(tmp_path / "cache"))
    return directory


def install(programs: Path, name: str, script: str) -> Path:
    (program := programs / name).write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def install_npm(programs: Path) -> None:
    """Each time, it brings the same package, and writes a line."""
    (script := programs / "axe.min.js").write_text("1")
    with tarfile.open(programs / "packed", "w:gz") as archive:
        archive.add(script, "package/axe.min.js")
    install(programs, "npm", f"/bin/cp {programs / 'packed'} axe-core.tgz; echo called >> {programs / 'calls'}")


def test_a_package_is_downloaded_once(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_npm(programs)
    packed = chromium.integrity(programs / "packed")
    monkeypatch.setattr(chromium, "AXE", replace(chromium.AXE, integrity=packed))
    found = [chromium.find_axe(), chromium.find_axe()]
    assert [path.read_text() for path in found if path] == ["1", "1"]
    assert (programs / "calls").read_text() == "called\n"


def test_a_package_that_is_not_the_pinned_one_stops_the_run(programs: Path) -> None:
    install_npm(programs)
    with pytest.raises(pytest.UsageError, match="than the one pinned"):
        chromium.find_axe()


def test_without_npm_there_is_none(programs: Path) -> None:
    assert chromium.find_axe() is None
    assert chromium.find_chromium() is None


def test_the_system_has_one(programs: Path) -> None:
    system = install(programs, "google-chrome", "exit 0")
    assert chromium.find_chromium() == chromium.Chromium(system)


def test_the_system_has_one_that_does_not_start(programs: Path) -> None:
    install(programs, "chromium-browser", "echo 'requires the chromium snap to be installed'; exit 1")
    assert chromium.find_chromium() is None
