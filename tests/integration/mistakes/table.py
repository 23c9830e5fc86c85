"""Forty mistakes of a new user in README's and docs' first steps: what is done, and what is printed then.

Consumers and jobs are README's own, with an edit. In all texts, ``{topic}``, ``{group}``, ``{kafka}``, ``{url}``,
``{dead}`` (an address at which nobody answers) and ``{role}`` stand for the test's own.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal, TypeAlias

Prepared: TypeAlias = Literal["nothing", "tables", "group"]
"""The database: without offsetstore's tables, with them, or also with a live job that has claimed ``billing``."""

PAYMENTS: Final = "CREATE TABLE payments (payer text, amount numeric(12, 2))"


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    :param name: of the test.
    :param ends: the exit code, and the most lines that may be printed.
    :param told: what must be printed, in this order, "..." for the rest: what is wrong, and what the user can do.
    :param before: SQL that the owner of the tables has run.
    :param behaviours: others that it proves, beside DX-9.
    """

    name: str
    ends: tuple[int, int]
    told: str
    _: KW_ONLY
    before: str = ""
    behaviours: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command(Mistake):
    """A command is typed as in a shell, without ``offsetstore``; ``url`` is OFFSETSTORE_URL.

    :param prepared: the database.
    :param lacks: a package that is not installed.
    """

    _: KW_ONLY
    line: str
    url: str | None = "{url}"
    prepared: Prepared = "tables"
    lacks: str = ""


@dataclass(frozen=True)
class Edited(Mistake):
    """README's code, of which one text, which it has once, is replaced by another.

    :param records: values in the topic.
    :param has_job: whether a live job has claimed the group.
    """

    _: KW_ONLY
    edits: tuple[tuple[str, str], ...] = ()
    records: tuple[bytes, ...] = (b"12.50",)
    has_job: bool = False
    before: str = PAYMENTS


@dataclass(frozen=True)
class Consuming(Edited):
    """``offsetstore consume billing_app:consumer``, or another function."""

    _: KW_ONLY
    function: str = "billing_app:consumer"


@dataclass(frozen=True)
class Job(Edited):
    """``python job.py``; with ``once``, Ctrl-C once there is Java, or this file."""

    _: KW_ONLY
    once: str = ""


_AS_ROLE: Final = "{role_url}"
_MAY_NOT_MIGRATE: Final = 'the role "{role}" may not migrate the tables; nothing was changed ... permission denied'
_MIGRATIONS: Final[list[tuple[str, str, Prepared, str]]] = [
    (
        "a migration by a role that does not own the tables",
        "migrate",
        "tables",
        'Connect as "postgres", who owns the tables.',
    ),
    (
        "a first migration by a role that may create nothing",
        "migrate",
        "nothing",
        '`GRANT CREATE ON SCHEMA "public" TO "{role}"`',
    ),
    (
        "a first migration into a schema, by a role that may create none",
        "migrate --schema jobs",
        "nothing",
        '`GRANT CREATE ON DATABASE "{database}" TO "{role}"`',
    ),
]

COMMANDS: Final = [
    Command(
        "no database is named",
        (2, 4),
        "no database was named ... found:     neither --url nor OFFSETSTORE_URL ... Set OFFSETSTORE_URL or pass --url.",
        line="status -g billing",
        url=None,
    ),
    Command(
        "a database that is not PostgreSQL",
        (2, 4),
        "not a PostgreSQL URL ... postgresql://",
        line="status -g billing",
        url="mysql://job:canary@localhost/sales",
    ),
    Command(
        "no server at the URL",
        (3, 4),
        "the database can't be reached ... a server that answers, and knows the role, its password and the ... "
        "Check --url or OFFSETSTORE_URL, that the server runs, and that the role may connect.",
        line="migrate",
        url="postgresql://job:canary@{dead}/sales",
    ),
    Command(
        "no migration",
        (3, 4),
        "the database has no offsetstore tables ... Run `offsetstore migrate`.",
        line="status -g billing",
        prepared="nothing",
        behaviours=("START-17",),
    ),
    Command(
        "tables in another schema",
        (3, 3),
        'the offsetstore tables are in another schema ... tables in "jobs" ... --schema jobs for a command',
        line="status -g billing",
        before="ALTER SCHEMA public RENAME TO jobs",
        behaviours=("OPS-23",),
    ),
    *(
        Command(name, (3, 3), f"{_MAY_NOT_MIGRATE} ... {step}", line=line, url=_AS_ROLE, prepared=prepared)
        for name, line, prepared, step in _MIGRATIONS
    ),
    *(
        Command(
            f"no grants for the role of the {whose}",
            (3, 3),
            "the database's role may not do that ... permission denied for table ... "
            f"`offsetstore grants {option} {{role}}`",
            line=line,
            url=_AS_ROLE,
        )
        for whose, line, option in (
            ("job", "status -g billing", "--role"),
            ("relay", "relay -b {dead}", "--relay-role"),
            ("dashboard", "dashboard -b {dead}", "--dashboard-role"),
        )
    ),
    Command(
        "grants without a role",
        (2, 4),
        "Name the job's role with --role ... or another one with --relay-role, --outbox-role or --dashboard-role.",
        line="grants",
        url=None,
    ),
    Command(
        "a typo in the group's name",
        (1, 2),
        "the store has no group 'biling' ... "
        "Did you mean 'billing'? Correct the name; a group's rows are made by its first claim.",
        line="status -g biling",
        prepared="group",
    ),
    Command(
        "a typo in the name of a group to decide about",
        (1, 2),
        "the store has no offsets of group 'biling' ... Did you mean 'billing'?",
        line="reset -g biling -t payments --to-offset 0 --reason x --execute",
        prepared="group",
    ),
    Command(
        "a typo in a topic's name",
        (2, 3),
        "the store has no offsets of topic 'paymets' for group 'billing' ... expected:  payments ... "
        "Did you mean 'payments'? Correct the topic; a claim makes its rows.",
        line="reset -g billing -t paymets --to-offset 0 --reason x --force --execute",
        prepared="group",
    ),
    Command(
        "a dead letter that there is not",
        (1, 2),
        "payments-0: the group 'billing' has no dead letter of offset 7 ... "
        "`offsetstore dead-letters list -g billing` shows the group's letters.",
        line="dead-letters show payments:0:7 -g billing",
        prepared="group",
    ),
    Command(
        "a decision without a reason",
        (2, 4),
        "Try 'offsetstore pause --help' for help. ... Missing option '--reason'",
        line="pause -g billing",
    ),
    Command(
        "a reason that is no UTF-8",
        (2, 4),
        "reason can't be stored ... a lone surrogate, character 8 of 8 ... Correct the text; nothing was written.",
        line="pause -g billing --reason 'ticket \udcff'",
    ),
    Command(
        "a typo in an option",
        (2, 4),
        "No such option '--grup' ... Did you mean one of: '--group', '--kafka-group'?",
        line="status --grup billing",
    ),
    Command(
        "a typo in a command", (2, 4), "No such command 'statsu' ... Did you mean 'status'?", line="statsu -g billing"
    ),
    Command(
        "a broker option without its value",
        (2, 2),
        "a broker option is not KEY=VALUE ... Write it as security.protocol=SASL_SSL.",
        line="resolve -g billing -t payments -b {dead} -o sasl.password",
    ),
    Command(
        "no broker at the address",
        (4, 3),
        "no answer from Kafka within 1 s ... Check bootstrap.servers",
        line="resolve -g billing -t payments -b {dead} --timeout 1",
        behaviours=("START-16",),
    ),
    Command(
        "an extra that is not installed",
        (2, 3),
        "`offsetstore dashboard` needs ... uvicorn ... pip install 'offsetstore[cli,dashboard,kafka]'",
        line="dashboard -b {dead}",
        lacks="uvicorn",
    ),
]

ON_KAFKA: Final = [
    Command(
        "a topic that Kafka does not have",
        (4, 4),
        "Kafka has no topic {topic}s ... of those that this principal may see ... this topic at these brokers ... "
        "Did you mean '{topic}'? Create the topic or correct its name; nothing was changed.",
        line="resolve -g {group} -t {topic}s -b {kafka}",
        behaviours=("START-16",),
    ),
]

CONSUMERS: Final = [
    Consuming(
        "a typo in the module's name",
        (2, 4),
        "there is no module biling_app ... "
        "Did you mean 'billing_app'? Correct the name, change to the directory that has it, or set PYTHONPATH.",
        function="biling_app:consumer",
    ),
    Consuming(
        "a typo in the function's name",
        (2, 4),
        "module billing_app has no function consumr ... "
        "Did you mean 'consumer'? Correct the name, or write the function.",
        function="billing_app:consumr",
    ),
    Consuming(
        "a function that returns nothing",
        (2, 4),
        "billing_app:consumer returned no consumer ... found:     NoneType ... Have the function return it.",
        edits=(("    return Consumer(", "    Consumer("),),
    ),
    Consuming(
        "commits by Kafka's client",
        (2, 4),
        "kafka= may not set enable.auto.commit ... nothing: the offsets are stored with the results ... "
        "Leave it out of kafka=.",
        edits=(("kafka=kafka", "kafka={**kafka, 'enable.auto.commit': True}"),),
    ),
    Consuming(
        "a typo in a setting of Kafka's client",
        (2, 3),
        "librdkafka refuses the setting sesion.timeout.ms ... "
        "Correct it: librdkafka's CONFIGURATION.md lists the settings and their values.",
        edits=(("kafka=kafka", "kafka={**kafka, 'sesion.timeout.ms': 6000}"),),
    ),
]

CONSUMERS_ON_KAFKA: Final = [
    Consuming(
        "a topic that the consumer finds nowhere",
        (4, 4),
        "Kafka has no topic {topic}s ... Did you mean '{topic}'? Create the topic or correct its name",
        edits=(('topics=["{topic}"]', 'topics=["{topic}s"]'),),
    ),
    Consuming(
        "a consumer beside the job that it replaces",
        (1, 4),
        "group 'billing' has a live owner ... epoch 1, claim ... "
        "Stop the other job, wait longer (takeover_timeout=), or take over with",
        has_job=True,
    ),
    Consuming(
        "no table for the results",
        (5, 5),
        "there is no table payments ... none that the role can see in the database ... "
        'Create it, name its schema ("schema.table"; case matters)',
        before="",
    ),
    Consuming(
        "a typo in a column",
        (5, 5),
        "payr is not in the table (did you mean 'payer'?) ... Rename it to payer.",
        edits=(('"payer": records', '"payr": records'),),
    ),
    Consuming(
        "a value that the transform can't compute",
        (5, 6),
        "transform raised ArrowInvalid at billing_app.py:7 ... first refused at record {topic}-0@1 ... "
        "offsetstore reset -g billing -t {topic}:0 --from-offset 1 --to-offset 2",
        records=(b"12.50", b"a lot"),
    ),
    Consuming(
        "rights on the columns that are written alone",
        (3, 6),
        "the role {role} may not write to the table ... no INSERT on the table, only on its columns ... "
        "`offsetstore grants --role {role} --append public.payments`",
        edits=(("OffsetStore.connect()", 'OffsetStore.connect("{role_url}")'),),
        before=PAYMENTS + "; {job}; GRANT INSERT (payer, amount) ON payments TO {role}",
    ),
]

_SUBSCRIBE: Final = '"subscribe": "{topic}"'

JOBS: Final = [
    Job(
        "a variable that the job needs",
        (70, 3),
        "the environment variable BOOTSTRAP_SERVERS is not set ... job.py: ... Set it",
        edits=(('"OFFSETSTORE_BOOTSTRAP_SERVERS"', '"BOOTSTRAP_SERVERS"'),),
    ),
    Job(
        "an option that skips lost records",
        (2, 4),
        "the Kafka source has failOnDataLoss=false: it would skip lost records silently ... "
        "Leave the option out; to accept a loss, start with",
        edits=((_SUBSCRIBE, _SUBSCRIBE + ', "failOnDataLoss": "false"'),),
    ),
    Job(
        "a column of another type in the job",
        (5, 5),
        "amount has another type ... expected:  {'amount': 'numeric(12,2)'} ... "
        'Convert it in the transform; in Spark: col("amount").cast("decimal(12,2)").',
        edits=(("CAST(CAST(value AS STRING) AS DECIMAL(12, 2)) AS amount", "CAST(value AS STRING) AS amount"),),
    ),
    Job(
        "a transform that drops _kafka",
        (5, 5),
        "transform dropped `_kafka`, which dead_letters= needs to trace each row to its record ... "
        'Keep it: select("_kafka", ...); it is not written.',
        edits=(
            ('into=Append("payments"))', 'into=Append("payments"), dead_letters=DeadLetters())'),
            ("import Append, Broker", "import Append, DeadLetters, Broker"),
        ),
    ),
    Job(
        "a query that begins at the end of the topic",
        (5, 6),
        "the query starts above the stored offset: [0, 1) is missing ... "
        '.option("startingOffsets", claim.starting_offsets)',
        edits=(('        .option("startingOffsets", claim.starting_offsets)', "        "),),
    ),
    Job(
        "a transform that returns neither rows nor columns",
        (0, 1),
        "group 'billing' is new: it reads at most 1 record of {topic}. ... "
        "If its job ran before under another name, or without offsetstore, don't let it run, "
        "and see the page 'A refused start' of the documentation.",
        edits=(
            ("return batch.selectExpr(", "return batch.select().limit(0) if True else batch.selectExpr("),
            (".start()", ".trigger(availableNow=True).start()"),
        ),
        behaviours=("START-29",),
    ),
]

_START: Final = "SparkSession.builder.getOrCreate()"

_LONG_CALL: Final = (
    _START,
    f"{_START}\n    open('started', 'w').close()\n    spark._jvm.java.lang.Thread.sleep(60_000)",
)

INTERRUPTED: Final = [
    Job("Ctrl-C while Spark starts", (130, 1), "Interrupted.", once="java", edits=(_LONG_CALL,)),
    Job("Ctrl-C while Java answers", (130, 2), "Interrupted.", once="started", edits=(_LONG_CALL,)),
]
