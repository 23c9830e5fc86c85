"""``offsetstore acls``: what the principal of a job, or of a relay, must be allowed in Kafka."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final, Literal

import click

from offsetstore.cli import options
from offsetstore.cli.output import document, even_unread, print_json, print_text
from offsetstore.cli.tables import Table
from offsetstore.errors import ConfigurationError, ExitCode
from offsetstore.kafka.acls import Acl, job_acls, operator_acls, relay_acls
from offsetstore.protocol.outbox import ANCHOR
from offsetstore.text import counted

_COLUMNS: Final = ("operation", "resource", "name", "pattern", "state")
_KEYS: Final = "principal resource name pattern operation host permission purpose command"


@click.group()
def acls() -> None:
    """Print, check and create the ACLs that are needed in Kafka."""


_acl_options = options.together(
    click.option("--principal", required=True, metavar="TYPE:NAME", help="As Kafka has it: User:billing."),
    click.option(
        "--topic",
        "-t",
        "topics",
        multiple=True,
        required=True,
        callback=options.names,
        metavar="TOPIC",
        help="May be repeated.",
    ),
    click.option(
        "--group",
        "-g",
        "groups",
        multiple=True,
        callback=options.names,
        metavar="GROUP",
        help="The job's group in Kafka: its kafka_group, or its name. May be repeated. A relay has its own.",
    ),
    click.option(
        "--for",
        "role",
        type=click.Choice(["job", "operator", "relay"]),
        default="job",
        show_default=True,
        help="For a job, for those who only look (status, resolve, reset, an exporter), or for a relay, whose topics "
        "are those of its records.",
    ),
    click.option("--anchor", metavar="TOPIC", help=f"The relay's; by default, {ANCHOR}."),
    click.option("--no-mirror", is_flag=True, help="The job copies no offsets to Kafka: mirror_every=None."),
    click.option(
        "--spark-groups",
        metavar="PREFIX",
        help="Only for Spark's deprecated offset reader (useDeprecatedOffsetFetching): the reader's "
        "groupIdPrefix, by default spark-kafka-source.",
    ),
)


@acls.command("print")
@_acl_options
@click.option(
    "--bootstrap-servers",
    "-b",
    metavar="HOST:PORT",
    help="The brokers in the commands; by default, the shell's OFFSETSTORE_BOOTSTRAP_SERVERS.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["commands", "json"]),
    default="commands",
    show_default=True,
    help="Commands of Kafka's own tool, for a shell; or for programs.",
)
def print_acls(*, bootstrap_servers: str | None, format_: str, **job: Any) -> None:
    """Print the ACLs that a job or a relay needs, and no others.

    Asks nothing and needs no brokers. READ and WRITE include DESCRIBE. A name "*" stands for all topics, or all groups.
    In admin.properties, an administrator has the credentials for the commands.

    \b
    Keys of --format json:
      acls[]  principal, resource (topic, group, transactional-id), name,
              pattern (literal, prefixed), operation (READ, WRITE, DESCRIBE),
              host (always *), permission (always allow), purpose, command

    \b
    Example:
      offsetstore acls print --principal User:job -t payments -g billing | sh
      offsetstore acls print --principal User:relay -t events --for relay | sh
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    needed = _needed(**job)
    if format_ == "json":
        print_json({"acls": [_document(acl, bootstrap_servers) for acl in needed]})
        return
    for acl in needed:
        click.echo(f"# {acl.purpose}")
        # Never wrapped or escaped: it is for a shell.
        click.echo(acl.command(bootstrap_servers))


