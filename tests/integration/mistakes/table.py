"""Forty mistakes of a new user in README's and docs' first steps: what is done, and what is printed then.

Consumers and jobs are README's own, with an edit. In all texts, ``{topic}``, ``{group}``, ``{kafka}``, ``{url}``,
``{dead}`` (an address at which nobody answers) and ``{role}`` stand for the test's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Prepared: TypeAlias = Literal["nothing", "tables", "group"]
"""The database: without offsetstore's tables, with them, or also with a live job that has claimed ``billing``."""

PAYMENTS: Final = "CREATE TABLE payments (payer text, amount numeric(12, 2))"


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One mistake.

    :param name: of the test.
    :param code: the exit code.
    :param lines: the most that may be printed.
    :param cause: texts that must be printed: what was found, and what is wrong.
    :param step: what the user can do.
    :param before: SQL that the owner of the tables has run.
    :param behaviours: others that it proves, beside DX-9.
    """

    name: str
    code: int
    lines: int
    cause: tuple[str, ...]
    step: str
    before: str = ""
    behaviours: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Command(Mistake):
    """A command is typed, with OFFSETSTORE_URL set.

    :param line: as in a shell, without ``offsetstore``.
    :param url: the variable's value, ``None`` if it is not set.
    :param prepared: the database.
    :param lacks: a package that is not installed.
    """

    line: str
    url: str | None = "{url}"
    prepared: Prepared = "tables"
    lacks: str = ""


@dataclass(frozen=True, kw_only=True)
class Edited(Mistake):
    """README's code, of which one text is replaced by another.

    :param edits: each text, which the code has once, and the one in its place.
    :param records: values in the topic.
    :param has_job: whether a live job has claimed the group.
    """

    edits: tuple[tuple[str, str], ...] = ()
    records: tuple[bytes, ...] = (b"12.50",)
    has_job: bool = False
    before: str = PAYMENTS


@dataclass(frozen=True, kw_only=True)
class Consuming(Edited):
    """``offsetstore consume billing_app:consumer``, or another function."""

    function: str = "billing_app:consumer"


@dataclass(frozen=True, kw_only=True)
class Job(Edited):
    """``python job.py``."""


@dataclass(frozen=True, kw_only=True)
class Interrupted(Job):
    """The same, and Ctrl-C once there is Java, or this file."""

    once: str


_AS_ROLE: Final = "{role_url}"

COMMANDS: Final = [
    Command(
        name="no database is named",
        line="status -g billing",
        url=None,
        code=2,
        lines=4,
        cause=("no database was named", "found:     neither --url nor OFFSETSTORE_URL"),
        step="Set OFFSETSTORE_URL or pass --url.",
    ),
    Command(
        name="a database that is not PostgreSQL",
        line="status -g billing",
        url="mysql://job:canary@localhost/sales",
        code=2,
        lines=4,
        cause=("not a PostgreSQL URL",),
        step="postgresql://",
    ),
    Command(
        name="no server at the URL",
        line="migrate",
        url="postgresql://job:canary@{dead}/sales",
        code=3,
        lines=4,
        cause=("the database can't be reached", "a server that answers, and knows the role, its password and the"),
        step="Check --url or OFFSETSTORE_URL, that the server runs, and that the role may connect.",
    ),
    Command(
        name="no migration",
        line="status -g billing",
        prepared="nothing",
        code=3,
        lines=4,
        cause=("the database has no offsetstore tables",),
        step="Run `offsetstore migrate`.",
        behaviours=("START-17",),
    ),
    Command(
        name="tables in another schema",
        line="status -g billing",
        before="ALTER SCHEMA public RENAME TO jobs",
        code=3,
        lines=3,
        cause=("the offsetstore tables are in another schema", 'tables in "jobs"'),
        step="--schema jobs for a command",
        behaviours=("OPS-23",),
    ),
    Command(
        name="a migration by a role that does not own the tables",
        line="migrate",
        url=_AS_ROLE,
        code=3,
        lines=3,
        cause=('the role "{role}" may not migrate the tables; nothing was changed', "permission denied"),
        step='Connect as "postgres", who owns the tables.',
    ),
    Command(
        name="a first migration by a role that may create nothing",
        line="migrate",
        url=_AS_ROLE,
        prepared="nothing",
        code=3,
        lines=3,
        cause=('the role "{role}" may not migrate the tables; nothing was changed', "permission denied"),
        step='`GRANT CREATE ON SCHEMA "public" TO "{role}"`',
    ),
    Command(
        name="a first migration into a schema, by a role that may create none",
        line="migrate --schema jobs",
        url=_AS_ROLE,
        prepared="nothing",
        code=3,
        lines=3,
        cause=('the role "{role}" may not migrate the tables; nothing was changed', "permission denied"),
        step='`GRANT CREATE ON DATABASE "{database}" TO "{role}"`',
    ),
    Command(
        name="no grants for the job's role",
        line="status -g billing",
        url=_AS_ROLE,
        code=3,
        lines=3,
        cause=("the database's role may not do that", "permission denied for table"),
        step="`offsetstore grants --role {role}`",
    ),
    Command(
        name="no grants for the relay's role",
        line="relay -b {dead}",
        url=_AS_ROLE,
        code=3,
        lines=3,
        cause=("the database's role may not do that", "permission denied for table"),
        step="`offsetstore grants --relay-role {role}`",
    ),
    Command(
        name="no grants for the dashboard's role",
        line="dashboard -b {dead}",
        url=_AS_ROLE,
        code=3,
        lines=3,
        cause=("the database's role may not do that", "permission denied for table"),
        step="`offsetstore grants --dashboard-role {role}`",
    ),
    Command(
        name="grants without a role",
        line="grants",
        url=None,
        code=2,
        lines=4,
        cause=("Name the job's role with --role",),
        step="or another one with --relay-role or --dashboard-role.",
    ),
    Command(
        name="a typo in the group's name",
        line="status -g biling",
        prepared="group",
        code=1,
        lines=2,
        cause=("the store has no group 'biling'",),
        step="Did you mean 'billing'? Correct the name; a group's rows are made by its first claim.",
    ),
    Command(
        name="a typo in the name of a group to decide about",
        line="reset -g biling -t payments --to-offset 0 --reason x --execute",
        prepared="group",
        code=1,
        lines=2,
        cause=("the store has no offsets of group 'biling'",),
        step="Did you mean 'billing'?",
    ),
    Command(
        name="a typo in a topic's name",
        line="reset -g billing -t paymets --to-offset 0 --reason x --force --execute",
        prepared="group",
        code=2,
        lines=3,
        cause=("the store has no offsets of topic 'paymets' for group 'billing'", "expected:  payments"),
        step="Did you mean payments? Correct the topic; a claim makes its rows.",
    ),
    Command(
        name="a dead letter that there is not",
        line="dead-letters show payments:0:7 -g billing",
        prepared="group",
        code=1,
        lines=2,
        cause=("payments-0: the group 'billing' has no dead letter of offset 7",),
        step="`offsetstore dead-letters list -g billing` shows the group's letters.",
    ),
    Command(
        name="a decision without a reason",
        line="pause -g billing",
        code=2,
        lines=4,
        cause=("Missing option '--reason'",),
        step="Try 'offsetstore pause --help' for help.",
    ),
    Command(
        name="a reason that is no UTF-8",
        line="pause -g billing --reason 'ticket \udcff'",
        code=2,
        lines=4,
        cause=("reason can't be stored", "a lone surrogate, character 8 of 8"),
        step="Correct the text; nothing was written.",
    ),
    Command(
        name="a typo in an option",
        line="status --grup billing",
        code=2,
        lines=4,
        cause=("No such option '--grup'",),
        step="Did you mean one of: '--group', '--kafka-group'?",
    ),
    Command(
        name="a typo in a command",
        line="statsu -g billing",
        code=2,
        lines=4,
        cause=("No such command 'statsu'",),
        step="Did you mean status?",
    ),
    Command(
        name="a broker option without its value",
        line="resolve -g billing -t payments -b {dead} -o sasl.password",
        code=2,
        lines=2,
        cause=("a broker option is not KEY=VALUE",),
        step="Write it as security.protocol=SASL_SSL.",
    ),
    Command(
        name="no broker at the address",
        line="resolve -g billing -t payments -b {dead} --timeout 1",
        code=4,
        lines=3,
        cause=("no answer from Kafka within 1 s",),
        step="Check bootstrap.servers",
        behaviours=("START-16",),
    ),
    Command(
        name="an extra that is not installed",
        line="dashboard -b {dead}",
        lacks="uvicorn",
        code=2,
        lines=3,
        cause=("`offsetstore dashboard` needs", "uvicorn"),
        step="pip install 'offsetstore[cli,dashboard,kafka]'",
    ),
]

ON_KAFKA: Final = [
    Command(
        name="a topic that Kafka does not have",
        line="resolve -g {group} -t {topic}s -b {kafka}",
        code=4,
        lines=4,
        cause=("Kafka has no topic {topic}s", "of those that this principal may see", "this topic at these brokers"),
        step="Did you mean {topic}? Create the topic or correct its name; nothing was changed.",
        behaviours=("START-16",),
    ),
]

CONSUMERS: Final = [
    Consuming(
        name="a typo in the module's name",
        function="biling_app:consumer",
        code=2,
        lines=4,
        cause=("there is no module biling_app",),
        step="Did you mean billing_app? Correct the name, change to the directory that has it, or set PYTHONPATH.",
    ),
    Consuming(
        name="a typo in the function's name",
        function="billing_app:consumr",
        code=2,
        lines=4,
        cause=("module billing_app has no function consumr",),
        step="Did you mean consumer, Consumer? Correct the name, or write the function.",
    ),
    Consuming(
        name="a function that returns nothing",
        edits=(("    return Consumer(", "    Consumer("),),
        code=2,
        lines=4,
        cause=("billing_app:consumer returned no consumer", "found:     NoneType"),
        step="Have the function return it.",
    ),
    Consuming(
        name="commits by Kafka's client",
        edits=(("kafka=kafka", "kafka={**kafka, 'enable.auto.commit': True}"),),
        code=2,
        lines=4,
        cause=("kafka= may not set enable.auto.commit", "nothing: the offsets are stored with the results"),
        step="Leave it out of kafka=.",
    ),
    Consuming(
        name="a typo in a setting of Kafka's client",
        edits=(("kafka=kafka", "kafka={**kafka, 'sesion.timeout.ms': 6000}"),),
        code=2,
        lines=3,
        cause=("librdkafka refuses the setting sesion.timeout.ms",),
        step="Correct it: librdkafka's CONFIGURATION.md lists the settings and their values.",
    ),
]

CONSUMERS_ON_KAFKA: Final = [
    Consuming(
        name="a topic that the consumer finds nowhere",
        edits=(('topics=["{topic}"]', 'topics=["{topic}s"]'),),
        code=4,
        lines=4,
        cause=("Kafka has no topic {topic}s",),
        step="Did you mean {topic}? Create the topic or correct its name",
    ),
    Consuming(
        name="a consumer beside the job that it replaces",
        has_job=True,
        code=1,
        lines=4,
        cause=("group 'billing' has a live owner", "epoch 1, claim"),
        step="Stop the other job, wait longer (takeover_timeout=), or take over with",
    ),
    Consuming(
        name="no table for the results",
        before="",
        code=5,
        lines=5,
        cause=("there is no table payments", "none that the role can see in the database"),
        step='Create it, name its schema ("schema.table"; case matters)',
    ),
    Consuming(
        name="a typo in a column",
        edits=(('"payer": records', '"payr": records'),),
        code=5,
        lines=5,
        cause=("payr is not in the table (did you mean payer?)",),
        step="Rename it to payer.",
    ),
    Consuming(
        name="a value that the transform can't compute",
        records=(b"12.50", b"a lot"),
        code=5,
        lines=6,
        cause=("transform raised ArrowInvalid at billing_app.py:7", "first refused at record {topic}-0@1"),
        step="offsetstore reset -g billing -t {topic}:0 --from-offset 1 --to-offset 2",
    ),
    Consuming(
        name="rights on the columns that are written alone",
        edits=(("OffsetStore.connect()", 'OffsetStore.connect("{role_url}")'),),
        before=PAYMENTS + "; {job}; GRANT INSERT (payer, amount) ON payments TO {role}",
        code=3,
        lines=6,
        cause=("the role {role} may not write to the table", "no INSERT on the table, only on its columns"),
        step="`offsetstore grants --role {role} --append public.payments`",
    ),
]

_SUBSCRIBE: Final = '"subscribe": "{topic}"'

JOBS: Final = [
    Job(
        name="a variable that the job needs",
        edits=(('"OFFSETSTORE_BOOTSTRAP_SERVERS"', '"BOOTSTRAP_SERVERS"'),),
        code=70,
        lines=3,
        cause=("the environment variable BOOTSTRAP_SERVERS is not set", "job.py:"),
        step="Set it",
    ),
    Job(
        name="an option that skips lost records",
        edits=((_SUBSCRIBE, _SUBSCRIBE + ', "failOnDataLoss": "false"'),),
        code=2,
        lines=4,
        cause=("the Kafka source has failOnDataLoss=false: it would skip lost records silently",),
        step="Leave the option out; to accept a loss, start with",
    ),
    Job(
        name="a column of another type in the job",
        edits=(("CAST(CAST(value AS STRING) AS DECIMAL(12, 2)) AS amount", "CAST(value AS STRING) AS amount"),),
        code=5,
        lines=5,
        cause=("amount has another type", "expected:  {'amount': 'numeric(12,2)'}"),
        step='Convert it in the transform; in Spark: col("amount").cast("decimal(12,2)").',
    ),
    Job(
        name="a transform that drops _kafka",
        edits=(
            ('into=Append("payments"))', 'into=Append("payments"), dead_letters=DeadLetters())'),
            ("import Append, Broker", "import Append, DeadLetters, Broker"),
        ),
        code=5,
        lines=5,
        cause=("transform dropped `_kafka`, which dead_letters= needs to trace each row to its record",),
        step='Keep it: select("_kafka", ...); it is not written.',
    ),
    Job(
        name="a query that begins at the end of the topic",
        edits=(('        .option("startingOffsets", claim.starting_offsets)', "        "),),
        code=5,
        lines=6,
        cause=("the query starts above the stored offset: [0, 1) is missing",),
        step='.option("startingOffsets", claim.starting_offsets)',
    ),
    Job(
        name="a transform that returns neither rows nor columns",
        edits=(
            ("return batch.selectExpr(", "return batch.select().limit(0) if True else batch.selectExpr("),
            (".start()", ".trigger(availableNow=True).start()"),
        ),
        code=0,
        lines=1,
        cause=("group 'billing' is new: it reads at most 1 record of {topic}.",),
        step="If its job ran before under another name, or without offsetstore, stop it, and see docs/starting.md.",
        behaviours=("START-29",),
    ),
]

_START: Final = "SparkSession.builder.getOrCreate()"
_LONG_CALL: Final = (
    _START,
    f"{_START}\n    open('started', 'w').close()\n    spark._jvm.java.lang.Thread.sleep(60_000)",
)

INTERRUPTED: Final = [
    Interrupted(
        name="Ctrl-C while Spark starts",
        once="java",
        edits=(_LONG_CALL,),
        code=130,
        lines=1,
        cause=("Interrupted.",),
        step="",
    ),
    Interrupted(
        name="Ctrl-C while Java answers",
        once="started",
        edits=(_LONG_CALL,),
        code=130,
        lines=2,  # Java says first which of its modules Spark uses
        cause=("Interrupted.",),
        step="",
    ),
]
