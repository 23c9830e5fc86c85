from __future__ import annotations

import subprocess
import sys
from signal import SIGCONT, SIGKILL

import psutil
import pytest

from offsetstore.errors import ConfigurationError
from offsetstore.runtime import failpoints
from offsetstore.runtime.failpoints import VARIABLE, FailpointReached
from tests.support.waiting import wait_until


def test_it_breaks_once_at_the_point_and_the_time_named_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    failpoints.reach("in_copy")
    assert not failpoints.armed("in_copy")

    monkeypatch.setenv(VARIABLE, "in_copy:3:raise")
    for point in ("in_copy", "after_lock", "in_copy"):
        assert not failpoints.armed("in_copy")
        failpoints.reach(point)
    assert failpoints.armed("in_copy")
    with pytest.raises(FailpointReached, match="in_copy"):
        failpoints.reach("in_copy")
    failpoints.reach("in_copy")
    assert capsys.readouterr().err.startswith("offsetstore failpoint in_copy: raise (pid ")


@pytest.mark.parametrize("wanted", ["in_copy", "in_copy:1:kill"])
def test_it_kills_this_process_alone_by_default(wanted: str) -> None:
    program = "from offsetstore.runtime import failpoints; failpoints.reach('in_copy'); print('alive')"

    done = subprocess.run(
        [sys.executable, "-c", program], env={VARIABLE: wanted}, capture_output=True, text=True, check=False
    )

    assert done.returncode == -SIGKILL
    assert done.stdout == ""
    assert done.stderr.startswith("offsetstore failpoint in_copy: kill")


def test_it_stands_still_until_it_is_let_go_on() -> None:
    program = "from offsetstore.runtime import failpoints; failpoints.reach('in_copy'); print('alive')"

    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={VARIABLE: "in_copy:stop"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        process.send_signal(SIGCONT)
        printed, said = process.communicate(timeout=60)

    assert printed == "alive\n"
    assert said.startswith("offsetstore failpoint in_copy: stop")


@pytest.mark.parametrize(
    "wanted",
    [
        *("nowhere", "in_copy:0", "in_copy:-1", "in_copy:", "in_copy:explode"),
        *("in_copy:kill:2", "in_copy:1:2:kill", ":kill"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_names(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setenv(VARIABLE, wanted)

    with pytest.raises(ConfigurationError, match="before_commit") as caught:
        failpoints.reach("after_lock")

    assert caught.value.found == wanted
