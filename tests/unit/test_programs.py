"""What the run says of tests whose program can't be had."""

from __future__ import annotations

import pytest

from tests import programs

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
    monkeypatch.delenv(programs.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("OFFSETSTORE_CACHE", str(pytester.path))
    monkeypatch.setenv("PYTHONPATH", programs.__file__.removesuffix("/tests/programs.py"))
    pytester.makeini("[pytest]\nmarkers =\n    needs_program(name)")
    pytester.makepyfile(TESTS)
    return pytester


def test_they_are_left_out_and_the_last_lines_say_so(run: pytest.Pytester) -> None:
    done = run.runpytest_subprocess("-p", "tests.programs", "-n", "2")
    assert done.ret == 0
    done.assert_outcomes(passed=1)
    *_, title, text, _counts = [line for line in done.outlines if line]
    assert "NOT EVERY TEST WAS RUN" in title
    assert text.startswith("Left out: 1, for lack of promtool")


def test_where_every_test_is_wanted_they_fail(run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(programs.VARIABLE, "1")
    run.runpytest_subprocess("-p", "tests.programs").assert_outcomes(passed=1, failed=1)


def test_what_is_not_selected_is_not_looked_for(run: pytest.Pytester) -> None:
    done = run.runpytest_subprocess("-p", "tests.programs", "-k", "other")
    assert "NOT EVERY TEST" not in str(done.stdout)
    assert not (run.path / "prometheus").exists()
