"""No error that leaves a writer holds a row's value: not in its text, not in what it was raised from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import Error, errors
from psycopg.pq import DiagnosticField
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, StatementError

from offsetstore.errors import RowsRefused, SinkError
from offsetstore.postgres import errors as ours
from offsetstore.protocol.ports import Work, Writer
from offsetstore.writers import Append, Execute, Upsert
from tests.integration.writers.writing import Database, batch
from tests.support.server_errors import OF_SERVER, held
from tests.support.shown import shown
from tests.support.work import work_on

CANARY = "canary-4111"
NAMED = batch({"id": [1, 2], "name": ["first", CANARY]})
# An inet goes in its text form, so that the COPY is a text one, whose CONTEXT quotes the line.
IN_TEXT = batch({"id": [1, 2], "name": ["first", CANARY], "address": ["10.0.0.1", "10.0.0.2"]})
UPSERT = Upsert("people", key=["id"], version="name")


@pytest.fixture
def people(database: Database) -> Database:
    database.run("CREATE TABLE people (id bigint PRIMARY KEY, name text, address inet)")
    return database


@pytest.fixture
def plain(people: Database) -> Iterator[Database]:
    """An engine of the application's own, whose errors show parameters, as SQLAlchemy's do unless told not to."""
    with people.engine.connect() as connection:
        info = connection.connection.driver_connection.info  # type: ignore[union-attr] - psycopg's
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(info.dsn, password=info.password))
    yield Database(engine)
    engine.dispose()


def on_insert(database: Database, body: str) -> None:
    """Have a trigger run for the row with the canary."""
    database.run(f"""
        CREATE FUNCTION meet() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF NEW.name = '{CANARY}' THEN {body} END IF; RETURN NEW; END $$;
        CREATE TRIGGER meet BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION meet()
    """)


def refused(database: Database, writer: Writer, rows: pa.RecordBatch, *settings: str) -> Exception:
    """Return the error with which a batch is refused, which must not hold the canary."""
    with database.engine.connect() as connection:
        for setting in settings:
            connection.exec_driver_sql(setting)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever it is
            writer.write(work_on(connection), [rows])
        connection.invalidate()  # it may be gone
    assert CANARY not in shown(caught.value)
    return caught.value


@pytest.mark.behaviour("OPS-7")
@pytest.mark.parametrize("state", OF_SERVER)
def test_an_error_that_is_not_the_rows_keeps_class_and_state_and_no_value(people: Database, state: str) -> None:
    on_insert(people, OF_SERVER[state])
    with people.engine.connect() as other, held(other.connection.driver_connection):  # type: ignore[arg-type] - psycopg's
        error = refused(people, Append("people"), IN_TEXT)
    assert isinstance(error, errors.lookup(state))
    assert error.sqlstate == state
    judges = (ours.is_repeatable, ours.is_connection_lost, ours.unavailable, ours.is_lock_timeout)
    assert sum(bool(judge(error)) for judge in judges) == 1


@pytest.mark.behaviour("OPS-7", "DLQ-15")
@pytest.mark.parametrize("state", ["55P03", "57014", "40001", "08006", "XX000", "P0001", "42501", "23514"])
@pytest.mark.parametrize(
    ("writer", "rows", "row"),
    [(Append("people"), NAMED, 2), (Append("people"), IN_TEXT, 2), (UPSERT, IN_TEXT, None)],
    ids=["binary", "text", "upsert"],
)
def test_the_same_state_raised_by_a_trigger_is_the_rows_and_shows_no_value(
    people: Database, state: str, writer: Writer, rows: pa.RecordBatch, row: int | None
) -> None:
    named = ", TABLE = 'people', SCHEMA = 'public'" if state == "23514" else ""
    on_insert(people, f"RAISE EXCEPTION 'no, %', NEW.name USING ERRCODE = '{state}'{named};")
    error = refused(people, writer, rows)
    assert isinstance(error, RowsRefused)
    assert (error.sqlstate, error.row) == (state, row)
    assert "raised by a function or trigger of the database" in str(error)
    assert "PostgreSQL's log has its message" in error.next_step


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize("kind", [errors.DataCorrupted, errors.IndexCorrupted, errors.FdwUnableToEstablishConnection])
def test_damaged_files_and_a_foreign_server_that_is_away_are_no_row_s_fault(kind: type[Error]) -> None:
    fields = {DiagnosticField.SQLSTATE: str(kind.sqlstate).encode(), DiagnosticField.SEVERITY_NONLOCALIZED: b"ERROR"}
    for source, is_of_server in (b"bufmgr.c", True), (b"pl_exec.c", False):
        error = kind("no", info={**fields, DiagnosticField.SOURCE_FILE: source})  # type: ignore[arg-type] - as psycopg makes it
        assert ours.is_of_server(error) is is_of_server


@pytest.mark.behaviour("DLQ-15")
def test_a_connection_is_not_lost_because_a_trigger_says_so(people: Database) -> None:
    on_insert(people, "RAISE EXCEPTION 'gone' USING ERRCODE = '08006';")
    with people.engine.connect() as connection, pytest.raises(DBAPIError) as caught:
        connection.exec_driver_sql(f"INSERT INTO people (id, name) VALUES (1, '{CANARY}')")
    assert not ours.is_connection_lost(caught.value)


@pytest.mark.behaviour("OPS-7", "DLQ-2")
@pytest.mark.parametrize("writer", [Append("people"), UPSERT], ids=str)
def test_a_constraint_names_itself_and_no_value(people: Database, writer: Writer) -> None:
    people.run(f"ALTER TABLE people ADD CONSTRAINT no_canary CHECK (name <> '{CANARY}')")
    error = refused(people, writer, IN_TEXT)
    assert isinstance(error, RowsRefused)
    assert (error.table, error.constraint, error.sqlstate) == ("public.people", "no_canary", "23514")


def insert(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    for rows in batches:
        work.connection.execute(text("INSERT INTO people (id, name) VALUES (:id, :name)"), rows.to_pylist())


def insert_beneath(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """The same with psycopg, and the values in the statement."""
    for rows in batches:
        for row in rows.to_pylist():
            statement = f"INSERT INTO people (id, name) VALUES ({row['id']}, '{row['name']}')"
            work.connection.connection.cursor().execute(statement)


@pytest.mark.behaviour("OPS-7", "DLQ-2")
@pytest.mark.parametrize("function", [insert, insert_beneath])
def test_a_row_that_an_execute_s_sql_is_refused_for_is_a_refused_row(
    plain: Database, function: Callable[..., None]
) -> None:
    plain.run(f"CREATE UNIQUE INDEX only_name ON people (name); INSERT INTO people VALUES (7, '{CANARY}')")
    error = refused(plain, Execute(function), NAMED)
    assert isinstance(error, RowsRefused)
    assert (error.table, error.constraint, error.sqlstate) == ("public.people", "only_name", "23505")


@pytest.mark.behaviour("OPS-7")
def test_sql_of_an_execute_that_is_wrong_is_told_by_names_alone(plain: Database) -> None:
    def misspelt(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        for rows in batches:
            work.connection.execute(text("INSERT INTO poeple VALUES (:id, :name)"), rows.to_pylist())

    def broken(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        for rows in batches:
            work.connection.exec_driver_sql(f"INSERT INTO people (id) SELECT 1 '{rows.to_pylist()[1]['name']}' '")

    def without(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        for rows in batches:
            work.connection.execute(text("INSERT INTO people (id, name) VALUES (:id, :nmae)"), rows.to_pylist()[1])

    assert isinstance(refused(plain, Execute(without), NAMED), StatementError)
    error = refused(plain, Execute(misspelt), NAMED)
    assert isinstance(error, SinkError)
    assert not isinstance(error, RowsRefused)
    assert 'relation "poeple" does not exist' in str(error)
    assert "misspelt" in str(error)
    error = refused(plain, Execute(broken), NAMED)
    assert isinstance(error, SinkError)
    assert "syntax error" in str(error)


def by_hand(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    try:
        insert(work, batches)
    except DBAPIError as error:
        raise LookupError("of the user's own") from error


@pytest.mark.behaviour("OPS-7")
def test_a_user_s_own_error_stays_and_what_it_was_raised_from_is_stripped(plain: Database) -> None:
    plain.run(f"INSERT INTO people VALUES (2, '{CANARY}')")

    error = refused(plain, Execute(by_hand), NAMED)
    assert isinstance(error, LookupError)
    assert str(error) == "of the user's own"
    assert isinstance(error.__cause__, IntegrityError)
    assert ours.driver_error(error.__cause__).diag.constraint_name == "people_pkey"  # type: ignore[union-attr] - it is psycopg's


@pytest.mark.behaviour("OPS-7")
def test_what_a_trigger_says_is_not_in_the_error_that_a_user_raises_from_its(people: Database) -> None:
    on_insert(people, "RAISE EXCEPTION 'no, %', NEW.name;")

    error = refused(people, Execute(by_hand), NAMED)
    assert isinstance(error, LookupError)
    assert "raised by a function or trigger" in str(error.__cause__)


def test_a_group_of_errors_is_one_of_stripped_errors(people: Database) -> None:
    def insert_twice(work: Work, _: Iterable[pa.RecordBatch]) -> None:
        try:
            work.connection.execute(text("INSERT INTO people VALUES (1, :name), (1, :name)"), {"name": CANARY})
        except IntegrityError as error:
            raise ExceptionGroup("of several", [error, ValueError("mine")]) from error

    found: Any = refused(people, Execute(insert_twice), NAMED)

    assert [type(one) for one in found.exceptions] == [IntegrityError, ValueError]


class TheirOwn(psycopg.OperationalError):
    """An application's subclass, which is made in another way."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"{number}: {why}")


def test_an_applications_own_subclass_of_a_drivers_error_is_stripped_to_the_drivers() -> None:
    bare = ours.stripped(TheirOwn(7, "no such tariff"))
    assert type(bare) is psycopg.OperationalError
