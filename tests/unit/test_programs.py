"""What the run says of tests whose program can't be had, and that no other package than the pinned one is run."""

from __future__ import annotations

import tarfile
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


def test_they_are_left_out_and_the_last_lines_say_so_or_fail_where_every_test_is_wanted(
    run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run.runpytest_subprocess("-p", "tests.programs", "-n", "1")
    assert done.ret == 0
    done.assert_outcomes(passed=1)
    *_, title, text, _counts = [line for line in done.outlines if line]
    assert "NOT EVERY TEST WAS RUN" in title
    assert text.startswith("Left out: 1, for lack of promtool")
    monkeypatch.setenv(VARIABLE, "1")
    run.runpytest_subprocess("-p", "tests.programs").assert_outcomes(passed=1, failed=1)


def test_a_package_that_is_not_the_pinned_one_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("OFFSETSTORE_CACHE", str(tmp_path / "cache"))
    (script := tmp_path / "axe.min.js").write_text("1")
    with tarfile.open(tmp_path / "packed", "w:gz") as archive:
        archive.add(script, "package/axe.min.js")
    (npm := tmp_path / "npm").write_text(f"#!/bin/sh\n/bin/cp {tmp_path / 'packed'} axe-core.tgz\n")
    npm.chmod(0o755)
    with pytest.raises(pytest.UsageError, match="than the one pinned"):
        chromium.find_axe()
