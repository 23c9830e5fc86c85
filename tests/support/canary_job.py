"""A job that fails in every way in which the database can quote a row, with all logs at DEBUG.

``python -m tests.support.canary_job SERVERS TOPIC DIRECTORY LEAK``, run from the top of the checkout; OFFSETSTORE_URL
names the database, which has the tables of `TABLES`; one of the topic's two records has the value `GOOD`. In the
directory it leaves ``driver.log`` (Python's logs), ``spark.log`` (log4j's, and what Python workers write to stderr),
``events`` (Spark's event log), ``errors.txt`` (each error as it can be printed), and what each of the `SURFACES` shows.
It does not know the other record's values; LEAK is a text that it puts into each of these places on purpose, into the
surfaces as a group's name.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from click.testing import CliRunner
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from sqlalchemy import Connection, Engine, create_engine, text

from offsetstore import Append, Broker, Claim, DeadLetters, Execute, OffsetStore, Retries, TransactionalSink
from offsetstore.cli.commands import cli
from offsetstore.monitoring import Metrics, Tracing
from offsetstore.postgres.url import connection_parameters
from offsetstore.protocol.ports import Work
from tests.support.shown import printed, shown

ROOT: Final = Path(__file__).parents[2]

# An inet goes in its text form, so that the COPY is a text one, whose CONTEXT quotes the line.
_COLUMNS: Final = "(key text, value text, header text, address inet"
TABLES: Final = f"""
CREATE TABLE refused {_COLUMNS}, CONSTRAINT is_short CHECK (length(value) < 10));
CREATE TABLE slow {_COLUMNS});
CREATE TABLE lost {_COLUMNS});
CREATE FUNCTION cancel() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(60); RETURN NEW; END $$;
CREATE TRIGGER cancel BEFORE INSERT ON slow FOR EACH ROW EXECUTE FUNCTION cancel();
CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); RETURN NEW; END $$;
CREATE TRIGGER leave BEFORE INSERT ON lost FOR EACH ROW EXECUTE FUNCTION leave();
"""
"""An INSERT into ``slow`` is cancelled in mid COPY: a time limit would also cancel what is slow by itself."""

SECONDS: Final = 540
"""The job takes a minute or two, on a busy machine some: less than a test may take."""

_STOOD_STILL: Final = "stood-still.txt"

GOOD: Final = "fine"
"""The value of the record that may be seen: a function that fails for the other one does not fail for it."""

_LOG4J: Final = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c: %m%n%ex
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


def run(directory: Path, *, url: str, servers: str, topic: str, leak: str) -> None:
    """Run the job as its own process, to its end: if it stands still, it ends, and says where each thread stood."""
    (stood_still := directory / _STOOD_STILL).touch()
    try:
        with (directory / "spark.log").open("wb") as log:
            subprocess.run(
                [sys.executable, "-m", "tests.support.canary_job", servers, topic, str(directory), leak],
                cwd=ROOT,
                env={**os.environ, "OFFSETSTORE_URL": url},
                stdout=log,
                stderr=log,
                check=True,
                timeout=SECONDS + 30,
            )
    except subprocess.CalledProcessError as error:
        error.add_note(stood_still.read_text())
        raise


def everyone(batch: DataFrame) -> DataFrame:
    """Each record's key, value and header."""
    return batch.select(
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("value"),
        F.element_at("headers", 1)["value"].cast("string").alias("header"),
        F.lit("10.0.0.1").alias("address"),
        "_kafka",
    )


def people(batch: DataFrame) -> DataFrame:
    """The same of the record with secrets."""
    return everyone(batch).where(F.col("value") != GOOD)


