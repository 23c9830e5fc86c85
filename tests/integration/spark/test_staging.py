"""Large batches: executors stage the rows in parallel, the driver moves them in the transaction of the offsets."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from sqlalchemy import Connection, text

from offsetstore import Append, Claim, Execute, OffsetRange, Token, TopicPartition, TransactionalSink, Upsert
from offsetstore.errors import ConfigurationError, RowsRefused, SchemaError, SchemaMissing, SinkError, StaleClaim
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.postgres.schema import STAGING_SCHEMA
from offsetstore.protocol.ports import Writer
from offsetstore.protocol.work import Work
from offsetstore.spark.sink import Transform
from offsetstore.spark.staging_area import StagingArea
from offsetstore.testing.fixtures import NewTopic
from offsetstore.writers.staging import Staged, Staging
from offsetstore.writers.staging_schema import StagingOwner, StagingWriter, check_schema
from tests.support.cluster import Cluster
from tests.support.postgres import Database
from tests.support.staging_job import run_to_its_end, stage_beside_a_kill
from tests.support.transforms import EVENTS, events
from tests.support.world import SECONDS, World, made_unchecked

VALUES = "SELECT value FROM events ORDER BY value"
STAGING_TABLES = f"SELECT relname::text FROM pg_class WHERE relnamespace = '{STAGING_SCHEMA}'::regnamespace ORDER BY 1"


def start(
    world: World, claim: Claim, transform: Transform, into: Writer | Mapping[str, Writer], **settings: Any
) -> tuple[TransactionalSink, Any]:
    arguments: dict[str, Any] = {"staging": "always", **settings}
    sink = made_unchecked(claim, transform, into=into, **arguments)
    return sink, world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))


def run(world: World, claim: Claim, transform: Transform, into: Writer | Mapping[str, Writer], **settings: Any) -> None:
    sink, query = start(world, claim, transform, into, **settings)
    assert query.awaitTermination(SECONDS)
    assert sink.error is None


def failure(
    world: World, claim: Claim, transform: Transform, into: Writer | Mapping[str, Writer], **settings: Any
) -> BaseException | None:
    sink, query = start(world, claim, transform, into, **settings)
    return world.failure(query, sink).error


class Watch:
    """What was staged so far; ``then`` is called after each time, before anything is moved."""

    def __init__(self) -> None:
        self.staged: list[Staged] = []
        self.then: list[Callable[[Staged], None]] = []

    def seen(self, staged: Staged) -> None:
        self.staged.append(staged)
        if self.then:
            self.then.pop(0)(staged)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    stage = StagingArea.stage

    def watched(area: StagingArea, writer: StagingWriter, frame: DataFrame) -> Staged:
        staged = stage(area, writer, frame)
        watch.seen(staged)
        return staged

    monkeypatch.setattr(StagingArea, "stage", watched)
    return watch


@pytest.fixture
def topic(world: World, offsetstore_topic: NewTopic) -> str:
    """Two partitions with two records each, and a table for them."""
    world.database.execute(EVENTS)
    name = offsetstore_topic(2)
    world.produce(name, ["a", "b"])
    world.produce(name, ["c", "d"], partition=1)
    return name


@pytest.mark.behaviour("SINK-1", "SINK-8")
def test_two_outputs_are_staged_moved_and_their_tables_dropped(
    world: World, offsetstore_topic: NewTopic, watch: Watch
) -> None:
    world.database.execute(EVENTS)
    world.database.execute("CREATE TABLE counts (value text PRIMARY KEY, n bigint, last text)")
    topic = offsetstore_topic(3)
    for partition in range(3):
        world.produce(topic, [f"value {number % 7}" for number in range(100)], partition=partition)

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        value = F.col("value").cast("string")
        counts = batch.select("_kafka", value.alias("value"), F.lit(1).cast("bigint").alias("n"))
        last = F.concat_ws("-", "_kafka.partition", "_kafka.offset")
        return {"events": events(batch).repartition(5), "counts": counts.withColumn("last", last)}

    into = {"events": Append("events"), "counts": Upsert("counts", key=["value"], add=["n"])}
    run(world, world.claim(topic), transform, into)

    assert world.stored(topic) == {0: 100, 1: 100, 2: 100}
    assert world.database.rows('SELECT partition, count(*), count(DISTINCT "offset") FROM events GROUP BY 1') == [
        (partition, 100, 100) for partition in range(3)
    ]
    assert world.database.rows("SELECT * FROM counts ORDER BY value") == [
        (f"value {number}", 3 * len(range(number, 100, 7)), f"2-{max(range(number, 100, 7))}") for number in range(7)
    ]
    assert [staged.rows for staged in watch.staged] == [300, 300]
    assert all(len(staged.attempts) > 1 for staged in watch.staged), "in parallel"
    assert world.database.column(STAGING_TABLES) == []


@pytest.mark.behaviour("SINK-3", "TX-5")
def test_a_replay_is_cropped_and_what_drops_everything_still_advances(world: World, topic: str, watch: Watch) -> None:
    claim = world.claim(topic)
    world.advance(claim, {TopicPartition(topic, 0): 1})
    run(world, claim, lambda batch: events(batch).where("value <> 'c'"), Append("events"))
    assert world.database.column(VALUES) == ["b", "d"]

    world.produce(topic, ["e", "f"])
    run(world, world.claim(topic), lambda batch: events(batch).where("value = 'x'"), Append("events"))
    assert world.database.column(VALUES) == ["b", "d"]
    assert world.stored(topic) == {0: 4, 1: 2}
    assert [staged.rows for staged in watch.staged] == [2, 0]


def test_what_execute_gets_is_collected_beside_staged_outputs(world: World, topic: str, watch: Watch) -> None:
    world.database.execute("CREATE TABLE log (value text)")

    def log(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            work.connection.execute(text("INSERT INTO log VALUES (:value)"), batch.to_pylist())

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        return {"log": events(batch).select("value"), "events": events(batch)}

    run(world, world.claim(topic), transform, {"log": Execute(log), "events": Append("events")})

    assert world.database.column("SELECT value FROM log ORDER BY value") == ["a", "b", "c", "d"]
    assert world.database.column(VALUES) == ["a", "b", "c", "d"]
    assert [staged.rows for staged in watch.staged] == [4]


# -- when it is used


@pytest.mark.parametrize(
    ("settings", "staged"),
    [
        ({"staging": "auto", "staging_threshold": 2}, [3]),
        ({"staging": "auto", "staging_threshold": 3}, []),
        ({"staging": "auto"}, []),
        ({"staging": "never", "staging_threshold": 0}, []),
    ],
    ids=["above the threshold", "at it", "by default", "never"],
)
def test_the_offsets_that_are_still_to_be_written_decide(
    world: World, topic: str, watch: Watch, settings: dict[str, Any], staged: list[int]
) -> None:
    claim = world.claim(topic)
    world.advance(claim, {TopicPartition(topic, 0): 1})
    run(world, claim, events, Append("events"), **settings)
    assert world.database.column(VALUES) == ["b", "c", "d"]
    assert [one.rows for one in watch.staged] == staged


@pytest.mark.parametrize("settings", [{"staging": "sometimes"}, {"staging_threshold": -1}])
def test_a_setting_that_can_not_be_right_is_refused(world: World, topic: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="staging"):
        TransactionalSink(world.claim(topic), events, into=Append("events"), **settings)


def test_a_database_without_the_schema_is_refused_with_the_ddl(world: World, topic: str) -> None:
    world.database.execute(f"DROP SCHEMA {STAGING_SCHEMA}")
    error = failure(world, world.claim(topic), events, Append("events"))
    assert isinstance(error, SchemaMissing)
    assert f"CREATE SCHEMA {STAGING_SCHEMA} AUTHORIZATION" in error.next_step
    assert 'staging="never"' in error.next_step
    assert world.stored(topic) == {0: 0, 1: 0}

    run(world, world.claim(topic), events, Append("events"), staging="never")
    assert world.database.column(VALUES) == ["a", "b", "c", "d"]


# -- what is refused


@pytest.mark.behaviour("SINK-10")
def test_a_value_that_an_executor_refuses_ends_the_query_with_the_typed_error(world: World, topic: str) -> None:
    world.produce(topic, ["with a \0"], partition=1)
    error = failure(world, world.claim(topic), events, Append("events"))
    assert isinstance(error, RowsRefused)
    assert (error.table, error.column) == ("public.events", "value")
    assert (world.database.column(VALUES), world.stored(topic)) == (["a", "b", "c", "d"], {0: 2, 1: 2})
    assert world.database.column(STAGING_TABLES) == []


def test_a_row_that_the_target_refuses_ends_the_query_with_the_typed_error(world: World, topic: str) -> None:
    world.database.execute("CREATE UNIQUE INDEX once ON events (partition)")
    error = failure(world, world.claim(topic), events, Append("events"))
    assert isinstance(error, RowsRefused)
    assert (error.constraint, error.offsets) == ("once", OffsetRange(1, 2))
    assert (world.database.column(VALUES), world.stored(topic)) == (["a"], {0: 1, 1: 0})
    assert world.database.column(STAGING_TABLES) == []


# -- what goes wrong between staging and the move


def test_rows_of_an_attempt_that_did_not_report_itself_are_not_moved(world: World, topic: str, watch: Watch) -> None:
    def add(staged: Staged) -> None:
        """As a task does that Spark has given up, and that goes on."""
        world.database.execute(
            f'INSERT INTO {STAGING_SCHEMA}."{staged.staging.name}" (value, "_offsetstore.attempt") '
            f"VALUES ('zombie', '{uuid4()}')"
        )

    watch.then = [add]
    run(world, world.claim(topic), events, Append("events"))
    assert world.database.column(VALUES) == ["a", "b", "c", "d"]


def test_a_table_that_was_emptied_is_noticed_and_the_batch_computed_again(
    world: World, topic: str, watch: Watch
) -> None:
    watch.then = [lambda staged: world.database.execute(f'TRUNCATE {STAGING_SCHEMA}."{staged.staging.name}"')]
    run(world, world.claim(topic), events, Append("events"))
    first, second = watch.staged
    assert first.staging != second.staging
    assert world.database.column(VALUES) == ["a", "b", "c", "d"]
    assert world.stored(topic) == {0: 2, 1: 2}


def test_a_table_that_is_always_emptied_ends_the_query_instead_of_a_loop(
    world: World, topic: str, watch: Watch
) -> None:
    watch.then = [
        lambda staged: world.database.execute(f'TRUNCATE {STAGING_SCHEMA}."{staged.staging.name}"')
    ] * 5  # fmt: skip
    error = failure(world, world.claim(topic), events, Append("events"))
    assert isinstance(error, SinkError)
    assert error.found == "4 rows were staged, but the table holds 0"
    assert (world.database.column(VALUES), world.stored(topic)) == ([], {0: 0, 1: 0})


def test_a_target_whose_column_changes_meanwhile_gets_rows_of_its_new_type(
    world: World, topic: str, watch: Watch
) -> None:
    watch.then = [lambda _: world.database.execute("ALTER TABLE events ALTER value TYPE varchar(9)")]
    run(world, world.claim(topic), events, Append("events"))
    assert len(watch.staged) == 2
    assert world.database.column(VALUES) == ["a", "b", "c", "d"]


@pytest.mark.behaviour("TX-12")
def test_a_crash_of_the_database_which_empties_the_table_is_outlasted(
    world: World, topic: str, watch: Watch, offsetstore_postgres: PostgresServer
) -> None:
    def crash(_: Staged) -> None:
        offsetstore_postgres.stop("immediate")
        Thread(target=offsetstore_postgres.start).start()

    watch.then = [crash]
    run(world, world.claim(topic), events, Append("events"))
    assert len(watch.staged) == 2
    after = Database(world.database.url)
    assert after.column(VALUES) == ["a", "b", "c", "d"]
    assert after.column(STAGING_TABLES) == []
    after.close()


@pytest.mark.behaviour("START-14")
def test_a_claim_that_comes_between_staging_and_move_fences_the_job(world: World, topic: str, watch: Watch) -> None:
    def take_over(staged: Staged) -> None:
        world.claim(topic)
        world.database.execute(f'DROP TABLE {STAGING_SCHEMA}."{staged.staging.name}"')

    watch.then = [take_over]
    assert isinstance(failure(world, world.claim(topic), events, Append("events")), StaleClaim)
    assert (world.database.column(VALUES), world.stored(topic)) == ([], {0: 0, 1: 0})


class Unlucky(Append):
    """The first task loses its connection in the middle of its transaction."""

    def __init__(self, table: str, flag: Path) -> None:
        super().__init__(table)
        self.flag = flag

    def stage(self, connection: Connection, staging: Staging, attempt: UUID, batches: Iterable[pa.RecordBatch]) -> int:
        rows = super().stage(connection, staging, attempt, batches)
        try:
            self.flag.touch(exist_ok=False)
        except FileExistsError:
            return rows
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return rows


@pytest.mark.behaviour("TX-12")
def test_tasks_that_lose_their_connection_are_run_again(world: World, topic: str, watch: Watch, tmp_path: Path) -> None:
    run(world, world.claim(topic), events, Unlucky("events", tmp_path / "flag"))
    assert (tmp_path / "flag").exists()
    assert [staged.rows for staged in watch.staged] == [4]
    assert world.database.column(VALUES) == ["a", "b", "c", "d"]


# -- clean-up


def test_a_killed_jobs_tables_are_dropped_by_the_next_claim_and_no_others(world: World, topic: str) -> None:
    settings = (world.database.url, world.kafka.bootstrap_servers, topic, world.group, world.checkpoints)
    assert run_to_its_end(*settings, failpoint="staged") == -signal.SIGKILL
    assert len(world.database.column(STAGING_TABLES)) == 1
    assert (world.database.column(VALUES), world.stored(topic)) == ([], {0: 0, 1: 0})

    claim = world.claim(topic)
    store_id, other = world.store.database.store_id(), world.claim(topic, group=f"{world.group}-other")
    others = [
        StagingOwner.of(store_id, world.group, claim.token).fresh(),
        StagingOwner.of(store_id, other.group, other.token).fresh(),
        StagingOwner.of(uuid4(), world.group, Token(1, uuid4())).fresh(),
    ]
    for kept in others:
        world.database.execute(f'CREATE TABLE {STAGING_SCHEMA}."{kept.name}" ()')
    run(world, claim, events, Append("events"))

    assert world.database.column(STAGING_TABLES) == sorted(kept.name for kept in others)
    assert world.database.column(VALUES) == ["a", "b", "c", "d"]


def test_a_table_that_somebody_holds_does_not_hold_up_the_job(
    world: World, topic: str, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offsetstore.spark.staging_area._DROP_SECONDS", 0.1)
    holder = Database(world.database.url)

    def hold(staged: Staged) -> None:
        holder.execute("BEGIN")
        holder.execute(f'LOCK TABLE {STAGING_SCHEMA}."{staged.staging.name}" IN ACCESS SHARE MODE')

    watch.then = [hold]
    run(world, world.claim(topic), events, Append("events"))
    assert world.database.column(VALUES) == ["a", "b", "c", "d"]
    assert len(world.database.column(STAGING_TABLES)) == 1
    holder.close()


def test_a_role_that_may_not_make_tables_is_told_what_to_grant(world: World) -> None:
    role = f"role_{uuid4().hex[:12]}"
    session = world.store.database.begin(name="test")
    try:
        session.connection.execute(text(f"CREATE ROLE {role}"))
        session.connection.execute(text(f"SET LOCAL ROLE {role}"))
        with pytest.raises(SchemaError, match=f'GRANT USAGE, CREATE ON SCHEMA {STAGING_SCHEMA} TO "{role}"'):
            check_schema(session.connection)
    finally:
        session.rollback()


# -- executors in processes of their own


@pytest.mark.behaviour("SINK-1")
def test_an_executor_that_dies_after_its_rows_were_staged_leaves_no_twin(
    world: World, topic: str, cluster: Cluster, tmp_path: Path
) -> None:
    in_table, reported = cluster.run(
        stage_beside_a_kill,
        flag=str(tmp_path / "flag"),
        url=world.database.url,
        servers=world.kafka.bootstrap_servers,
        topic=topic,
        group=world.group,
        base=world.checkpoints,
    )
    assert (in_table, reported) == (6, 4), "one partition's rows twice"
    assert world.database.column(VALUES) == ["a", "b", "c", "d"]
    assert world.stored(topic) == {0: 2, 1: 2}
    assert world.database.column(STAGING_TABLES) == []
    cluster.wait_for_executors()
