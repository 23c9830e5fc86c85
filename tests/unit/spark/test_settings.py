"""Which of a sink's settings go together, and with which query; and those with which Spark reads faster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame

from offsetstore import Append, Claim, DeadLetters, Execute, Flush, Handler, TransactionalSink, Upsert
from offsetstore.errors import ConfigurationError, KafkaColumnsMissing, UnsupportedQuery
from offsetstore.processing.handling import check_order
from offsetstore.spark.columns import KAFKA_COLUMNS
from offsetstore.spark.settings import MANAGER, READER, SinkSettings, tuned
from offsetstore.spark.stateful import _check_file_manager  # pyright: ignore[reportPrivateUsage] - pure

COORDINATES = DeadLetters(keep="coordinates")
LETTERS: dict[str, Any] = {"dead_letters": DeadLetters()}
MANUAL: dict[str, Any] = {"marking": "manual"}
FLUSH: dict[str, Any] = {"flush": Flush()}
PARTITION: dict[str, Any] = {"atomicity": "partition"}


def settings(**others: Any) -> SinkSettings:
    given: dict[str, Any] = {"marking": "automatic", "flush": None, "dead_letters": None, **others}
    return SinkSettings(**given)


def book(*_: object) -> None: ...


def same(batch: DataFrame) -> DataFrame:
    return batch


TABLE, FUNCTION, SPLITTABLE = Append("events"), Execute(book), Execute(book, splittable=True)
LATEST = Upsert("latest", key=["name"])


@pytest.mark.behaviour("MARK-1", "MARK-4")
@pytest.mark.parametrize(
    ("into", "given", "told"),
    [
        (TABLE, {"dead_letters": True}, r"found True; expected DeadLetters\(\)"),
        (TABLE, LETTERS | FLUSH, "wait in memory"),
        (SPLITTABLE, LETTERS | MANUAL, "wait in memory"),
        (FUNCTION, LETTERS, "splittable=True"),
        (TABLE, MANUAL, "Append"),
        (FUNCTION, MANUAL | {"metadata": book}, "metadata="),
        (FUNCTION, MANUAL | FLUSH, "flush="),
        (FUNCTION, MANUAL | PARTITION, "atomicity="),
        (TABLE, FLUSH | PARTITION, "atomicity="),
        (TABLE, {"marking": "sometimes"}, "sometimes"),
        (TABLE, {"atomicity": "task"}, '"batch" or "partition"'),
        (TABLE, PARTITION | {"task_threshold": -1}, "task_threshold must be 0 or more"),
        ({"a": Append("a"), "b": Append("b")}, PARTITION, "one output"),
        ({}, {}, r"must be a writer.*found \{\}"),
    ],
)
def test_what_does_not_go_together_is_refused_when_the_sink_is_made(
    claim: Claim, into: Any, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        TransactionalSink(claim, same, into=into, **given)
    TransactionalSink(claim, same, into=FUNCTION, **MANUAL)  # the claim is free still


@pytest.mark.behaviour("HAND-8")
def test_calls_in_no_order_do_not_go_with_rows_that_replace_others_by_their_offset() -> None:
    unordered, ordered = (Handler(book, "name string", ordering=how) for how in ("none", "key"))
    with pytest.raises(ConfigurationError, match='ordering="none"'):
        check_order(unordered, LATEST, uses_kafka=True)
    check_order(unordered, LATEST, uses_kafka=False)
    check_order(ordered, LATEST, uses_kafka=True)


@pytest.mark.behaviour("DLQ-21")
def test_records_that_wait_for_a_dead_one_need_letters_that_can_be_replayed() -> None:
    with pytest.raises(ConfigurationError, match=r'sequence="key" and keep="coordinates"; expected one of them'):
        DeadLetters(sequence="key", keep="coordinates")
    DeadLetters(sequence="key")


@pytest.mark.behaviour("DLQ-21", "MARK-1")
@pytest.mark.parametrize("others", [[FUNCTION], [TABLE], [FUNCTION, FUNCTION]])
def test_manual_marking_needs_one_function_since_the_last_mark_of_several_would_count(others: list[Any]) -> None:
    manual = settings(**MANUAL)
    manual.check([FUNCTION])
    with pytest.raises(ConfigurationError, match=r"needs (one|a) function"):
        manual.check([FUNCTION, *others])


@pytest.mark.parametrize("writer", [TABLE, SPLITTABLE])
def test_writers_that_can_be_given_single_records_go_with_dead_letters(writer: Any) -> None:
    settings(**LETTERS).check([writer])


# -- with a query

OUTLIVES = (UnsupportedQuery, "outlives its claim")
WITH_STATE = (UnsupportedQuery, "query (with|that has) state")
WHOLE = (KafkaColumnsMissing, r"load\(\)")
NO_HEADERS = (KafkaColumnsMissing, r'found key, value.*includeHeaders="true"')
FRESH, OWN, KEPT = "/checkpoints/1", "/checkpoints/own", "/checkpoints/kept"
TENANT: dict[str, Any] = {"propagate": ("tenant",)}


def without(*names: str) -> list[str]:
    return [name for name in KAFKA_COLUMNS if name not in names]


@pytest.mark.behaviour("CTX-1", "HAND-8", "MARK-1", "MARK-4", "SINK-6")
@pytest.mark.parametrize(
    ("given", "columns", "checkpoint", "refused"),
    [
        *((given, KAFKA_COLUMNS, place, OUTLIVES) for given in (MANUAL, FLUSH) for place in (OWN, KEPT)),
        *((given, KAFKA_COLUMNS, KEPT, WITH_STATE) for given in (PARTITION, TENANT, LETTERS, {"has_handler": True})),
        *((LETTERS, without(name), FRESH, WHOLE) for name in ("key", "value", "timestampType")),
        *(({"dead_letters": COORDINATES, **TENANT}, without(n), FRESH, WHOLE) for n in ("value", "timestampType")),
        (TENANT, ["key", "value"], FRESH, NO_HEADERS),
        *((given, KAFKA_COLUMNS, FRESH, None) for given in (MANUAL, FLUSH, PARTITION, TENANT, LETTERS)),
        *(({"dead_letters": COORDINATES}, without(name), FRESH, None) for name in ("value", "timestampType")),
        (TENANT, ["value", "headers"], FRESH, None),
        ({}, ["value"], OWN, None),
    ],
)
def test_a_query_goes_with_its_sink_or_is_refused(
    given: dict[str, Any], columns: list[str], checkpoint: str, refused: tuple[type[Exception], str] | None
) -> None:
    claim: Any = SimpleNamespace(keeps_checkpoint=checkpoint == KEPT, checkpoint_name="1")
    others = {**given}
    has_handler = others.pop("has_handler", False)
    made = settings(**others)
    if refused is None:
        made.check_query(claim, columns, checkpoint)
        return
    error, told = refused
    with pytest.raises(error, match=told):
        made.check_query(claim, columns, checkpoint, has_handler=has_handler)


# -- the checkpoint of a query with state, whose file manager must replace files

TUNED = "org.example.FileSystemBasedCheckpointFileManager"


def check_manager(root: str, manager: str | None) -> None:
    """Check a query that keeps its checkpoint there, with such a file manager."""
    state = SimpleNamespace(newHadoopConf=lambda: {MANAGER: manager} if manager else {})
    session = SimpleNamespace(sessionState=lambda: state)
    execution: Any = SimpleNamespace(resolvedCheckpointRoot=lambda: root, sparkSession=lambda: session)
    _check_file_manager(execution)


@pytest.mark.parametrize(
    ("root", "manager"), [("file:/kept", TUNED), ("s3a://bucket/kept", None), ("s3a://bucket/kept", "org.example.Own")]
)
def test_what_replaces_files_is_admitted(root: str, manager: str | None) -> None:
    check_manager(root, manager)


def test_the_tuned_manager_is_refused_on_another_file_system() -> None:
    with pytest.raises(UnsupportedQuery, match=r"s3a://bucket/kept.*FileSystemBased.*Unset it"):
        check_manager("s3a://bucket/kept", TUNED)


# -- what `tuned` adds to the options of the Kafka source

KAFKA = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "payments"}


SESSION: Any = object()  # which must not be asked for anything, nor be changed


def test_options_are_added_to_those_of_the_source_and_nothing_of_the_session_is_touched() -> None:
    assert tuned(SESSION, KAFKA) == KAFKA | READER


@pytest.mark.parametrize("name", ["kafka.max.poll.records", "KAFKA.max.poll.Records"])
def test_an_option_of_the_users_own_stays_and_is_there_once(name: str) -> None:
    options = tuned(SESSION, KAFKA | {name: "77"})
    assert {key.lower(): value for key, value in options.items()}["kafka.max.poll.records"] == "77"
    assert len({key.lower() for key in options}) == len(options) == len(KAFKA | READER)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_a_batch_is_limited_unless_the_user_says_how_large_it_is(name: str) -> None:
    assert tuned(SESSION, KAFKA)["maxOffsetsPerTrigger"] == "2000000"
    limits = {key: value for key, value in tuned(SESSION, KAFKA | {name: "3000000"}).items() if "PerTrigger" in key}
    assert limits == {name: "3000000"}
