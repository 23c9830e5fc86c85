"""The transaction alone: its words, the points that tests name, whose errors it raises, and a COMMIT without an answer.

The contract (`tests.contract.misuse`) shows that nothing is written when it refuses; here is what it says.
"""
# ruff: noqa: PT012 - the order of what a block does is the point

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import pytest

from offsetstore import Timeouts
from offsetstore.errors import (
    CommitUnknown,
    ConfigurationError,
    ConnectionLost,
    LockedTwice,
    LockFirst,
    LockInSavepoint,
    LockTimeout,
    NestedTransaction,
    OffsetStoreError,
    PartitionLost,
    ProtocolMisuse,
    RowsRefused,
    StaleClaim,
    TransactionLost,
    Unadvanced,
    UnexpectedCommit,
)
from offsetstore.offsets import OffsetRange, Token, TopicPartition
from offsetstore.protocol.database import Advance
from offsetstore.protocol.events import CommitResolved
from offsetstore.protocol.letters import Payload
from offsetstore.runtime import failpoints
from offsetstore.store import transaction as module
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction
from offsetstore.testing import InMemoryOffsetStore
from offsetstore.testing.memory import MemoryDatabase
from offsetstore.testing.memory.session import MemorySession
from tests.support.recorder import Recorder

GROUP = "billing"
P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
RANGE = OffsetRange(0, 3)
QUERY = UUID(int=1)


class Driver(Exception):
    """An error of the driver's."""


class Session(MemorySession):
    """A session whose statements can fail as a database's do."""

    database: Database

    def commit(self) -> None:
        lost, self.database.lost = self.database.lost, None
        if lost != "before":
            super().commit()
        if lost is not None:
            raise ConnectionLost("the server closed the connection", found="EOF") from Driver("EOF")
        if self.database.at_commit is not None:
            raise self.database.at_commit

    def finish(self, move: Advance) -> tuple[int, bool]:
        moved, is_whole = super().finish(move)
        return moved + self.database.moved_too_many, is_whole and not self.database.was_cut

    def advance(self, move: Advance) -> int:
        self.database.sent.append("advance")
        return super().advance(move)

    def lock_group(self, group: str) -> Token:
        self.database.sent.append("lock_group")
        return super().lock_group(group)

    def may_have_raised(self, error: BaseException) -> bool:
        return error not in self.database.of_others


class Database(MemoryDatabase):
    """A database that loses the answer to COMMIT, and whose driver has errors of its own."""

    def __init__(self) -> None:
        self.lost: str | None = None
        self.at_commit: Exception | None = None
        self.moved_too_many = 0
        self.was_cut = False
        self.of_others: list[BaseException] = []
        self.ours: dict[BaseException, OffsetStoreError] = {}
        self.begun: list[tuple[str, float | None]] = []
        self.asked: list[BaseException | None] = []
        self.sent: list[str] = []
        super().__init__()

    def begin(self, *, name: str, lock_timeout: float | None = None, dedicated: bool = False) -> Session:  # noqa: ARG002
        self.begun.append((name, lock_timeout))
        session = Session(self._shared, name, lock_timeout)
        session.database = self
        return session

    def translate(self, error: BaseException) -> BaseException:
        self.asked.append(error)
        return self.ours.get(error, error)


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def store(database: Database, recorder: Recorder) -> Iterator[InMemoryOffsetStore]:
    timeouts = Timeouts(lock=7.0, commit=0.3)
    with InMemoryOffsetStore(database, timeouts=timeouts, observers=[recorder]) as made:
        yield made


@pytest.fixture
def claim(store: InMemoryOffsetStore) -> Claim:
    return store.claim(GROUP, topics=["payments"])


def write(tx: Transaction, *numbers: int) -> None:
    tx.connection.extend("results", numbers)


def done(tx: Transaction) -> None:
    plan = tx.lock({P0: RANGE})
    write(tx, 0, 1, 2)
    tx.advance({P0: plan[P0].remaining})


# -- its words


def in_savepoint(use: Callable[[Transaction], object]) -> Callable[[Transaction], None]:
    def work(tx: Transaction) -> None:
        tx.lock({P0: RANGE})
        with tx.connection.begin_nested():
            use(tx)

    return work


def after_lock(use: Callable[[Transaction], object]) -> Callable[[Transaction], None]:
    def work(tx: Transaction) -> None:
        tx.lock({P0: RANGE})
        use(tx)

    return work


