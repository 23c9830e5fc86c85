from __future__ import annotations

import click
import psycopg
import pytest
from click.testing import CliRunner, Result

import offsetstore
from offsetstore import errors
from offsetstore.cli.commands import COMMANDS, LazyGroup
from offsetstore.errors import ExitCode, exit_code
from offsetstore.offsets import TopicPartition
from tests.support.modules import forgotten


def _raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Result:
    """Call a command that raises it, through the group that all commands are in."""

    @click.command()
    def failing() -> None:
        raise error

    def found(_group: LazyGroup, _context: click.Context, _name: str) -> click.Command:
        return failing

    monkeypatch.setattr(LazyGroup, "get_command", found)
    return CliRunner().invoke(LazyGroup("offsetstore"), ["failing"])


def test_the_exit_code_says_whose_fault_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in (
        *((kind("x"), 1) for kind in (errors.OffsetOutOfRange, errors.WrongCluster, errors.GroupRenamed)),
        *((kind("x"), 2) for kind in (errors.ConfigurationError, errors.MissingDependency)),
        *((kind("x"), 3) for kind in (errors.StoreUnavailable, errors.SchemaMissing, errors.SchemaNotAtHead)),
        *((kind("x"), 4) for kind in (errors.BrokerUnavailable, errors.BrokerRefused, errors.TopicMissing)),
        *((kind("x"), 5) for kind in (errors.MetadataError, errors.RowsRefused)),
        (errors.StaleClaim("x"), 6),
    ):
        assert exit_code(error) == code
        assert _raising(monkeypatch, error).exit_code == code
    assert [exit_code(error) for error in (None, ValueError("x"), SystemExit(3))] == [0, 70, 70]


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
    result = _raising(monkeypatch, errors.ConfigurationError("no", found="one\n\x1b[2Jtwo"))
    assert result.stderr == "Error: no\n  found: one\n         \\x1b[2Jtwo\n", "no other line, and none steers"


def test_an_error_of_the_databases_own_is_told_without_its_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _raising(monkeypatch, psycopg.errors.InsufficientPrivilege("permission denied\nDETAIL: canary"))
    assert result.exit_code == ExitCode.DATABASE
    assert "found:     permission denied (SQLSTATE 42501)\n" in result.stderr
    assert "canary" not in result.output


def test_a_lost_connection_a_lock_and_a_full_disk_are_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, what in (
        (psycopg.OperationalError("server closed the connection"), "the connection to the database was lost"),
        (psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"), "could not acquire a lock"),
        (psycopg.errors.DiskFull("no space left"), "the server ran out of disk"),
    ):
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


def test_a_command_whose_package_is_not_installed_says_which_extra_brings_it() -> None:
    expected = r"`pip install 'offsetstore\[local\]'`; in a checkout, with '\.\[local\]' for 'offsetstore\[local\]'\."
    with (
        forgotten("offsetstore.cli.local", lacking="rich"),
        pytest.raises(errors.MissingDependency, match=expected) as raised,
    ):
        COMMANDS["local"].load()
    assert raised.value.__suppress_context__, "a job that imports it says no more"


def test_a_writer_whose_package_is_not_installed_says_which_extras_bring_it() -> None:
    with (
        forgotten("offsetstore.writers", lacking="pyarrow"),
        pytest.raises(errors.MissingDependency) as raised,
    ):
        _ = offsetstore.Append
    expected = (
        "Run `pip install 'offsetstore[consumer]'` or `pip install 'offsetstore[spark]'`; "
        "in a checkout, with '.[consumer]' for 'offsetstore[consumer]'."
    )
    assert raised.value.next_step == expected
