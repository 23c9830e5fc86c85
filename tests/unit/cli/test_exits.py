from __future__ import annotations

import sys

import click
import psycopg
import pytest
from click.testing import CliRunner, Result

import offsetstore
from offsetstore import errors
from offsetstore.cli.commands import COMMANDS, LazyGroup
from offsetstore.errors import ExitCode, exit_code
from offsetstore.offsets import TopicPartition


def _raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Result:
    """Call a command that raises it, through the group that all commands are in."""

    @click.command()
    def failing() -> None:
        raise error

    def found(_group: LazyGroup, _context: click.Context, _name: str) -> click.Command:
        return failing

    monkeypatch.setattr(LazyGroup, "get_command", found)
    return CliRunner().invoke(LazyGroup("offsetstore"), ["failing"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.OffsetOutOfRange("x"), 1),
        (errors.WrongCluster("x"), 1),
        (errors.GroupRenamed("x"), 1),
        (errors.ConfigurationError("x"), 2),
        (errors.MissingDependency("x"), 2),
        (errors.StoreUnavailable("x"), 3),
        (errors.SchemaMissing("x"), 3),
        (errors.SchemaNotAtHead("x"), 3),
        (errors.BrokerUnavailable("x"), 4),
        (errors.BrokerRefused("x"), 4),
        (errors.TopicMissing("x"), 4),
        (errors.StaleClaim("x"), 6),
        (errors.MetadataError("x"), 5),
    ],
)
def test_the_exit_code_says_whose_fault_it_is(
    error: errors.OffsetStoreError, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exit_code(error) == code
    assert _raising(monkeypatch, error).exit_code == code


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, 0), (errors.StaleClaim("x"), 6), (errors.RowsRefused("x"), 5), (ValueError("x"), 70), (SystemExit(3), 70)],
)
def test_a_job_ends_with_the_code_of_its_error(error: BaseException | None, code: int) -> None:
    assert exit_code(error) == code


def test_an_error_is_told_in_lines_on_stderr_and_without_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    error = errors.OffsetOutOfRange(
        "the records [0, 40) are gone",
        topic_partition=TopicPartition("payments", 3),
        found="beginning 40",
        expected="at most 0",
        next_step="Restore them.",
    )
    result = _raising(monkeypatch, error)
    assert result.stdout == ""
    assert result.stderr == (
        "Error: payments-3: the records [0, 40) are gone\n"
        "  found:     beginning 40\n"
        "  expected:  at most 0\n"
        "  next step: Restore them.\n"
    )


def test_what_is_not_known_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _raising(monkeypatch, errors.ConfigurationError("no", found=0))
    assert result.stderr == "Error: no\n  found: 0\n"


def test_text_of_several_lines_stays_under_its_label_and_can_not_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = _raising(monkeypatch, errors.ConfigurationError("no", found="one\n\x1b[2Jtwo"))
    assert result.stderr == "Error: no\n  found: one\n         \\x1b[2Jtwo\n"


def test_an_error_of_the_databases_own_is_told_without_its_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _raising(monkeypatch, psycopg.errors.InsufficientPrivilege("permission denied\nDETAIL: canary"))
    assert result.exit_code == ExitCode.DATABASE
    assert "found:     permission denied (SQLSTATE 42501)\n" in result.stderr
    assert "canary" not in result.output


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (psycopg.OperationalError("server closed the connection"), "the connection to the database was lost"),
        (psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"), "could not acquire a lock"),
        (psycopg.errors.DiskFull("no space left"), "the server ran out of disk"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_lost_connection_a_lock_and_a_full_disk_are_told_by_name(
    monkeypatch: pytest.MonkeyPatch, error: Exception, what: str
) -> None:
    result = _raising(monkeypatch, error)
    assert result.exit_code == ExitCode.DATABASE
    assert what in result.stderr


def test_what_is_no_error_of_the_databases_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = ZeroDivisionError("a bug")
    assert _raising(monkeypatch, bug).exception is bug


def test_an_interrupt_has_the_shells_code_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _raising(monkeypatch, KeyboardInterrupt())
    assert result.exit_code == ExitCode.INTERRUPTED
    assert result.stderr == "Interrupted.\n"


def test_a_command_whose_package_is_not_installed_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.delitem(sys.modules, "offsetstore.cli.local", raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(errors.MissingDependency, match=r"Run `pip install 'offsetstore\[local\]'`\.") as raised:
        COMMANDS["local"].load()
    assert raised.value.__suppress_context__, "a job that imports it says no more"


def test_a_writer_whose_package_is_not_installed_says_which_extras_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.startswith("offsetstore.writers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(errors.MissingDependency) as raised:
        _ = offsetstore.Append
    expected = "Run `pip install 'offsetstore[consumer]'` or `pip install 'offsetstore[spark]'`."
    assert raised.value.next_step == expected
