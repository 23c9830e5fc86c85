"""A process of ``offsetstore consume``: what is wrong with the user's module and function."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from offsetstore import errors
from offsetstore.cli.consume_process import Told, Watched, end_after, load, main
from offsetstore.errors import ConfigurationError
from offsetstore.monitoring.page import End, Page, Words
from offsetstore.monitoring.processes import STACKS
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.events import BatchEnded
from offsetstore.text import TRACE, describe_other

pytestmark = pytest.mark.behaviour("CONS-11", "DX-1")

Ended = Callable[[str], tuple[int, str]]
_RAISES = "from offsetstore.errors import *\ndef consumer():\n    raise "


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.behaviour("CONS-15")
def test_an_error_that_cant_be_shown_ends_nothing() -> None:
    assert describe_other(Unspeakable())[0] == "Unspeakable: it can't be shown: SystemExit"


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
        page.tell(Words())
        code = main(
            Told(f"app_{made}:consumer", 0, 1, is_static=False, has_metrics=False), writes, os.dup(page.descriptor)
        )
        os.close(reads)
        assert (end := page.words().end) is not None
        assert end.code == code
        return code, capfd.readouterr().err.replace(f"app_{made}", "app")

    yield run
    signal.signal(signal.SIGTERM, handler)
    faulthandler.unregister(STACKS)
    for name in {*sys.modules} - before:
        if name.startswith("app_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package', at "),
        ("x = 1\nfrom offsetstore import Nothing\n", "ImportError: cannot import name 'Nothing' from 'offsetstore'"),
        ("def consumer(:\n", "SyntaxError: "),
    ],
)
def test_a_module_that_can_not_be_imported_is_told_with_its_line_and_may_be_mended_in_a_moment(
    source: str, found: str, ended: Ended, page: Page
) -> None:
    code, said = ended(source)
    assert code == 2
    assert page.words().end == End(2, "repeats")
    assert said.startswith("Error: module app can't be imported\n")
    assert f"  found:     {found}" in said
    assert f"app.py:{len(source.splitlines())}" in said
    assert "  expected:  " in said
    assert "  next step: " in said
    assert not {"Traceback", "importlib"} & {*said.split()}


@pytest.mark.parametrize(
    ("source", "what", "place"),
    [
        (
            "import os\ndef consumer():\n    return os.environ['NO_SUCH_VARIABLE']\n",
            "the environment variable NO_SUCH_VARIABLE is not set",
            "app.py:3, in consumer\n  next step: Set it; ",
        ),
        (
            "from offsetstore.consumer import Consumer\ndef consumer():\n    return Consumer(None, 'g', topisc=[])\n",
            "TypeError: Consumer.__init__() got an unexpected keyword argument 'topisc'",
            "app.py:3, in consumer\n  next step: Correct it; ",
        ),
        ("limits = {}['rows']\n", "KeyError: 'rows'", "app.py:1, in <module>\n  next step: Correct it; "),
    ],
)
def test_what_the_function_raises_is_told_with_its_line_and_that_it_is_started_again(
    source: str, what: str, place: str, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = ended(source)
    assert code == 70
    assert said.startswith(f"Error: app:consumer failed: {what}\n  at:        ")
    assert place in said
    assert "The process is started again meanwhile" in said
    assert "Traceback" not in said
    monkeypatch.setenv(TRACE, "1")
    assert "Traceback" in ended(source)[1]


@pytest.mark.behaviour("CONS-16")
@pytest.mark.parametrize(
    ("source", "end"),
    [
        ("import no_such_package\n", End(2, "repeats")),
        ("def consumer():\n    import no_such_package\n", End(70, "repeats")),
        ("def consumr():\n    pass\n", End(2, "repeats")),
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
@pytest.mark.parametrize(
    ("restart", "kinds"),
    [
        (
            "repeats",
            [
                errors.MissingPrivilege,
                errors.SchemaMissing,
                errors.SchemaNotAtHead,
                errors.SchemaError,
                errors.BrokerRefused,
                errors.ColumnMismatch,
                errors.UnsafeTarget,
                errors.TargetRefused,
                errors.KafkaColumnsMissing,
            ],
        ),
        ("harms", [errors.ConfigurationError, errors.StaleClaim, errors.GroupBusy, errors.StoreRewound]),
        (
            "helps",
            [
                errors.StoreUnavailable,
                errors.ConnectionLost,
                errors.LockTimeout,
                errors.BrokerUnavailable,
                errors.TlsFailed,
                errors.TopicMissing,
                errors.RowsRefused,
                errors.HandlerStuck,
                errors.SinkError,
            ],
        ),
    ],
)
def test_only_what_stays_as_it_is_until_someone_mends_it_repeats(
    restart: str, kinds: Sequence[type[errors.OffsetStoreError]]
) -> None:
    assert {kind.__name__: end_after(kind("it")).restart for kind in kinds} == dict.fromkeys(
        [kind.__name__ for kind in kinds], restart
    )


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


def test_the_database_s_errors_in_the_function_are_told_as_the_store_s(ended: Ended) -> None:
    source = "import psycopg\ndef consumer():\n    raise psycopg.OperationalError('server closed the connection')\n"
    code, said = ended(source)
    assert code == 3
    assert "the connection to the database was lost" in said


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
    trace, _, told = ended(source)[1].rpartition("\nError: ")
    assert trace.count("Traceback (most recent call last)") >= 2
    assert "ZeroDivisionError: division by zero" in trace
    assert told


def test_an_outage_that_ends_the_consumer_is_told_in_three_lines_with_its_line(ended: Ended) -> None:
    source = """
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
    code, said = ended(source)
    assert code == 70
    assert said.startswith("Error: app:consumer failed: ConnectionError: the rates are away\n  at:        ")
    assert "app.py:7, in rates\n  next step: " in said
    assert len(said.splitlines()) == 3


def test_a_function_with_arguments_is_told_and_ends_all(ended: Ended) -> None:
    code, said = ended("def consumer(store):\n    pass\n")
    assert code == 2
    assert said.startswith("Error: app:consumer takes arguments\n  found:     consumer(store)\n")


@pytest.mark.parametrize(
    ("function", "step"),
    [
        ("bad.py:plain", "Write the module's name, without .py: bad:plain."),
        ("apps/bad.py:plain", "Write the module's name, without .py: apps.bad:plain."),
        ("bad", "Name the function, too: bad:consumer, if that is its name."),
        ("bad.py", "Name the function, too: bad:consumer, if that is its name."),
        ("bad:", "Name the function, too: bad:consumer, if that is its name."),
        ("billing app:consumer", ""),
    ],
)
def test_a_name_that_is_written_wrongly_is_told_with_the_right_one(function: str, step: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load(function)
    assert raised.value.next_step == step
    assert raised.value.expected == "MODULE:FUNCTION, as in billing_app:consumer"
