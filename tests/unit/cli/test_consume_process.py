"""A process of ``offsetstore consume``: what is wrong with the user's module and function."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from offsetstore import errors
from offsetstore.cli import consume_process
from offsetstore.cli.consume_process import ConsumerProcess, FirstRows, Told, Watched, end_after, load, main
from offsetstore.errors import ConfigurationError, ExitCode
from offsetstore.monitoring.page import End, Orders, Page
from offsetstore.monitoring.processes import STACKS
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.events import BatchEnded
from offsetstore.text import TRACE, describe_other
from tests.support.background import in_background
from tests.support.terminal import terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("CONS-11", "DX-1")

Ended = Callable[[str], tuple[int, str]]
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
_RAISES = "from offsetstore.errors import *\ndef consumer():\n    raise "


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.behaviour("CONS-15")
def test_an_error_that_cant_be_shown_ends_nothing() -> None:
    assert describe_other(Unspeakable())[0] == "Unspeakable: it can't be shown: SystemExit"


def test_at_a_terminal_the_first_rows_are_told_and_no_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(rows: FirstRows) -> None:
        ranges = {TopicPartition("payments", 0): OffsetRange(0, 9)}
        rows.on(BatchEnded(group="billing", batch=0, ranges=ranges, outcome="failed"))
        for batch in (1, 2):
            rows.on(BatchEnded(group="billing", batch=batch, ranges=ranges, outcome="written", rows={"a": 4, "b": 5}))

    with terminal(monkeypatch) as screen:
        play(FirstRows(2))
    [line] = screen.lines
    assert re.fullmatch(rf"{TIME} offsetstore: process 2: batch 1: 9 rows", line)
    play(FirstRows(2))
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page.make()
    yield made
    made.close()


@pytest.fixture
def ended(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Ended]:
    """Run a process with a module of this source; its exit code, and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before, handler = {*sys.modules}, signal.getsignal(signal.SIGTERM)
    made = 0

    def run(source: str) -> tuple[int, str]:
        nonlocal made
        made += 1
        (tmp_path / f"app_{made}.py").write_text(source)
        reads, writes = os.pipe()
        orders = page.orders()
        os.ftruncate(page.descriptor, 0)  # what the process before has told
        page.order(orders)
        code = main(
            Told(f"app_{made}:consumer", 0, 1, is_static=False, has_metrics=False), writes, os.dup(page.descriptor)
        )
        os.close(reads)
        assert (end := Page(page.descriptor).words().end) is not None
        assert end.code == code
        return code, capfd.readouterr().err.replace(f"app_{made}", "app")

    yield run
    signal.signal(signal.SIGTERM, handler)
    faulthandler.unregister(STACKS)
    for name in {*sys.modules} - before:
        if name.startswith("app_"):
            del sys.modules[name]


_OUTAGE = """
from offsetstore.consumer import Consumer
from offsetstore.testing import InMemoryOffsetStore
from offsetstore.writers import Append

def rates(batch):
    raise ConnectionError("the rates are away")

class Once(Consumer):
    def run(self):
        rates(None)

def consumer():
    kafka = {"bootstrap.servers": "localhost:1"}
    return Once(
        InMemoryOffsetStore(), "billing", topics=["payments"], kafka=kafka, transform=rates, into=Append("rows")
    )
"""


