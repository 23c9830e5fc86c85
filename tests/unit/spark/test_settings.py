"""Which of a sink's settings go with dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from offsetstore import Append, DeadLetters, Execute, Flush
from offsetstore.errors import ConfigurationError, KafkaColumnsMissing, UnsupportedQuery
from offsetstore.spark.kafka_columns import KAFKA_COLUMNS
from offsetstore.spark.settings import SinkSettings


def settings(**others: Any) -> SinkSettings:
    given: dict[str, Any] = {"marking": "automatic", "flush": None, "dead_letters": DeadLetters(), **others}
    return SinkSettings(**given)


def book(*_: object) -> None: ...


@pytest.mark.parametrize(
    ("given", "writer", "told"),
    [
        ({"dead_letters": True}, Append("t"), r"found True; expected DeadLetters\(\)"),
        ({"flush": Flush(rows=10)}, Append("t"), "wait in memory"),
        ({"marking": "manual"}, Execute(book, splittable=True), "wait in memory"),
        ({}, Execute(book), "splittable=True"),
    ],
)
def test_what_does_not_go_with_dead_letters_is_refused(given: dict[str, Any], writer: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        settings(**given).check([writer])


@pytest.mark.behaviour("DLQ-21")
def test_records_that_wait_for_a_dead_one_need_letters_that_can_be_replayed() -> None:
    with pytest.raises(ConfigurationError, match=r'sequence="key" and keep="coordinates"; expected one of them'):
        DeadLetters(sequence="key", keep="coordinates")
    DeadLetters(sequence="key")
    DeadLetters(keep="coordinates")


@pytest.mark.behaviour("DLQ-21", "MARK-1")
@pytest.mark.parametrize("others", [[Execute(book)], [Append("t")], [Execute(book), Execute(book)]])
def test_manual_marking_needs_one_function_since_the_last_mark_of_several_would_count(others: list[Any]) -> None:
    manual = settings(marking="manual", dead_letters=None)
    manual.check([Execute(book)])
    with pytest.raises(ConfigurationError, match=r"needs (one|a) function"):
        manual.check([Execute(book), *others])


@pytest.mark.parametrize("writer", [Append("t"), Execute(book, splittable=True)])
def test_writers_that_can_be_given_single_records_go_with_them(writer: Any) -> None:
    settings().check([writer])
    settings(dead_letters=None).check([Execute(book)])


@pytest.mark.parametrize("missing", ["key", "value", "timestampType"])
def test_a_stream_that_has_lost_what_a_letter_keeps_is_refused(missing: str) -> None:
    claim: Any = type("", (), {"keeps_checkpoint": False})
    columns = [name for name in KAFKA_COLUMNS if name != missing]
    with pytest.raises(KafkaColumnsMissing, match="load\\(\\)"):
        settings().check_query(claim, columns, "/checkpoints/1")
    settings().check_query(claim, KAFKA_COLUMNS, "/checkpoints/1")


@pytest.mark.behaviour("CTX-1")
def test_headers_that_the_query_has_not_read_follow_no_record() -> None:
    claim: Any = type("", (), {"keeps_checkpoint": False})
    named = settings(dead_letters=None, propagate=("tenant",))
    named.check_query(claim, ["value", "headers"], "/checkpoints/1")
    settings(dead_letters=None).check_query(claim, ["value"], "/checkpoints/1")
    with pytest.raises(KafkaColumnsMissing, match="has not read them") as refused:
        named.check_query(claim, ["key", "value"], "/checkpoints/1")
    assert (refused.value.found, 'includeHeaders="true"' in refused.value.next_step) == ("key, value", True)


@pytest.mark.behaviour("CTX-1")
def test_rows_of_a_query_with_state_follow_no_record() -> None:
    claim: Any = type("", (), {"keeps_checkpoint": True})
    with pytest.raises(UnsupportedQuery, match="a query that has state makes other rows"):
        settings(dead_letters=None, propagate=("tenant",)).check_query(claim, ["headers"], "/checkpoints/1")


@pytest.mark.behaviour("CTX-1")
@pytest.mark.parametrize("missing", ["value", "timestampType"])
def test_the_trace_of_a_letter_without_contents_is_read_from_the_whole_record(missing: str) -> None:
    claim: Any = type("", (), {"keeps_checkpoint": False})
    columns = [name for name in KAFKA_COLUMNS if name != missing]
    letters = DeadLetters(keep="coordinates")
    settings(dead_letters=letters).check_query(claim, columns, "/checkpoints/1")
    with pytest.raises(KafkaColumnsMissing, match="load\\(\\)"):
        settings(dead_letters=letters, propagate=("traceparent",)).check_query(claim, columns, "/checkpoints/1")