def nested(tx: Transaction) -> None:
    with Transaction(tx._store, tx._claim):
        pass


def lock_in_savepoint(tx: Transaction) -> None:
    tx.lock({})
    with tx.connection.begin_nested():
        tx.lock({P0: RANGE})


def touch_after_trials(tx: Transaction) -> None:
    tx.lock({P0: OffsetRange(0, 0)})
    tx.trials()
    tx.touch()


def commit_inside(tx: Transaction) -> None:
    tx.lock({P0: RANGE})
    with suppress(Exception):
        tx.connection.commit()
    tx.advance({P0: RANGE})


EARLY: Final[dict[str, Callable[[Transaction], object]]] = {
    "tx.connection": lambda tx: tx.connection,
    "tx.ranges": lambda tx: tx.ranges,
    "tx.advance": lambda tx: tx.advance({P0: RANGE}),
    "tx.finish": lambda tx: tx.finish({P0: RANGE}),
    "tx.touch": lambda tx: tx.touch(),
    "tx.check_deferred": lambda tx: tx.check_deferred(),
    "tx.trials": lambda tx: tx.trials(),
}
WORDS: Final[dict[str, tuple[type[OffsetStoreError], str, str | None, Callable[[Transaction], object]]]] = {
    **{name: (LockFirst, f"{name} was used before tx.lock", None, use) for name, use in EARLY.items()},
    "lock twice": (LockedTwice, "tx.lock was called a second time", None, after_lock(lambda tx: tx.lock({}))),
    "lock in a savepoint": (LockInSavepoint, "tx.lock was used inside a savepoint", None, lock_in_savepoint),
    "trials in a savepoint": (
        LockInSavepoint,
        "tx.trials was used inside a savepoint",
        "Call it right after tx.lock.",
        in_savepoint(lambda tx: tx.trials()),
    ),
    "a commit after trials": (
        ProtocolMisuse,
        "a transaction in which rows were tried out ends in a commit",
        None,
        touch_after_trials,
    ),
    "nested": (NestedTransaction, "a transaction was started inside another one in the same thread", None, nested),
    "unadvanced": (Unadvanced, "the transaction ends without advancing [0, 3)", None, lambda tx: tx.lock({P0: RANGE})),
    "a COMMIT inside": (
        UnexpectedCommit,
        "a COMMIT or ROLLBACK inside the transaction ended it, or undid its advance",
        None,
        commit_inside,
    ),
}


@pytest.mark.behaviour("TX-3", "TX-6")
@pytest.mark.parametrize("name", WORDS)
def test_what_is_refused_is_said_in_these_words(store: InMemoryOffsetStore, claim: Claim, name: str) -> None:
    kind, what, next_step, work = WORDS[name]
    with pytest.raises(kind) as refused, store.transaction(claim) as tx:
        work(tx)
    assert refused.value.what == what
    if next_step is not None:
        assert str(refused.value.next_step) == next_step
    assert store.rows("results") == []


MANUAL: Final[dict[str, tuple[str, str, Callable[[Transaction], object]]]] = {
    "advance": ('tx.advance was called with marking="manual"', "Call tx.mark.", lambda tx: tx.advance({P0: RANGE})),
    "finish": (
        "tx.finish was given metadata with manual marking",
        "Give it to tx.mark.",
        lambda tx: tx.finish({P0: RANGE}, {P0: '"a"'}),
    ),
}


@pytest.mark.behaviour("MARK-1")
@pytest.mark.parametrize("name", MANUAL)
def test_what_manual_marking_refuses_is_said_in_these_words(
    store: InMemoryOffsetStore, claim: Claim, name: str
) -> None:
    what, next_step, use = MANUAL[name]
    with pytest.raises(ProtocolMisuse) as refused, store.transaction(claim, marking="manual") as tx:
        tx.lock({P0: RANGE})
        use(tx)
    assert (refused.value.what, str(refused.value.next_step)) == (what, next_step)


@pytest.mark.behaviour("TX-3")
def test_a_block_is_used_once_and_says_how_to_go_on(store: InMemoryOffsetStore, claim: Claim) -> None:
    tx = store.transaction(claim)
    with tx:
        done(tx)
    with pytest.raises(ProtocolMisuse) as refused, tx:
        pass
    assert refused.value.what == "a transaction block can be used only once"
    assert str(refused.value.next_step) == "Make a new one: store.transaction(claim)."