@acls.command()
@_acl_options
@options.broker_options(required=True, kafka_group=False)
@options.format_option()
def check(*, kafka: options.Kafka, format_: str, **job: Any) -> None:
    """Ask Kafka which of the ACLs that a job needs are missing.

    Use the job's own credentials; they need no other permission for this. Kafka decides, so that an ACL for a prefix
    counts, or a super user. Nothing is written, and a running job is not disturbed. For each permission that is
    missing, the command that adds it is printed; the principal is only for that. A relay's can't be checked.

    Exit code 1 if something is missing, and 4 if Kafka has no such topic.

    \b
    Keys of --format json:
      allowed  whether nothing is missing
      acls[]   as of `offsetstore acls print`, and allowed

    \b
    Example:
      offsetstore acls check --principal User:job -t payments -g billing \\
          -b localhost:9092 --broker-config job.properties
    """  # noqa: D301 - as above
    needed = _needed(**job)
    broker = kafka.connect()
    # A relay's are refused: only a producer can ask for its id, and that fences the relay that runs (decision 0039).
    missing = broker.missing_acls(needed)
    rows = [{**_document(acl, kafka.bootstrap_servers), "allowed": acl not in missing} for acl in needed]
    states = ["MISSING" if acl in missing else "allowed" for acl in needed]
    table = Table(
        (*_COLUMNS, "purpose"), [(*_row(acl), state, acl.purpose) for acl, state in zip(needed, states, strict=True)]
    )
    if format_ == "json":
        print_json({"allowed": not missing, "acls": rows})
    else:
        adds = f"{counted(len(missing), 'permission')} missing, which an administrator adds with:"
        print_text(table, *([adds] if missing else []))
        for acl in missing:
            click.echo(acl.command(kafka.bootstrap_servers))
    if missing:
        raise click.exceptions.Exit(ExitCode.NO)


@acls.command()
@_acl_options
@options.broker_options(required=True, kafka_group=False)
# No --reason: the history is about groups, and Kafka's authorizer keeps a log of its own (decision 0039).
@click.option("--execute", is_flag=True, help="Do it; without this nothing is written.")
@options.format_option()
def apply(*, kafka: options.Kafka, execute: bool, format_: str, **job: Any) -> None:
    """Create the ACLs that a job needs and Kafka does not have.

    Use an administrator's credentials, which must be allowed to ALTER the cluster. No ACL is removed. If the brokers
    have allow.everyone.if.no.acl.found=true, a topic's or a group's first ACL shuts out all other principals.

    Exit code 4 if Kafka has no authorizer, which is seen with --execute only.

    \b
    Keys of --format json:
      executed
      acls[]    as of `offsetstore acls print`, and present: whether it was
                there before

    \b
    Example:
      offsetstore acls apply --principal User:job -t payments -g billing \\
          -b localhost:9092 --broker-config admin.properties --execute
    """  # noqa: D301 - as above
    needed = _needed(**job)
    broker = kafka.connect()
    created = broker.create_acls(needed, dry_run=not execute)
    with even_unread() if execute else nullcontext():
        if format_ == "json":
            rows = [{**_document(acl, kafka.bootstrap_servers), "present": acl not in created} for acl in needed]
            print_json({"executed": execute, "acls": rows})
            return
        new = "created" if execute else "to be created"
        rows = [(*_row(acl), new if acl in created else "present") for acl in needed]
        not_done = ["Nothing was written. Add --execute to do it."] if created and not execute else []
        print_text(Table(_COLUMNS, rows), *not_done)


def _needed(
    *,
    principal: str,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    role: Literal["job", "operator", "relay"],
    anchor: str | None,
    no_mirror: bool,
    spark_groups: str | None,
) -> tuple[Acl, ...]:
    is_of_relay = role == "relay"
    if (anchor is not None) > is_of_relay or bool(groups) is is_of_relay:
        raise ConfigurationError(
            "a job and an operator have groups, and a relay has an anchor instead",
            found=f"--for {role} {'with' if groups else 'without'} --group",
            next_step="Leave --group out." if is_of_relay else "Give --group, and leave --anchor out.",
        )
    if role == "job":
        return job_acls(principal, topics=topics, groups=groups, mirror=not no_mirror, spark_groups=spark_groups)
    if no_mirror or spark_groups is not None:
        raise ConfigurationError(
            "--no-mirror and --spark-groups are about a job", found=f"--for {role}", next_step="Leave them out."
        )
    if role == "relay":
        return relay_acls(principal, topics=topics, anchor=ANCHOR if anchor is None else anchor)
    return operator_acls(principal, topics=topics, groups=groups)


def _row(acl: Acl) -> tuple[str, ...]:
    return (acl.operation, acl.resource, acl.name, acl.pattern)


def _document(acl: Acl, bootstrap_servers: str | None) -> dict[str, object]:
    return document(acl, _KEYS, host="*", permission="allow", command=acl.command(bootstrap_servers))
