"""How a command ends: its exit code, and its error message."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from offsetstore import errors
from offsetstore.cli.output import print_error
from offsetstore.errors import ExitCode, exit_code, step_for
from offsetstore.text import describe_error

if TYPE_CHECKING:
    from offsetstore.offset_store import OffsetStore

_SUMMARIES = {
    0: "done, or the answer is yes",
    1: "the answer is no: not at head, no such group or letter, no safe place to start, a live job, a missing ACL, a "
    "changed plan",
    2: "wrong usage or configuration, or a missing package",
    3: "the database can't be reached, refuses the request, or its schema doesn't match",
    4: "Kafka can't be reached, refuses the request, or has no such topic",
    5: "any other error of offsetstore, such as a record that the table or a function refuses, or a consumer's flush "
    "that had not ended within drain=",
    6: "the group was claimed, reset or renamed by another process; or another relay has taken over",
    70: "an error of your own code, such as a function that fails for every record, or the one that `offsetstore "
    "consume` calls; where there is none, a bug: please report the traceback",
    75: 'a job that was not live any more, ended by Monitoring(on_dead="exit"); or a process of a consumer was killed '
    "at the end",
    130: "interrupted",
    141: "nobody reads the output any more, as behind `| head`; what was carried out ends with 0 all the same",
}


def describe() -> str:
    """Return the table of exit codes, for ``--help``."""
    return "\n".join(f"  {code.value:>3}  {_SUMMARIES[code.value]}" for code in ExitCode)


def fail(error: errors.OffsetStoreError, *, code: ExitCode | None = None) -> NoReturn:
    """Print the error to stderr, with found, expected and the next step on lines of their own, and end the command.

    :param code: by default that of `exit_code`.
    :raises click.exceptions.Exit: click ends the process with this code.
    """
    what, details = describe_error(error, step_for("command", error.next_step))
    print_error(what, details)
    raise click.exceptions.Exit(exit_code(error) if code is None else code)


def fail_unknown(store: OffsetStore, group: str) -> NoReturn:
    """Say that the store does not know the group, and which it has, and exit."""
    # Imported here: to complete a command, the shell waits for this module.
    from offsetstore.operations.operation import unknown_group  # noqa: PLC0415
    from offsetstore.store.sessions import read  # noqa: PLC0415

    fail(read(store.database, lambda session: unknown_group(session, group)))
