"""SQLAlchemy's ORM Session on the transaction's connection, and other code of the job's own that may end it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import IntegrityError, PendingRollbackError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from offsetstore import Claim, Execute, OffsetRange, OffsetStore, Transaction
from offsetstore.errors import FunctionFailed, Outage, RowsRefused, SinkError, UnexpectedCommit
from offsetstore.protocol.ports import Work
from offsetstore.runtime.functions import InterruptSignal
from tests.integration.conftest import Query
from tests.integration.store.meeting import broker
from tests.integration.transacting import GROUP, P0, lock
from tests.integration.writers.writing import batch

Book = Callable[[Connection], None]

ROOT = Path(__file__).parents[3]
HINT = 'join_transaction_mode="create_savepoint"'
RANGE = OffsetRange(0, 3)


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "booked"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@dataclass
class Booking:
    """A job whose transactions run a function, and write the row 0 before, as another output would."""

    store: OffsetStore
    claim: Claim
    query: Query
    through: str

    def run(self, book: Book) -> None:
        def write(work: Work, _: Iterable[pa.RecordBatch]) -> None:
            book(work.connection)

        def work(tx: Transaction) -> None:
            left = lock(tx, P0, range_=RANGE)
            tx.connection.execute(text("INSERT INTO booked VALUES (0)"))
            if self.through == "run":
                book(tx.connection)
                tx.advance(left)
            else:
                Execute(write, splittable=True).write(tx, [batch({"n": [1]})])
                tx.finish(left)  # what ends the sink's transactions

        self.store.run(self.claim, work)

    def has(self, stored: int, *numbers: int) -> bool:
        rows = self.query("SELECT number FROM booked ORDER BY number")
        return (rows, self.query("SELECT next_offset FROM kafka_partitions")) == ([(n,) for n in numbers], [(stored,)])


@pytest.fixture
def claim(store: OffsetStore, query: Query) -> Claim:
    query("CREATE TABLE booked (number bigint PRIMARY KEY CHECK (number <> 13))")
    return store.claim(GROUP, broker())


@pytest.fixture(params=["run", "splittable"])
def booking(store: OffsetStore, claim: Claim, query: Query, request: pytest.FixtureRequest) -> Booking:
    return Booking(store, claim, query, request.param)


# -- what works


def add_and_commit(connection: Connection) -> None:
    with Session(connection) as session:
        session.add(Row(number=1))
        session.commit()
        session.add(Row(number=2))
        session.commit()


def add_and_flush(connection: Connection) -> None:
    """The Session is closed without a commit: what it has sent stays, as with any SQL of the function."""
    with Session(connection) as session:
        session.add_all([Row(number=1), Row(number=2)])
        session.flush()


def nest(connection: Connection) -> None:
    with Session(connection) as session:
        session.add_all([Row(number=1), Row(number=2)])
        with suppress(IntegrityError), session.begin_nested():
            session.add(Row(number=13))
        session.commit()


def join_and_go_on_after_an_error(connection: Connection) -> None:
    with Session(connection, join_transaction_mode="create_savepoint") as session:
        for number in (1, 13, 2):
            try:
                session.add(Row(number=number))
                session.commit()
            except IntegrityError:
                session.rollback()


def use_the_drivers_own_savepoint(connection: Connection) -> None:
    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # pyright: ignore[reportAssignmentType]
    with driver.transaction():
        driver.execute("INSERT INTO booked VALUES (1), (2)")
    with suppress(psycopg.errors.CheckViolation), driver.transaction():
        driver.execute("INSERT INTO booked VALUES (13)")


@pytest.mark.behaviour("TX-3")
@pytest.mark.parametrize(
    "book", [add_and_commit, add_and_flush, nest, join_and_go_on_after_an_error, use_the_drivers_own_savepoint]
)
def test_a_session_commits_with_the_offsets_and_not_before(booking: Booking, book: Book) -> None:
    def book_and_look(connection: Connection) -> None:
        book(connection)
        assert booking.has(0)

    booking.run(book_and_look)
    assert booking.has(3, 0, 1, 2)


# -- an error that the function passes on, whatever has tried to roll back because of it


def fail_in_a_commit(connection: Connection) -> None:
    with Session(connection) as session, session.begin():
        session.add(Row(number=13))


def roll_back_and_raise(connection: Connection) -> None:
    session = Session(connection)
    try:
        session.execute(text("INSERT INTO booked VALUES (13)"))
    except BaseException:
        session.rollback()
        raise
    finally:
        session.close()


@pytest.mark.behaviour("TX-3", "DLQ-1")
@pytest.mark.parametrize("book", [fail_in_a_commit, roll_back_and_raise])
def test_what_the_database_refuses_of_a_session_is_told_as_of_any_sql(booking: Booking, book: Book) -> None:
    # where the function is the transaction's own, the database's errors pass
    with pytest.raises(IntegrityError if booking.through == "run" else RowsRefused, match="booked_number_check"):
        booking.run(book)
    assert booking.has(0)


@pytest.mark.behaviour("TX-3")
@pytest.mark.parametrize("error", [ValueError("a bug"), Outage("a service is down"), InterruptSignal()])
def test_an_error_of_the_functions_own_for_which_a_session_rolls_back_passes(
    booking: Booking, error: BaseException
) -> None:
    def book(connection: Connection) -> None:
        with Session(connection) as session, session.begin():
            session.add(Row(number=1))
            session.flush()
            raise error

    is_rows = booking.through == "splittable" and isinstance(error, ValueError)
    with pytest.raises(FunctionFailed if is_rows else type(error)):
        booking.run(book)
    assert booking.has(0)


def cancel(connection: Connection, _: Query) -> None:
    connection.execute(text("SET LOCAL statement_timeout = 10"))
    connection.execute(text("SELECT pg_sleep(60)"))


def cut(connection: Connection, query: Query) -> None:
    [(backend,)] = connection.execute(text("SELECT pg_backend_pid()"))
    query(f"SELECT pg_terminate_backend({backend}, 60000)")
    connection.execute(text("SELECT 1"))


@pytest.mark.behaviour("TX-12", "DLQ-6")
@pytest.mark.parametrize("outage", [cancel, cut])
def test_an_outage_for_which_a_session_rolls_back_is_repeated(
    booking: Booking, outage: Callable[[Connection, Query], None]
) -> None:
    calls: list[int] = []

    def book(connection: Connection) -> None:
        calls.append(1)
        with Session(connection) as session, session.begin():
            session.add(Row(number=1))
            session.flush()
            if len(calls) == 1:
                outage(session.connection(), booking.query)

    booking.run(book)
    assert len(calls) == 2
    assert booking.has(3, 0, 1)


# -- what can't go on: the rows that were written before would be gone


def go_on_after_a_statement(connection: Connection) -> None:
    with Session(connection) as session:
        try:
            session.execute(text("INSERT INTO booked VALUES (13)"))
        except IntegrityError:
            session.rollback()
        session.execute(text("INSERT INTO booked VALUES (1)"))


def return_after_an_error_of_ones_own(connection: Connection) -> None:
    with suppress(ZeroDivisionError), Session(connection) as session, session.begin():
        session.add(Row(number=1))
        session.flush()
        raise ZeroDivisionError


def go_on_after_an_error_of_ones_own(connection: Connection) -> None:
    return_after_an_error_of_ones_own(connection)
    connection.execute(text("INSERT INTO booked VALUES (2)"))


def go_on_with_the_driver(connection: Connection) -> None:
    return_after_an_error_of_ones_own(connection)
    connection.connection.cursor().execute("INSERT INTO booked VALUES (2)")


def return_after_an_error(connection: Connection) -> None:
    with suppress(IntegrityError), Session(connection) as session, session.begin():
        session.add(Row(number=13))


def begin_after_an_error(connection: Connection) -> None:
    return_after_an_error(connection)
    connection.begin()


@pytest.mark.behaviour("TX-3")
@pytest.mark.parametrize(
    ("book", "error"),
    [
        (go_on_after_a_statement, "IntegrityError"),
        (go_on_after_an_error_of_ones_own, "ZeroDivisionError"),
        (go_on_with_the_driver, "ZeroDivisionError"),
        (return_after_an_error, "IntegrityError"),
        (begin_after_an_error, "IntegrityError"),
    ],
)
def test_a_function_that_goes_on_after_a_rollback_is_refused_and_sees_its_own_error(
    booking: Booking, book: Book, error: str
) -> None:
    with pytest.raises(UnexpectedCommit, match=HINT) as caught:
        booking.run(book)
    assert f"a ROLLBACK for {error} at {__file__}:" in str(caught.value)
    assert type(caught.value.__cause__).__name__ == error
    assert "13" not in str(caught.value.__cause__)
    assert booking.has(0)


def roll_back(connection: Connection) -> None:
    with Session(connection) as session:
        session.add(Row(number=1))
        session.flush()
        session.rollback()


def commit(connection: Connection) -> None:
    connection.execute(text("INSERT INTO booked VALUES (1)"))
    connection.commit()


def roll_back_and_go_on(connection: Connection) -> None:
    with pytest.raises(UnexpectedCommit):
        connection.rollback()
    with Session(connection) as session, session.begin():
        session.add(Row(number=1))


@pytest.mark.behaviour("TX-3")
@pytest.mark.parametrize("book", [roll_back, commit, roll_back_and_go_on])
def test_an_end_without_an_error_is_refused_with_the_way_to_do_it(booking: Booking, book: Book) -> None:
    with pytest.raises(UnexpectedCommit, match=HINT):
        booking.run(book)
    assert booking.has(0)


@pytest.mark.parametrize("splittable", [False, True])
@pytest.mark.parametrize("is_passed", [False, True])
def test_a_session_that_is_used_after_its_failed_flush_shows_no_row(
    store: OffsetStore, claim: Claim, query: Query, *, is_passed: bool, splittable: bool
) -> None:
    """SQLAlchemy's own words for that quote the error, with the row."""
    quoted: list[bool] = []

    def write(work: Work, _: object) -> None:
        with Session(work.connection) as session:
            with suppress(IntegrityError):
                session.add(Row(number=13))
                session.flush()
            try:
                session.execute(text("SELECT 1"))
            except PendingRollbackError as error:
                quoted.append("(13)" in str(error))
                if is_passed:
                    raise
                raise KeyError from error

    def work(tx: Transaction) -> None:
        lock(tx, P0, range_=RANGE)
        Execute(write, splittable=splittable).write(tx, [batch({"n": [1]})])

    with pytest.raises((SinkError, KeyError, PendingRollbackError)) as caught:
        store.run(claim, work)
    assert isinstance(caught.value, SinkError if is_passed or splittable else KeyError)
    assert quoted == [True]
    assert not isinstance(caught.value, SinkError) or HINT in str(caught.value)
    assert "(13)" not in "".join(traceback.format_exception(caught.value))
    assert query("SELECT number FROM booked") == []


