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
    bug = ZeroDivisionError("a bug")
    assert _raising(monkeypatch, bug).exception is bug
    interrupted = _raising(monkeypatch, KeyboardInterrupt())
    assert (interrupted.exit_code, interrupted.stderr) == (ExitCode.INTERRUPTED, "Interrupted.\n")


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


def test_an_error_of_the_databases_own_is_told_by_name_and_without_its_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, told in (
        (psycopg.OperationalError("server closed the connection"), "the connection to the database was lost"),
        (psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"), "could not acquire a lock"),
        (psycopg.errors.DiskFull("no space left"), "the server ran out of disk"),
        (
            psycopg.errors.InsufficientPrivilege("permission denied\nDETAIL: canary"),
            "found:     permission denied (SQLSTATE 42501)\n",
        ),
    ):
        result = _raising(monkeypatch, error)
        assert (result.exit_code, told in result.stderr, "canary" in result.output) == (ExitCode.DATABASE, True, False)


def test_what_needs_a_package_that_is_not_installed_says_which_extra_brings_it() -> None:
    def told(*extras: str) -> str:
        installs = " or ".join(f"`pip install 'offsetstore[{extra}]'`" for extra in extras)
        return f"Run {installs}; in a checkout, with '.[{extras[0]}]' for 'offsetstore[{extras[0]}]'."

    with forgotten("offsetstore.cli.local", lacking="rich"), pytest.raises(errors.MissingDependency) as raised:
        COMMANDS["local"].load()
    assert raised.value.next_step == told("local")
    assert raised.value.__suppress_context__, "a job that imports it says no more"
    with forgotten("offsetstore.writers", lacking="pyarrow"), pytest.raises(errors.MissingDependency) as raised:
        _ = offsetstore.Append
    assert raised.value.next_step == told("consumer", "spark")