@pytest.mark.parametrize(
    ("source", "code", "told"),
    [
        (
            "import no_such_package\n",
            2,
            ["module app can't be imported\n  found:     ModuleNotFoundError: No module named 'no_", "app.py:1"],
        ),
        (
            "x = 1\nfrom offsetstore import Nothing\n",
            2,
            ["module app can't be imported\n  found:     ImportError: cannot import name 'Nothing'", "app.py:2"],
        ),
        ("def consumer(:\n", 2, ["module app can't be imported\n  found:     SyntaxError: ", "app.py:1"]),
        ("def consumer(store):\n    pass\n", 2, ["app:consumer takes arguments\n  found:     consumer(store)\n"]),
        (
            "import os\ndef consumer():\n    return os.environ['NO_SUCH_VARIABLE']\n",
            70,
            ["app:consumer failed: the environment variable NO_SUCH_VARIABLE is not set", "app.py:3, in consumer\n"],
        ),
        (
            "from offsetstore.consumer import Consumer\ndef consumer():\n    return Consumer(None, 'g', topisc=[])\n",
            70,
            ["app:consumer failed: TypeError: Consumer.__init__() got an unexpected", "app.py:3, in consumer\n"],
        ),
        ("limits = {}['rows']\n", 70, ["app:consumer failed: KeyError: 'rows'", "app.py:1, in <module>\n"]),
        (_OUTAGE, 70, ["app:consumer failed: ConnectionError: the rates are away", "app.py:7, in rates\n"]),
    ],
)
def test_what_is_wrong_with_the_module_or_its_function_is_told_with_its_line(
    source: str, code: int, told: list[str], ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, said = ended(source)
    assert found == code
    assert re.match(rf"{TIME} offsetstore: process 0: Error: {re.escape(told[0])}", said)
    assert [text for text in (*told, "  next step: ") if text not in said] == []
    assert ("The process is started again meanwhile" in said) is (code == 70)
    assert "  expected:  " in said or "can't be imported" not in said
    assert not {"Traceback", "importlib"} & {*said.split()}
    assert len(said.splitlines()) <= 4
    monkeypatch.setenv(TRACE, "1")
    assert "Traceback" in ended(source)[1] or code == 2


def test_a_typo_in_the_function_ends_at_once_and_no_class_is_suggested_and_each_line_says_when_and_who(
    tmp_path: Path,
) -> None:
    """The command as a whole, with a warning that is logged while the module is imported."""
    source = (
        "import logging\nfrom offsetstore.consumer import Consumer\nlogging.getLogger('offsetstore').warning('hm')\n"
    )
    (tmp_path / "shop_app.py").write_text(f"{source}def consumer(): ...\n")
    main = "from offsetstore.cli.main import main; main()"
    command = [sys.executable, "-c", main, "consume", "shop_app:consumr"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 2
    lines = [line for line in found.stderr.splitlines() if not line.startswith("  ")]
    said = [re.fullmatch(rf"{TIME} offsetstore: (.*)", line) for line in lines]
    assert [one and one[1] for one in said] == [
        "1 process of shop_app:consumr; Ctrl-C or SIGTERM ends all",
        "process 0: hm",
        "process 0: Error: module shop_app has no function consumr",
        "process 0 has ended with exit code 2, and a restart does not help: ending",
        "ended with exit code 2",
    ]
    assert "next step: Did you mean 'consumer'? Correct the name, or write the function." in found.stderr


@pytest.mark.behaviour("DX-9")
def test_an_error_is_printed_once_and_not_by_the_processes_that_follow(ended: Ended, page: Page) -> None:
    missing, other = "import no_such_package\n", "import no_other_package\n"
    _, first = ended(missing)
    end = page.words().end
    assert end is not None
    assert re.fullmatch(rf"{TIME} offsetstore: process 0: {re.escape(end.error.replace('app_1', 'app'))}\n", first)
    page.order(Orders(printed=end.error.replace("app_1", "app_2")))
    assert ended(missing) == (2, "")
    page.order(Orders(printed=end.error.replace("app_1", "app_3")))
    assert "no_other_package" in ended(other)[1]


@pytest.mark.behaviour("CONS-16")
@pytest.mark.parametrize(
    ("source", "end"),
    [
        ("import no_such_package\n", End(2, "repeats")),
        ("def consumer():\n    import no_such_package\n", End(70, "repeats")),
        ("def consumr():\n    pass\n", End(2, "harms")),
        ("consumer = 7\n", End(2, "harms")),
        ("def consumer():\n    raise KeyError\n", End(70, "helps")),
        ("def consumer():\n    pass\n", End(2, "harms")),
        ("def consumer(one):\n    pass\n", End(2, "harms")),
        (f"{_RAISES}StoreUnavailable('it')\n", End(3, "helps")),
        (f"{_RAISES}MissingDependency('it')\n", End(2, "repeats")),
        (f"{_RAISES}StaleClaim('it')\n", End(6, "harms")),
    ],
)
def test_what_a_restart_does_is_told_by_the_type_of_the_error(source: str, end: End, ended: Ended, page: Page) -> None:
    ended(source)
    assert page.words().end == end


@pytest.mark.behaviour("CONS-16")
def test_only_what_stays_as_it_is_until_someone_mends_it_repeats() -> None:
    kinds = {
        "repeats": "MissingPrivilege SchemaMissing SchemaNotAtHead SchemaError BrokerRefused ColumnMismatch "
        "UnsafeTarget TargetRefused KafkaColumnsMissing",
        "harms": "ConfigurationError StaleClaim GroupBusy StoreRewound",
        "helps": "StoreUnavailable ConnectionLost LockTimeout BrokerUnavailable TlsFailed TopicMissing RowsRefused "
        "HandlerStuck SinkError",
    }
    expected = {name: restart for restart, names in kinds.items() for name in names.split()}
    assert {name: end_after(getattr(errors, name)("it")).restart for name in expected} == expected


@pytest.mark.behaviour("CONS-16")
def test_a_process_has_written_once_records_are_stored_and_not_by_a_flush_that_had_nothing_left(page: Page) -> None:
    """When a partition is given back under way, nothing remains of its records."""
    watched, ended = Watched(page), partial(BatchEnded, group="billing", batch=0, ranges={})
    for event in (ended(outcome="skipped"), ended(outcome="failed", error=errors.ColumnMismatch("it"))):
        watched.on(event)
    assert not page.words().has_written
    watched.on(ended(outcome="written"))
    watched.handles({TopicPartition("payments", 0): OffsetRange(0, 1)}, "")
    assert page.words().has_written
    assert [str(range_) for range_ in page.words().handled.values()] == ["[0, 1)"]


@pytest.mark.parametrize("kind", ["SinkError", "OperationalError"])
def test_the_trace_of_an_error_that_is_told_as_ours_shows_its_cause(
    ended: Ended, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source = f"""
from psycopg import OperationalError
from offsetstore.errors import SinkError
def consumer():
    try:
        print(1 / 0)
    except ZeroDivisionError as error:
        raise {kind}("it refuses") from error
"""
    assert "Traceback" not in ended(source)[1]
    monkeypatch.setenv(TRACE, "1")
    code, said = ended(source)
    assert kind != "OperationalError" or (code, "the connection to the database was lost" in said) == (3, True)
    trace, _, told = said.rpartition(" process 0: Error: ")
    assert trace.count("Traceback (most recent call last)") >= 2
    assert "ZeroDivisionError: division by zero" in trace
    assert told


def test_of_an_error_in_a_function_it_is_told_how_to_see_its_text_and_traceback(
    ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
from offsetstore.errors import FunctionFailed
def consumer():
    try:
        "12" + 1
    except TypeError as error:
        failed = FunctionFailed("transform raised TypeError at app.py:5", text=str(error))
        raise failed from error
"""
    _, said = ended(source)
    step = "Correct the function, or have the transform reject such records. "
    assert f"next step: {step}{TRACE}=1 in the environment shows the error's text and traceback.\n" in said
    assert "can only concatenate" not in said
    monkeypatch.setenv(TRACE, "1")
    _, said = ended(source)
    assert 'TypeError: can only concatenate str (not "int") to str' in said
    assert f"{TRACE}=1" not in said


def test_a_name_that_is_written_wrongly_is_told_with_the_right_one() -> None:
    no_function = "Name the function, too: bad:consumer, if that is its name."
    for function, step in {
        "bad.py:plain": "Write the module's name, without .py: bad:plain.",
        "apps/bad.py:plain": "Write the module's name, without .py: apps.bad:plain.",
        **dict.fromkeys(("bad", "bad.py", "bad:"), no_function),
        "billing app:consumer": "",
    }.items():
        with pytest.raises(ConfigurationError) as raised:
            load(function)
        assert raised.value.next_step == step, function
        assert raised.value.expected == "MODULE:FUNCTION, as in billing_app:consumer"


def runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # where process 1 waits for nobody
    except psutil.NoSuchProcess:
        return False


@pytest.mark.behaviour("OPS-26")
def test_a_process_whose_supervisor_is_killed_before_it_has_joined_ends_with_what_it_has_started(
    tmp_path: Path,
) -> None:
    """Though it imports for ever, and ignores SIGTERM."""
    (tmp_path / "app_orphan.py").write_text(
        "import signal, subprocess, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "one = subprocess.Popen(['sleep', '600'])\nopen('child', 'w').write(str(one.pid))\ntime.sleep(600)\n"
    )
    told = tmp_path / "child"
    command = [sys.executable, "-c", "from offsetstore.cli.main import main; main()", "consume", "app_orphan:consumer"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as supervisor:
        try:
            wait_until(lambda: told.exists() and told.read_text(), timeout=60)
            left = psutil.Process(supervisor.pid).children(recursive=True)
            assert int(told.read_text()) in {one.pid for one in left}
        finally:
            supervisor.kill()
    assert len(left) == 2
    wait_until(lambda: not any(map(runs, left)), timeout=60)


@pytest.mark.behaviour("OPS-26")
def test_a_process_whose_supervisor_is_dead_before_it_begins_ends_too(tmp_path: Path) -> None:
    """What a signal at the parent's death would miss."""
    (tmp_path / "app_orphan.py").write_text("import time\ntime.sleep(600)\n")
    ours, theirs = socketpair()
    page = Page.make()
    given = json.dumps(asdict(Told("app_orphan:consumer", 0, 1, is_static=False, has_metrics=False)))
    numbers = [theirs.fileno(), page.descriptor]
    command = [sys.executable, "-m", "offsetstore.cli.consume_process", given, *map(str, numbers)]
    ours.close()
    with subprocess.Popen(command, cwd=tmp_path, pass_fds=numbers, process_group=0) as process:
        assert process.wait(60) == -signal.SIGKILL
    theirs.close()
    page.close()


@pytest.mark.behaviour("OPS-26", "CONS-8")
@pytest.mark.parametrize("has_joined", [True, False])
def test_a_member_whose_supervisor_is_gone_writes_what_it_has_polled_and_another_process_ends_at_once(
    page: Page, monkeypatch: pytest.MonkeyPatch, *, has_joined: bool
) -> None:
    """The member is killed only if it hangs; the other one may wait for a job to leave."""
    ours, theirs = socketpair()
    done: list[object] = []
    watched = Watched(page)
    run = ConsumerProcess(
        Told("app:consumer", 0, 1, is_static=False, has_metrics=False), Connection(theirs.detach()), watched
    )
    run._consumer = cast("Any", SimpleNamespace(stop=lambda: done.append("stop"), drain=40.0))
    if has_joined:
        watched.joined(cast("Any", None))
    # In place of the module's own names, since other threads of this process sleep, too.
    monkeypatch.setattr(consume_process, "time", SimpleNamespace(sleep=done.append))
    posix = SimpleNamespace(getpgrp=lambda: 0, getpid=os.getpid, _exit=done.append)
    monkeypatch.setattr(consume_process, "os", posix)
    following = in_background(run._follow)
    too_early = wait([following], timeout=0.2).done, [*done]
    ours.close()
    following.result(60)  # before any assertion can fail: it would end this process once the patches are gone
    assert too_early == (set(), [])
    assert done == (["stop", 70.0, ExitCode.DEAD] if has_joined else [ExitCode.DEAD])