@pytest.mark.behaviour("TX-4")
def test_the_lock_timeout_is_the_store_s_or_the_caller_s(
    store: InMemoryOffsetStore, database: Database, claim: Claim
) -> None:
    database.begun.clear()
    for timeout in (None, 0, 2.5):
        with Transaction(store, claim, lock_timeout=timeout):
            pass
    assert [timeout for _, timeout in database.begun] == [7.0, 0, 2.5]
    with pytest.raises(ConfigurationError, match=r"^lock_timeout must be"):
        Transaction(store, claim, lock_timeout=-1.0)


@pytest.mark.behaviour("TX-4")
def test_a_lock_that_is_held_elsewhere_ends_the_transaction_and_says_who_has_it(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    with store.transaction(claim) as tx:
        done(tx)
    other = store.database.begin(name="other")
    other.lock_partitions(GROUP, [P0])
    tx = Transaction(store, claim, lock_timeout=0.01)
    tx.__enter__()
    with pytest.raises(LockTimeout) as timed_out:
        tx.lock({P0: OffsetRange(3, 5)})
    other.rollback()
    # Its own session has given up what it had, and whoever swallows the error goes no further.
    with pytest.raises(LockedTwice):
        tx.lock({P0: OffsetRange(3, 5)})
    free = store.database.begin(name="another", lock_timeout=0.01)
    free.lock_partitions(GROUP, [P0])
    free.rollback()
    with pytest.raises(LockTimeout) as again:
        write(tx, 3)
    assert again.value is timed_out.value
    with pytest.raises(LockTimeout) as again:
        tx.__exit__(None, None, None)
    assert again.value is timed_out.value
    assert timed_out.value.what == "could not acquire the lock within 0.01 s"
    assert timed_out.value.found == "held by other"
    assert timed_out.value.topic_partition == P0


@pytest.mark.behaviour("TX-4")
def test_a_lock_timeout_without_a_holder_says_what_the_database_found(
    store: InMemoryOffsetStore, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.transaction(claim) as tx:
        done(tx)
    monkeypatch.setattr(Database, "lock_holder", nobody)
    other = store.database.begin(name="other")
    other.lock_partitions(GROUP, [P0])
    with pytest.raises(LockTimeout) as timed_out, Transaction(store, claim, lock_timeout=0.01) as tx:
        tx.lock({P0: OffsetRange(3, 5)})
    other.rollback()
    assert "is locked by other" in str(timed_out.value.found)


# -- the points at which tests end a process


@pytest.mark.parametrize("last", ["advance", "finish", "touch"])
def test_the_points_are_reached_in_this_order(
    store: InMemoryOffsetStore, claim: Claim, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    reached: list[str] = []
    monkeypatch.setattr(failpoints, "reach", reached.append)
    with store.transaction(claim) as tx:
        tx.lock({P0: OffsetRange(0, 0)} if last == "touch" else {P0: RANGE})
        if last == "touch":
            tx.touch()
        else:
            getattr(tx, last)({P0: RANGE})
    assert reached == ["after_lock", "before_advance", "before_commit", "after_commit"]


# -- whose error is raised


@pytest.mark.behaviour("TX-9")
@pytest.mark.parametrize("at", ["block", "commit", "last check"])
def test_a_driver_s_error_becomes_ours(
    store: InMemoryOffsetStore, database: Database, claim: Claim, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    error, cause = Driver("syntax"), Driver("its cause")
    database.ours[error] = RowsRefused("the database refused rows")
    database.ours[error].__cause__ = cause
    if at == "last check":

        def is_whole(_: object) -> bool:
            raise error

        monkeypatch.setattr(Session, "is_whole", is_whole)
    database.at_commit = error if at == "commit" else None
    with pytest.raises(RowsRefused) as ours, store.transaction(claim) as tx:
        done(tx)
        if at == "block":
            raise error
    assert (ours.value.what, ours.value.__cause__) == ("the database refused rows", cause)


def nobody(*_: object) -> None: ...


@pytest.mark.behaviour("TX-9")
@pytest.mark.parametrize("at", ["block", "commit"])
def test_an_error_that_is_nobody_s_stays_as_it_is(
    store: InMemoryOffsetStore, database: Database, claim: Claim, at: str
) -> None:
    error = Driver("a user's own")
    database.at_commit = error if at == "commit" else None
    with pytest.raises(Driver) as raised, store.transaction(claim) as tx:
        done(tx)
        if at == "block":
            raise error
    assert raised.value is error


@pytest.mark.behaviour("TX-9")
def test_an_error_of_another_connection_and_a_group_of_errors_stay_as_they_are(
    store: InMemoryOffsetStore, database: Database, claim: Claim
) -> None:
    error = Driver("elsewhere")
    database.ours[error] = RowsRefused("the database refused rows")
    database.of_others.append(error)
    with pytest.raises(Driver), store.transaction(claim):
        raise error
    group = ExceptionGroup("several", [error])
    database.ours[group] = RowsRefused("the database refused rows")
    with pytest.raises(ExceptionGroup), store.transaction(claim):
        raise group


@pytest.mark.behaviour("TX-9")
def test_a_lost_connection_and_a_lock_on_a_result_s_table_are_said_in_these_words(
    store: InMemoryOffsetStore, database: Database, claim: Claim
) -> None:
    error, cause = Driver("EOF"), Driver("its cause")
    for ours in (ConnectionLost("lost", found="EOF"), LockTimeout("locked", found="relation 17")):
        database.ours[error] = ours
        ours.__cause__ = cause
        with pytest.raises((TransactionLost, LockTimeout)) as raised, store.transaction(claim):
            raise error
        told: Any = raised.value
        assert told.__cause__ is cause
        if isinstance(ours, ConnectionLost):
            assert (told.what, told.found) == (
                "the connection to the database was lost; the transaction was rolled back",
                "EOF",
            )
        else:
            assert (told.what, told.found, str(told.next_step)) == (
                "could not acquire a lock on the results' tables within 7 s",
                "relation 17",
                "Find out which session holds the locks (pg_stat_activity).",
            )


@pytest.mark.behaviour("TX-6")
def test_rows_that_changed_under_the_lock_end_the_transaction(
    store: InMemoryOffsetStore, database: Database, claim: Claim
) -> None:
    database.moved_too_many = 1
    with pytest.raises(StaleClaim) as stale, store.transaction(claim) as tx:
        tx.lock({P0: RANGE})
        tx.finish({P0: RANGE})
    assert stale.value.what == "the stored offsets changed although they were locked"
    assert (stale.value.found, stale.value.expected) == ("2 unchanged rows", "1")
    database.moved_too_many, database.was_cut = 0, True
    with pytest.raises(UnexpectedCommit, match="ended it, or undid its advance"), store.transaction(claim) as tx:
        tx.lock({P0: RANGE})
        tx.finish({P0: RANGE})
    assert store.offsets(GROUP) == {}


def test_a_child_s_own_error_ends_nothing_but_the_child(
    store: InMemoryOffsetStore, database: Database, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, translated = Driver("the child's own"), Driver("the driver's, of the child's copy of the connection")
    database.ours[translated] = RowsRefused("the database refused rows")

    def is_own(_: int) -> bool:
        return False

    monkeypatch.setattr(module, "is_own", is_own)
    tx = store.transaction(claim)
    tx.__enter__()
    tx.__exit__(Driver, own, None)
    session = tx._locks.session
    assert session is not None
    assert database.asked == [own]
    session.lock_group(GROUP)  # it is still open
    with pytest.raises(RowsRefused):
        tx.__exit__(Driver, translated, None)
    assert tx._locks.session is None
    assert not tx.is_open


def test_the_thread_s_latest_transaction_is_forgotten_by_its_own_end_alone(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    first = store.transaction(claim)
    with first:
        done(first)
        assert module._latest.transaction is first
    assert module._latest.transaction is None
    with store.transaction(claim) as later:
        module._latest.transaction = first
    assert (module._latest.transaction, later.is_open) == (first, False)
    module._latest.transaction = None


# -- a COMMIT whose answer is lost


def told(recorder: Recorder) -> list[tuple[str, TopicPartition | None, bool | None]]:
    return [(event.group, event.topic_partition, event.happened) for event in recorder.of(CommitResolved)]


@pytest.mark.behaviour("TX-11")
def test_a_commit_that_happened_is_told_as_one(
    store: InMemoryOffsetStore, database: Database, claim: Claim, recorder: Recorder
) -> None:
    with store.transaction(claim) as tx:
        done(tx)
    database.lost = "after"
    database.begun.clear()
    with store.transaction(claim) as tx:
        tx.lock({P0: OffsetRange(3, 5)})
        write(tx, 3, 4)
        tx.advance({P0: OffsetRange(3, 5)})
    assert (store.rows("results"), told(recorder)) == ([0, 1, 2, 3, 4], [(GROUP, P0, True)])
    (name, _), (looked_up, timeout) = database.begun[:2]
    assert name == looked_up
    assert timeout == pytest.approx(0.3, abs=0.2)
    assert name == f"{claim.name}:{tx._id.hex[:8]}"


@pytest.mark.behaviour("TX-11")
@pytest.mark.parametrize("is_new", [True, False])
def test_a_commit_that_did_not_happen_is_told_with_its_cause(
    store: InMemoryOffsetStore, database: Database, claim: Claim, recorder: Recorder, *, is_new: bool
) -> None:
    if not is_new:
        with store.transaction(claim) as tx:
            done(tx)
    database.lost = "before"
    database.sent.clear()
    begin = 0 if is_new else 3
    with pytest.raises(TransactionLost) as lost, store.transaction(claim) as tx:
        tx.lock({P0: OffsetRange(begin, 5)} | ({P1: OffsetRange(0, 0)} if is_new else {}))
        tx.advance({P0: OffsetRange(begin, 5)})
    # A row that an open transaction has made can't be waited for: the group's row is locked as well.
    assert database.sent.count("lock_group") == is_new
    assert lost.value.what == "the connection was lost at COMMIT, and the rows show that nothing was committed"
    assert (lost.value.found, lost.value.topic_partition) == ("EOF", P0)
    assert isinstance(lost.value.__cause__, Driver)
    assert told(recorder) == [(GROUP, P0, False)]


@pytest.mark.behaviour("TX-11")
def test_a_commit_of_which_no_row_tells_is_unknown_where_it_wrote(
    store: InMemoryOffsetStore, database: Database, claim: Claim, recorder: Recorder
) -> None:
    for writes, kind in ((False, TransactionLost), (True, CommitUnknown)):
        database.lost = "before"
        with pytest.raises(kind), store.transaction(claim) as tx:
            tx.lock({})
            if writes:
                write(tx, 1)
    assert told(recorder) == [(GROUP, None, False), (GROUP, None, None)]


@pytest.mark.behaviour("TX-11")
@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_batch_without_ranges_is_looked_up_by_its_mark(
    store: InMemoryOffsetStore, database: Database, claim: Claim, recorder: Recorder, lost: str
) -> None:
    with store.transaction(claim) as tx:
        tx.lock({P0: OffsetRange(0, 0)})
        tx.touch()
    database.lost = lost

    def write_batch() -> None:
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 0)})
            assert tx.marks.mark_batch(QUERY, 7)
            write(tx, 1)

    if lost == "after":
        write_batch()
    else:
        with pytest.raises(TransactionLost, match="the mark shows that batch 7 was not written"):
            write_batch()
    assert told(recorder) == [(GROUP, P0, lost == "after")]


@pytest.mark.behaviour("TX-11")
def test_a_member_s_commit_is_no_longer_its_matter_once_others_have_gone_on(
    store: InMemoryOffsetStore, database: Database, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def let_go(_: object, advanced: object, rows: dict[TopicPartition, Any], owner: object) -> None:
        given.append((advanced, [*rows], owner))
        raise PartitionLost("gone")

    monkeypatch.setattr(module.Locks, "let_go", let_go)
    with store.transaction(claim) as tx:
        done(tx)
    database.lost = "before"
    with pytest.raises(PartitionLost), store.transaction(claim) as tx:
        tx.lock({P0: OffsetRange(3, 5)})
        tx.advance({P0: OffsetRange(3, 5)})
        elsewhere = database.begin(name="elsewhere")
        elsewhere._set(GROUP, P0, transaction_id=UUID(int=9))
        MemorySession.commit(elsewhere)
    assert given == [({P0}, [P0], claim.group_token)]


def test_the_transaction_s_own_id_is_in_the_rows(store: InMemoryOffsetStore, claim: Claim) -> None:
    with store.transaction(claim) as tx:
        done(tx)
    session = store.database.begin(name="look")
    assert session.lock_partitions(GROUP, [P0])[P0].transaction_id == tx._id
    session.rollback()
    assert tx._pid == os.getpid()


# -- what it hands on


@pytest.mark.behaviour("DLQ-1")
def test_a_dead_letter_keeps_the_payload_that_it_was_given(store: InMemoryOffsetStore, claim: Claim) -> None:
    payload = Payload(b"key", b"value", (), 5, 0)
    with store.transaction(claim) as tx:
        tx.lock({P0: RANGE})
        tx.dead_letter(P0, 1, "why", code="E1", payload=payload)
        tx.advance({P0: RANGE})
    [letter] = store.dead_letters(GROUP)
    assert letter.payload == payload


def test_a_claim_forgets_who_blocked_it_for_the_partitions_that_it_asked_for(
    store: InMemoryOffsetStore, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def unblock(_: object, partitions: Iterable[TopicPartition]) -> None:
        asked.append([*partitions])

    monkeypatch.setattr(Claim, "unblock", unblock)
    with store.transaction(claim) as tx:
        done(tx)
    other = store.database.begin(name="other")
    other.lock_partitions(GROUP, [P0])
    with pytest.raises(LockTimeout), Transaction(store, claim, lock_timeout=0.01) as tx:
        tx.lock({P0: OffsetRange(3, 5)})
    other.rollback()
    assert asked == [[P0]]


@pytest.mark.behaviour("META-1")
def test_a_finish_writes_the_metadata_that_it_is_given_and_what_was_stored_for_the_next_advance(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    with store.transaction(claim) as tx:
        tx.lock({P0: RANGE})
        tx.finish({P0: RANGE}, {P0: '"given"'})
    assert store.metadata(GROUP)[P0] == "given"
    claim.store_metadata(P0, "stored")
    with store.transaction(claim) as tx:
        tx.lock({P0: OffsetRange(3, 5)})
        tx.finish({P0: OffsetRange(3, 5)})
    assert store.metadata(GROUP)[P0] == "stored"


@pytest.mark.behaviour("MARK-1", "TX-3")
@pytest.mark.parametrize("last", ["finish", "touch"])
def test_nothing_is_written_after_the_last_statement(store: InMemoryOffsetStore, claim: Claim, last: str) -> None:
    def work(tx: Transaction) -> None:
        if last == "finish":
            tx.lock({P0: RANGE})
            tx.mark(P0, 2)
            tx.finish({P0: RANGE})
        else:
            tx.lock({P0: OffsetRange(0, 0)})
            tx.touch()

    marking: Any = "manual" if last == "finish" else "automatic"
    with store.transaction(claim, marking=marking) as tx:
        work(tx)
        with pytest.raises(ProtocolMisuse, match=r"after tx\.finish"):
            write(tx, 1)
    assert store.offsets(GROUP)[P0].next_offset == (2 if last == "finish" else 0)


def test_an_advance_of_nothing_sends_nothing(store: InMemoryOffsetStore, database: Database, claim: Claim) -> None:
    with store.transaction(claim) as tx:
        tx.lock({})
        tx.advance({})
    assert "advance" not in database.sent


@pytest.mark.behaviour("DLQ-11")
@pytest.mark.parametrize("in_sequence", [True, False])
def test_a_term_forgets_letters_below_only_if_none_wait(
    store: InMemoryOffsetStore, claim: Claim, *, in_sequence: bool
) -> None:
    with store.transaction(claim) as tx:
        done(tx)
    claim.terms[P0].sequence = 1
    with store.transaction(claim) as tx:
        tx.lock({P0: OffsetRange(3, 5)}, in_sequence=in_sequence)
        tx.advance({P0: OffsetRange(3, 5)})
    assert claim.terms[P0].sequence == (1 if in_sequence else -1)


def test_our_own_error_is_raised_as_it_is(store: InMemoryOffsetStore, claim: Claim) -> None:
    error = RowsRefused("no")
    with pytest.raises(RowsRefused), store.transaction(claim):
        raise error
    assert not error.__suppress_context__


def test_a_wrong_marking_is_named(store: InMemoryOffsetStore, claim: Claim) -> None:
    wrong: Any = "sometimes"
    with pytest.raises(ConfigurationError) as refused:
        Transaction(store, claim, marking=wrong)
    assert refused.value.found == "'sometimes'"
