"""The group ``offsetstore`` and its commands, each imported when it is run or its help is shown."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import click
from click.shell_completion import CompletionItem

from offsetstore.cli.output import describe, fail, leave_unread
from offsetstore.errors import ExitCode, OffsetStoreError
from offsetstore.lazy import find
from offsetstore.postgres.errors import of_database
from offsetstore.text import did_you_mean


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command that is imported when it is needed, since it needs the extra ``extra``.

    ``summary`` is its line in the list of commands: the first sentence of the command's help. The command is in the
    module of its name, or in that of ``beside``.
    """

    name: str
    summary: str
    extra: str = "cli"
    beside: str | None = None

    def load(self) -> click.Command:
        """Import the command.

        :raises MissingDependency: a package of its extra is not installed.
        """
        attribute = self.name.replace("-", "_")
        module = f"offsetstore.cli.{self.beside or attribute}"
        return find(module, attribute, what=f"`offsetstore {self.name}`", extra=self.extra)


COMMANDS: Final = {
    command.name: command
    for command in (
        LazyCommand("migrate", "Create or upgrade offsetstore's tables."),
        LazyCommand("grants", "Print the GRANT statements for the roles that use the tables."),
        LazyCommand("acls", "Print, check and create the ACLs that are needed in Kafka.", "cli,kafka"),
        LazyCommand("resolve", "Show where a job would start, and why."),
        LazyCommand("adopt", "Show what a job would take over from a checkpoint.", beside="resolve"),
        LazyCommand("consume", "Run a consumer's processes, and keep them running.", "cli,consumer"),
        LazyCommand("status", "Show all groups, or one group's owner, offsets and lag.", beside="groups"),
        LazyCommand("lag", "Show how far consumer groups are behind Kafka.", beside="health"),
        LazyCommand("groups", "List, copy, rename and delete consumer groups."),
        LazyCommand("health", "Ask a job's process, or the database, whether a job is well."),
        LazyCommand("exporter", "Serve all groups' lag and state for Prometheus.", "cli,kafka,monitoring"),
        LazyCommand("dashboard", "Serve pages that show how groups, jobs and dead letters are.", "cli,dashboard,kafka"),
        LazyCommand("store", "Say whether the store was moved to this database, or copied.", beside="migrate"),
        LazyCommand("history", "Show what was decided about a consumer group, and by whom."),
        LazyCommand("runs", "Show the runs of consumer groups' jobs, and how each ended.", beside="history"),
        LazyCommand("errors", "Show the errors that consumer groups' jobs met.", beside="history"),
        LazyCommand("reset", "Move a group's stored offsets.", beside="offsets"),
        LazyCommand("pause", "Pause a consumer group, at once.", beside="groups"),
        LazyCommand("resume", "End a consumer group's pause, at once.", beside="groups"),
        LazyCommand("metadata", "Show or rewrite the metadata of a consumer group's offsets.", beside="offsets"),
        LazyCommand("dead-letters", "List, replay and discard a consumer group's dead letters."),
        LazyCommand("relay", "Produce the outbox to Kafka, exactly once.", "cli,kafka"),
        LazyCommand("outbox", "List, retry and discard rows of the outbox that Kafka refuses."),
        LazyCommand("assets", "Write the files for Grafana, Prometheus, Kubernetes or systemd."),
        LazyCommand("completion", "Print the script that completes commands in a shell.", beside="assets"),
        LazyCommand("local", "Run PostgreSQL and Kafka on this machine, without Docker.", "local"),
        LazyCommand("demo", "Land 336,776 flights exactly once, while the job is killed.", "demo"),
    )
}


class LazyGroup(click.Group):
    """A group that lists its commands without importing them, and turns errors into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        # In the order in which they are needed: click would sort them.
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        command = COMMANDS.get(cmd_name)
        return command.load() if command else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest commands with names like an unknown one; click knows none that is not imported."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing and (near := get_close_matches(args[0], COMMANDS)):
            ctx.fail(f"No such command {args[0]!r}. {did_you_mean(near)}".rstrip())
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        # From COMMANDS alone: click would import each command for its summary.
        with formatter.section("Commands"):
            formatter.write_dl([(command.name, command.summary) for command in COMMANDS.values()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # From COMMANDS alone, and not with click.Group's, which imports each command: the shell waits.
        found = [CompletionItem(command.name, help=command.summary) for command in COMMANDS.values()]
        return [item for item in found if item.value.startswith(incomplete)] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def invoke(self, ctx: click.Context) -> object:
        try:  # around the other: its messages, too, may meet the closed pipe
            try:
                return super().invoke(ctx)
            except OffsetStoreError as error:
                fail(error)
            except KeyboardInterrupt:
                click.echo("Interrupted.", err=True)
                ctx.exit(ExitCode.INTERRUPTED)
            except Exception as error:
                if (ours := of_database(error)) is None:
                    raise
                fail(ours)
        except BrokenPipeError:
            # As quiet as an end by SIGPIPE; click would exit with 1, which is an answer.
            leave_unread(sys.stdout, sys.stderr)
            ctx.exit(ExitCode.UNREAD)


@click.group(
    cls=LazyGroup,
    epilog=f"\b\nExit codes:\n{describe()}",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(None, "--version", package_name="offsetstore", message="%(prog)s %(version)s")
def cli() -> None:
    """Exactly-once from Kafka to PostgreSQL: results and offsets in one transaction.

    The database, the schema of the tables, the brokers and the consumer group default to OFFSETSTORE_URL,
    OFFSETSTORE_SCHEMA, OFFSETSTORE_BOOTSTRAP_SERVERS and OFFSETSTORE_GROUP.
    """
