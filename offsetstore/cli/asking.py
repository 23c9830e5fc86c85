"""What a command asks the store, or has it decide, and how the answer is printed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict, TypeVar

import click

from offsetstore.cli.options import DatabaseOptions, database_options, format_option, gathered, reason_option, together
from offsetstore.cli.output import document, even_unread, fail, print_json, print_text
from offsetstore.cli.tables import Table
from offsetstore.errors import PlanChanged, step_for
from offsetstore.offset_store import OffsetStore
from offsetstore.operations import people
from offsetstore.operations.operation import Decided, Plan
from offsetstore.operations.wording import in_words

_F = TypeVar("_F", bound="Callable[..., Any] | click.Command")
_P = TypeVar("_P", bound=Plan)


@dataclass(frozen=True, slots=True)
class AskOptions(DatabaseOptions):
    """The values of `ask_options`, or of `table_options`."""

    format_: str
    wide: bool = field(default=False, kw_only=True)

    @property
    def as_json(self) -> bool:
        return self.format_ == "json"

    def show(self, made: object, *text: str | Table) -> None:
        """Print the answer: the document for programs, or the text for people."""
        if self.as_json:
            print_json(made)
        else:
            print_text(*text, wide=self.wide)


def _gather(given: dict[str, Any]) -> AskOptions:
    database: DatabaseOptions = given.pop("database")
    return AskOptions(database.url, database.schema, given.pop("format_"), wide=given.pop("wide", False))


ask_options = together(database_options, format_option(), gathered("ask", _gather))
"""``--url``, ``--schema`` and ``--format``, as the argument ``ask``."""

table_options = together(
    click.option("--wide", is_flag=True, help="At a terminal, too: all columns, with times instead of ages."),
    ask_options,
)
"""The same and ``--wide``, for a command that prints a table."""


class GroupPage(NamedTuple):
    """A part of the list of all groups, by name. ``next`` is where the next part begins, ``None`` if there is none."""

    names: list[str]
    next: str | None

    @property
    def notes(self) -> list[str]:
        return [] if self.next is None else [f"There are more groups: --after {shlex.quote(self.next)}"]


def page_of_groups(store: OffsetStore, after: str | None, limit: int = 100) -> GroupPage:
    """Read a part of the list of groups that were ever claimed."""
    found = people.ask(store.database, lambda session: people.read_names(session, after=after, limit=limit + 1))
    return GroupPage(found[:limit], found[limit - 1] if len(found) > limit else None)


def expect_no_group(group: str | None, **others: object) -> None:
    """Refuse options that are for all groups alone.

    :raises UsageError: a group is named, and one of them.
    """
    if group is not None and (given := [name for name, value in others.items() if value is not None]):
        raise click.UsageError(f"--{given[0]} is for a list of all groups: leave out --group.")


class How(TypedDict):
    """How a decision is carried out, for the methods of `OffsetStore`."""

    reason: str
    dry_run: bool
    if_plan: str | None


@dataclass(frozen=True, slots=True)
class Decide(AskOptions):
    """The values of `decide_options`.

    :param at_once: whether the command decides without ``--execute``.
    :param force: whether a live job may be fenced.
    """

    how: How
    at_once: bool
    force: bool

    @property
    def takeover(self) -> Decided:
        return "fence" if self.force else "refuse"

    def __call__(self, keys: str, decide: Callable[[OffsetStore], _P]) -> _P:
        """Decide, and print the plan: what was done, or would be.

        :param keys: of the JSON document; see `document`.
        """
        with self.open() as store:
            return self.carry_out(lambda: decide(store), lambda plan: self.print_plan(plan, keys))

    def carry_out(self, decide: Callable[[], _P], show: Callable[[_P], None]) -> _P:
        """Do as `__call__` does, in an open store, and with something else to show."""
        try:
            done = decide()
        except PlanChanged as changed:
            # The plan as it is now: its digest is needed to decide again (decision 0051).
            show(changed.plan)
            fail(changed)
        with even_unread() if done.executed else nullcontext():
            show(done)
        return done

    def print_plan(self, plan: Plan, keys: str, *more: str, **fields: object) -> None:
        """Print the plan, and how to carry it out.

        :param more: further sentences.
        :param fields: further values of the document.
        """
        if self.as_json:
            print_json(document(plan, keys, reason=self.how["reason"], **fields))
            return
        words = in_words(plan)
        if words.rows:
            print_text(Table(words.columns, words.rows))
        print_text(*([f"And {words.left_out} more."] if words.left_out else []), words.outcome)
        print_text(*(note.text for note in words.notes), *more)
        if plan.executed or plan.is_empty:
            return
        force = words.step is not None and not self.force
        if words.step is not None and force:
            print_text(step_for("command", words.step))
        print_text("Nothing was written." if force or self.at_once else "Nothing was written. Add --execute to do it.")
        options = f"{'--force ' if force else ''}{'' if self.at_once else '--execute '}--if-plan {plan.digest}"
        print_text(f"Plan {plan.digest}: {options} does this, or nothing.")


def decide_options(*, at_once: bool = False, force: bool = False, csv: str = "") -> Callable[[_F], _F]:
    """``--reason``, ``--if-plan`` and what `ask_options` has, as the argument ``decide``.

    :param at_once: whether the command has ``--dry-run``; else it does nothing without ``--execute``.
    :param force: whether it has ``--force``.
    :param csv: as `format_option` has it.
    """
    flag = "dry_run" if at_once else "execute"

    def check(context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and context.params[flag] is at_once:
            raise click.UsageError(
                "--if-plan does not go with --dry-run, which does nothing."
                if at_once
                else "--if-plan goes with --execute: without it nothing is done."
            )
        return value

    def gather(given: dict[str, Any]) -> Decide:
        database: DatabaseOptions = given.pop("database")
        dry_run = given.pop(flag) is at_once
        how = How(reason=given.pop("reason"), dry_run=dry_run, if_plan=given.pop("if_plan"))
        return Decide(database.url, database.schema, given.pop("format_"), how, at_once, given.pop("force_", False))

    do = "Print the plan; nothing is written." if at_once else "Do it; without this nothing is written."
    unless = "Do it only if the plan is still the one that was printed with this digest."
    forced = "Do it even if a job is live: its next write fails with StaleClaim."
    return together(
        reason_option,
        # Eager: the callback of --if-plan reads it.
        click.option("--dry-run" if at_once else "--execute", is_flag=True, is_eager=True, help=do),
        click.option("--if-plan", metavar="DIGEST", callback=check, help=unless),
        *([click.option("--force", "force_", is_flag=True, help=forced)] if force else []),
        database_options,
        format_option(csv),
        gathered("decide", gather),
    )