def insert_slowly(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Write with psycopg, and the values in the statement, as it should not be done."""
    for rows in batches:
        for row in rows.to_pylist():
            statement = f"INSERT INTO slow (key, value) VALUES ('{row['key']}', '{row['value']}')"
            work.connection.connection.cursor().execute(statement)


def rejecting(batch: DataFrame) -> DataFrame:
    """Each record is rejected, with its value in the reason."""
    return people(batch).withColumn("_reject", F.concat(F.lit("no: "), "value"))


def raise_with_value(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """An error of the function's own, which quotes a row; only one record has none."""
    for rows in batches:
        if rows["value"].to_pylist() != [GOOD]:
            raise ValueError(rows.to_pylist())


class Careless:
    """A writer of the application's own, which raises what psycopg does."""

    def uses_kafka_column(self, schema: pa.Schema) -> bool:  # noqa: ARG002 - the Protocol's
        """Never."""
        return False

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Whatever comes, is tried."""

    def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
        """Insert row by row."""
        for rows in batches:
            for row in rows.to_pylist():
                values = (row["key"], row["value"])
                work.connection.connection.cursor().execute("INSERT INTO refused (key, value) VALUES (%s, %s)", values)
        return 0


_TASKS: Final[dict[str, Any]] = {"atomicity": "partition", "task_threshold": 0}

WAYS: Final[dict[str, dict[str, Any]]] = {
    "refused": {"into": Append("refused")},
    "execute-cancelled": {"into": Execute(insert_slowly)},
    "careless-task": {"into": Careless(), **_TASKS},
    "lost": {"into": Append("lost")},
    "letters-refused-task": {"into": Append("refused"), "dead_letters": DeadLetters(max_retries=0), **_TASKS},
    "letters-rejected": {"into": Append("refused"), "dead_letters": DeadLetters(), "transform": rejecting},
    "letters-raised": {
        "into": Execute(raise_with_value, splittable=True),
        "dead_letters": DeadLetters(max_retries=0),
        "transform": everyone,
    },
}
"""What the sink is given, by the consumer group that does it; ``transform`` is by default `people`."""


@dataclass(frozen=True)
class Shown:
    """What shows something of the jobs while their claims are open.

    :ivar groups: those that were claimed.
    """

    engine: Engine
    metrics: Metrics
    spans: InMemorySpanExporter
    groups: list[str] = field(default_factory=list[str])

    def rows(self, table: str) -> str:
        """A table of ours, as text."""
        with self.engine.connect() as connection:
            return "\n".join(map(str, connection.execute(text(f"SELECT t::text FROM {table} AS t"))))

    def command(self, *arguments: str) -> str:
        """What a command prints for each group."""
        runs = [CliRunner().invoke(cli, [*arguments, "-g", group]) for group in self.groups]
        assert all(run.exit_code == 0 for run in runs), [run.output for run in runs]
        return "\n".join(run.output for run in runs)


SURFACES: Final[dict[str, Callable[[Shown], str]]] = {
    "metrics": lambda shown: generate_latest(shown.metrics.registry).decode(),
    "spans": lambda shown: "\n".join(span.to_json() for span in shown.spans.get_finished_spans()),
    "history": lambda shown: shown.rows("offset_history"),
    "groups": lambda shown: shown.rows("consumer_groups"),
    "status": lambda shown: shown.command("status"),
    "letters": lambda shown: shown.command("dead-letters", "list", "--format", "json"),
}
"""What else shows something of a job: each becomes a file. It shows the groups' names, so that a leak is seen there."""


def _main(servers: str, topic: str, directory: Path, leak: str) -> None:
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=(directory / _STOOD_STILL).open("w"))
    logging.basicConfig(filename=directory / "driver.log", level=logging.DEBUG)
    for name in ("sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool", "psycopg", "py4j"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    spark = _session(directory)
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true"}
    options["kafka.fetch.max.wait.ms"] = "10"
    url = connection_parameters(None)
    # The application's own engine, which shows parameters, as SQLAlchemy's do unless they are told not to.
    engine = create_engine("postgresql+psycopg://", connect_args=url)
    metrics, spans, provider = Metrics(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    retries = Retries(attempts=2, shortest=0.01, longest=0.02)
    with (
        (directory / "errors.txt").open("w", buffering=1, encoding="utf-8") as told,
        ExitStack() as brokers,
        OffsetStore.connect(engine, retries=retries, observers=[metrics, Tracing(provider)]) as store,
    ):

        def broker(**more: str) -> Broker:
            made = Broker.from_spark({**options, **more})
            brokers.callback(made.close)
            return made

        for group, way in WAYS.items():
            claim = store.claim(group, broker(**{"kafka.debug": "all"}))
            told.write(f"== {group}: {_failure(spark, claim, options, directory, **way)}\n")
        claim = store.claim(f"group {leak}", broker())
        told.write(_failure(spark, claim, options, directory, into=Append("refused"), leak=leak))
        shown = Shown(engine, metrics, spans, [*WAYS, claim.group])
        for name, surface in SURFACES.items():
            (directory / name).write_text(surface(shown), encoding="utf-8")
        _leak(spark, engine, leak)
    spark.stop()


def _session(directory: Path) -> SparkSession:
    from offsetstore.local.spark import local_session, quick_conf, spark_conf  # noqa: PLC0415

    (directory / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    events = directory / "events"
    events.mkdir()
    quick = quick_conf(spark_conf())
    logs = f'"-Dlog4j2.configurationFile={directory / "log4j2.properties"}"'  # in place of the first one
    conf = {
        **quick,
        "spark.driver.extraJavaOptions": f"{quick['spark.driver.extraJavaOptions']} {logs}",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    session = local_session("canary", extra_conf=conf)
    session.sparkContext.setLogLevel("DEBUG")  # as log4j's own setting, the console would not follow it
    return session


def _failure(
    spark: SparkSession,
    claim: Claim,
    options: dict[str, str],
    directory: Path,
    *,
    leak: str = "",
    transform: Callable[[DataFrame], DataFrame] = people,
    **way: Any,
) -> str:
    """Run a query to its failure, and return all that can be printed of it; the class of our error first."""

    def transform_or_leak(batch: DataFrame) -> DataFrame:
        if leak:
            raise ValueError(f"an error of the job's own, {leak}")
        return transform(batch)

    sink = TransactionalSink(claim, transform_or_leak, **way)
    reader = spark.readStream.format("kafka").options(**options).option("startingOffsets", claim.starting_offsets)
    query = (
        reader.load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", claim.checkpoint(str(directory / "checkpoints")))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120), "the query did not end"
    except StreamingQueryException as error:
        logging.getLogger("canary").exception("the query failed")
        assert sink.error is not None
        logging.getLogger("canary").exception("with this", exc_info=sink.error)
        return "\n".join([type(sink.error).__name__, shown(sink.error), printed(error)])
    return "nothing"


def _leak(spark: SparkSession, engine: Any, leak: str) -> None:
    """Put the text into each place that is looked at, in the way in which a value would come there."""
    logging.getLogger("canary").debug("driver %s", leak)
    logging.getLogger("psycopg").debug("psycopg %s", leak)
    with engine.connect() as connection:
        connection.execute(text("SELECT :leak"), {"leak": f"sqlalchemy {leak}"})
    context: Any = spark.sparkContext
    context._jvm.java.lang.String(f"py4j {leak}")
    context._jvm.org.slf4j.LoggerFactory.getLogger("canary").debug(f"log4j {leak}")
    context.setJobDescription(f"event {leak}")

    def tell(_: object) -> None:
        sys.stderr.write(f"worker {leak}\n")

    context.parallelize([1], 1).foreach(tell)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