@pytest.mark.behaviour("TX-3")
def test_what_follows_a_rollback_is_not_left_open_where_the_pool_resets_nothing(
    claim: Claim, query: Query, offsetstore_database: str
) -> None:
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(offsetstore_database), pool_reset_on_return=None
    )

    def work(tx: Transaction) -> None:
        left = lock(tx, P0, range_=RANGE)
        go_on_with_the_driver(tx.connection)
        tx.advance(left)

    with OffsetStore.connect(engine) as store:
        with pytest.raises(UnexpectedCommit) as caught:
            store.run(claim, work)
        here = "datname = current_database() AND state LIKE 'idle in transaction%'"
        assert query(f"SELECT 1 FROM pg_stat_activity WHERE {here}") == []
        del caught
        with store.transaction(claim) as tx:
            tx.advance(lock(tx, P0, range_=RANGE))
    engine.dispose()
    assert query("SELECT number FROM booked") == []
    assert query("SELECT next_offset FROM kafka_partitions") == [(3,)]


@pytest.mark.behaviour("TX-3")
def test_a_connection_that_is_closed_for_an_error_takes_nothing_into_the_pool(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    def work(tx: Transaction) -> None:
        lock(tx, P0, range_=RANGE)
        with tx.connection as connection:
            connection.execute(text("INSERT INTO booked VALUES (1)"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.run(claim, work)
    with store.transaction(claim) as tx:
        tx.advance(lock(tx, P0, range_=RANGE))
    assert query("SELECT number FROM booked") == []
    assert query("SELECT next_offset FROM kafka_partitions") == [(3,)]


@pytest.mark.behaviour("SINK-2", "TX-3")
def test_the_functions_in_the_page_book_orders_with_a_session(store: OffsetStore, claim: Claim, query: Query) -> None:
    page = (ROOT / "docs" / "dead-letters-sql.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```python\n(from sqlalchemy\.exc import.*?)^```$", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"Order": Row}
    exec(compile(block, "docs/dead-letters-sql.md", "exec"), names)  # noqa: S102 - the page's own words

    def work(tx: Transaction) -> None:
        left = lock(tx, P0, range_=RANGE)
        Execute(names["book"]).write(tx, [batch({"number": [1, 2]})])
        Execute(names["book_new"]).write(tx, [batch({"number": [2, 3]})])
        tx.finish(left)

    store.run(claim, work)
    assert query("SELECT number FROM booked ORDER BY number") == [(1,), (2,), (3,)]
    assert query("SELECT next_offset FROM kafka_partitions") == [(3,)]
