"""Dead letters: written with the transaction, decided about by people, replayed once. See `contract.suite`."""
# ruff: noqa: ARG002, PT012 - these are tests: the name is the docstring, fixtures, numbers and order are
# the point

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

import pytest

from offsetstore.errors import (
    AdvanceMismatch,
    ConfigurationError,
    GroupRenamed,
    InvalidText,
    LetterSettled,
    LockTimeout,
    PayloadMissing,
    PlanChanged,
    UnknownGroup,
    UnknownLetter,
)
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.operations.letters import LetterPage
from offsetstore.operations.stored_letters import LetterFilter
from offsetstore.protocol.database import Session
from offsetstore.protocol.letters import (
    ChosenLetter,
    Failed,
    FailedReplay,
    Letter,
    LetterError,
    LetterKey,
    LetterState,
    NewLetter,
    Payload,
    digest,
)
from offsetstore.protocol.retries import Timeouts
from offsetstore.protocol.starting import StartPolicy
from offsetstore.store.claim import Claim
from offsetstore.store.sessions import read as reading
from tests.contract.parts import GROUP, P0, P1, P2, WAIT, ContractParts

T = TypeVar("T")
REASON = "ticket 17"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = (
    ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01".encode()),
    ("twice", b"1"),
    ("twice", None),
    ("nul\0name", b"\0"),
    ("größe", "größe".encode("latin-1")),
)
RECORD = Payload(b"\0key", b"\xff value", HEADERS, 2**62, 0)
CHECK = LetterError("RowsRefused", "the database refused rows", "23514", "public.results", "positive", None)
PARSE = LetterError("ValueError", "not a number", traceback="line 1\nline 2")


def dead(offset: int, tp: TopicPartition = P0, key: bytes | None = None, **other: Any) -> NewLetter:
    """A letter that the database has refused after two attempts; with a key, the head of its sequence."""
    made = NewLetter(tp, offset, "refused", CHECK, 2, digest(tp, key), RECORD._replace(key=key))
    return replace(made, **other)


def at(offset: int, tp: TopicPartition = P0) -> LetterKey:
    """The letter of a record, of whichever topic id."""
    return LetterKey(tp, offset)


def stored(offset: int, tp: TopicPartition = P0, topic_id: str = "payments-id") -> LetterKey:
    """The letter as the database names it."""
    return LetterKey(tp, offset, topic_id)


REFUSED: Final[dict[str, tuple[type[Exception], dict[str, Any]]]] = {
    "no letter": (UnknownLetter, {"which": at(3)}),
    "another topic": (UnknownLetter, {"which": [at(2), LetterKey(P0, 4, "another-id")]}),
    "none": (ConfigurationError, {"which": []}),
    "too many": (ConfigurationError, {"which": [at(2), at(4)], "limit": 1}),
    "limit": (ConfigurationError, {"limit": 0}),
    "reason": (ConfigurationError, {"reason": " "}),
    "group": (UnknownGroup, {"group": "nobody"}),
    "text": (TypeError, {"which": "payments:0:2"}),
    "nothing": (TypeError, {"which": None}),
    "partition": (TypeError, {"which": P0}),
    "pair": (TypeError, {"which": (P0, 2)}),
    "text in a list": (TypeError, {"which": [at(2), "payments:0:4"]}),
    "no partition": (TypeError, {"which": LetterKey(("payments", 0), 2)}),  # type: ignore[arg-type]
    "no offset": (TypeError, {"which": LetterKey(P0, "2")}),  # type: ignore[arg-type]
    "no topic id": (TypeError, {"which": LetterKey(P0, 2, 7)}),  # type: ignore[arg-type]
    "page": (TypeError, {"which": LetterPage((), None)}),
    "beyond 64 bits": (ConfigurationError, {"which": at(2**63)}),
    "NUL": (InvalidText, {"which": at(2, TopicPartition("pay\0ments", 0))}),
    "surrogate": (InvalidText, {"which": LetterKey(P0, 2, "\ud800")}),
}
"""What else is given with a letter that is there, and how that is refused."""


class LetterContract(ContractParts):
    """Letters from the transaction that writes them to the one that deletes them."""

    def look(self, query: Callable[[Session], T]) -> T:
        return reading(self.store.database, query)

    def states(self) -> dict[str, LetterState]:
        """Each letter's state, by record."""
        return {str(letter.key): letter.state for letter in self.letters.dead_letters(GROUP)}

    def letter(self, offset: int, tp: TopicPartition = P0, topic_id: str | None = None) -> Letter:
        """A letter, without a topic's id the newest of its record."""
        found = [
            one
            for one in self.letters.dead_letters(GROUP)
            if one.key[:2] == (tp, offset) and topic_id in {None, one.topic_id}
        ]
        return max(found, key=lambda one: one.created_at)

    def request(self, *keys: LetterKey, forced: bool = False) -> None:
        """Have letters replayed."""
        self.letters.decide_letters(GROUP, "requested", keys, forced=forced)

    def discard(self, *keys: LetterKey) -> None:
        """Give letters up."""
        self.letters.decide_letters(GROUP, "discarded", keys)

    def failures(self, group: str = GROUP) -> dict[tuple[TopicPartition, int], Failed]:
        """The failed attempts that are stored."""
        return self.look(lambda one: one.failures(group))

    def letters_to_replay(self, *, limit: int = 100, max_bytes: int = 1 << 20) -> Sequence[Letter]:
        return self.look(lambda one: one.requested_letters(GROUP, ["payments"], limit=limit, max_bytes=max_bytes))

    def requested(self, **how: int) -> list[str]:
        """The letters that a job would replay next."""
        return [str(letter.key) for letter in self.letters_to_replay(**how)]

    def replay(self, key: LetterKey) -> None:
        """Mark a letter as a job does that has replayed it."""
        self.request(key)
        found = self.letter(key.offset, key.topic_partition)
        with self.session() as job:
            assert job.mark_replayed(GROUP, [found.key], actor="the job") == 1

    def recreate(self) -> Claim:
        """Delete the topic and create it again, and claim it from its beginning."""
        log = self.broker.current.topics["payments"]
        self.broker.current = replace(self.broker.current, topics={"payments": replace(log, topic_id="another-id")})
        return self.again(policy=StartPolicy(on_recreated="restart"))

    @pytest.fixture
    def five(self, claim: Claim) -> Claim:
        """A claim that has passed [0, 10) of two partitions: 2, 4, 6 of one and 1, 3 of the other are letters."""
        letters = [
            *(dead(offset, key=b"k") for offset in (2, 4, 6)),
            dead(1, P1, cause="rejected", error=PARSE, sequence=None),
            dead(3, P1, payload=None, sequence=None),
        ]
        self.give(claim, {P0: OffsetRange(0, 10), P1: OffsetRange(0, 10)}, *letters)
        return claim

    # -- in the transaction

    @pytest.mark.behaviour("DLQ-1", "DLQ-2")
    def test_a_letter_is_written_with_its_neighbours_and_the_offset_that_passes_it(self, claim: Claim) -> None:
        self.give(claim, {P0: OffsetRange(0, 4)}, dead(2, payload=RECORD, error=replace(CHECK, traceback="line 1")))

        assert (self.read(), self.stored()[P0]) == ([0, 1, 3], 4)
        letter = self.letter(2)
        assert letter.payload == RECORD
        assert letter.error == replace(CHECK, traceback="line 1")
        assert (letter.state, letter.cause, letter.attempts, letter.times) == ("dead", "refused", 2, 1)
        assert (letter.topic_id, letter.payload_state, letter.forced) == ("payments-id", "kept", False)
        assert letter.trace_id == TRACE
        assert (letter.decided_at, letter.actor, letter.reason) == (None, None, None)

    def test_a_record_that_the_transaction_does_not_pass_is_no_letter(self, claim: Claim) -> None:
        self.give(claim, {P0: OffsetRange(0, 2)})
        for letter, until in ((dead(4), 4), (dead(0, P1), 4), (dead(1), 2)):  # above, elsewhere, in the results already
            with pytest.raises(AdvanceMismatch, match="does not pass"), self.store.transaction(claim) as tx:
                tx.lock({P0: OffsetRange(0, until)})
                tx.letters.write([letter])
        assert self.letters.dead_letters(GROUP) == []

    @pytest.mark.behaviour("OPS-7", "DLQ-12")
    def test_the_code_of_a_letter_is_shown_unless_it_is_too_long_for_one(self, claim: Claim) -> None:
        codes = {
            "x" * 64: LetterError("x" * 64, "why"),
            "x" * 65: LetterError("Rejected", f"{'x' * 65}: why"),
            "a\0b\ud800": LetterError("ab?", "why"),
            "": LetterError("Rejected", "why"),
        }
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 4)})
            for offset, code in enumerate(codes):
                tx.dead_letter(P0, offset, "why", code=code)
            tx.advance(tx.ranges)
        assert [self.letter(offset).error for offset in range(4)] == [*codes.values()]

    @pytest.mark.behaviour("CTX-1")
    def test_a_tombstone_a_missing_key_and_coordinates_alone_are_told_apart(self, claim: Claim) -> None:
        nothing = Payload(None, None, None, None, None)
        empty = Payload(b"", b"", (), -1, -1)
        trace = f"{7:032x}"
        letters = [dead(0, payload=nothing), dead(1, payload=empty), dead(2, payload=None, trace_id=trace), dead(3)]
        self.give(claim, {P0: OffsetRange(0, 4)}, *letters)

        found = [self.letter(offset) for offset in range(4)]
        assert [(one.payload, one.payload_state, one.trace_id) for one in found] == [
            (nothing, "kept", None),
            (empty, "kept", None),
            (None, "left out", trace),
            (letters[3].payload, "kept", TRACE),
        ]

    # -- after a reset

    @pytest.mark.behaviour("DLQ-14")
    def test_open_letters_are_superseded_by_the_batch_that_passes_their_records_again(self, five: Claim) -> None:
        self.request(at(4))
        self.store.reset(GROUP, {P0: 0}, reason=REASON)
        again = self.again()
        self.give(again, {P0: OffsetRange(0, 5)})

        assert self.states() == {
            "payments:0:2": "superseded",
            "payments:0:4": "superseded",
            "payments:0:6": "dead",
            "payments:1:1": "dead",
            "payments:1:3": "dead",
        }
        letter = self.letter(2)
        assert (letter.actor, letter.decided_at is None) == (again.owner, False)

    @pytest.mark.behaviour("DLQ-14")
    def test_the_letter_of_a_record_that_kafka_no_longer_has_stays_open_and_can_be_replayed(self, five: Claim) -> None:
        self.store.reset(GROUP, {P0: 0}, reason=REASON)
        again = self.again()
        in_range = again.read(lambda session: session.letters_in(GROUP, {P0: OffsetRange(2, 6)}))
        assert in_range == dict.fromkeys([(P0, 2), (P0, 4)], digest(P0, b"k"))
        with self.store.transaction(again) as tx:
            tx.lock({P0: OffsetRange(0, 10)}, gone={(P0, 4), (P1, 6)})
            tx.advance(tx.ranges)

        found = self.states()
        assert [found[f"payments:0:{offset}"] for offset in (2, 4, 6)] == ["superseded", "dead", "superseded"]
        self.request(at(4))
        assert self.requested() == ["payments:0:4"]

    @pytest.mark.behaviour("DLQ-14")
    def test_letters_that_are_settled_stay_so_when_their_records_pass(self, five: Claim) -> None:
        self.replay(at(2))
        self.discard(at(4))
        self.store.reset(GROUP, {P0: 0}, reason=REASON)
        self.give(self.again(), {P0: OffsetRange(0, 10)})
        found = self.states()
        assert [found[f"payments:0:{offset}"] for offset in (2, 4, 6)] == ["replayed", "discarded", "superseded"]

    @pytest.mark.behaviour("DLQ-10")
    def test_a_topic_s_id_that_becomes_known_becomes_the_letter_s(self) -> None:
        first = self.store.claim(GROUP, topics=["payments"])
        self.give(first, {P0: OffsetRange(0, 4)}, dead(2))
        assert self.letter(2).key == stored(2, topic_id="")

        self.again()
        assert self.letter(2).key == stored(2)
        self.store.reset(GROUP, {P0: 0}, reason=REASON)
        self.give(self.again(), {P0: OffsetRange(0, 4)}, dead(2))
        [letter] = self.letters.dead_letters(GROUP)
        assert letter.times == 2

    # -- failed attempts

    @pytest.mark.behaviour("DLQ-3")
    def test_failed_attempts_survive_a_restart_and_go_when_their_records_are_passed(self, claim: Claim) -> None:
        tries = {(P0, 2): Failed(1, {"RowsRefused": 1}), (P0, 7): Failed(3, {"ValueError": 3})}
        with self.session() as one:
            one.write_failures(GROUP, tries)
        again = self.again()
        assert self.failures() == tries

        with self.session() as one:
            one.write_failures(GROUP, {(P0, 2): Failed(2, {"RowsRefused": 2})})
        self.give(again, {P0: OffsetRange(0, 2)})
        assert self.failures() == {**tries, (P0, 2): Failed(2, {"RowsRefused": 2})}
        self.give(again, {P0: OffsetRange(2, 5), P1: OffsetRange(0, 10)})
        assert self.failures() == {(P0, 7): tries[P0, 7]}

    @pytest.mark.behaviour("DLQ-3")
    def test_failed_attempts_go_when_the_offset_is_set_or_the_topic_is_created_again_and_stay_otherwise(
        self, claim: Claim
    ) -> None:
        tries = {(P0, 6): Failed(1, {"X": 1}), (P1, 6): Failed(1, {"X": 1})}
        with self.session() as one:
            one.write_failures(GROUP, tries)
        self.store.reset(GROUP, {P0: 3, P1: 0}, reason=REASON)
        assert self.failures() == {(P1, 6): tries[P1, 6]}

        self.recreate()
        assert self.stored()[P1] == 0, "as before"
        assert self.failures() == {}

    # -- the job's replay

    @pytest.mark.behaviour("DLQ-7")
    def test_a_replay_waits_for_another_one_of_the_same_letter_and_sees_what_it_did(self, five: Claim) -> None:
        def lock() -> dict[LetterKey, ChosenLetter]:
            with self.session() as other:
                return other.lock_letters(GROUP, [stored(4), stored(2), stored(3)])

        self.request(at(2), at(4))
        with ThreadPoolExecutor(1) as pool:
            with self.session() as job:
                assert [*job.lock_letters(GROUP, [stored(2)])] == [stored(2)]
                waiting = pool.submit(lock)
                with pytest.raises(TimeoutError):
                    waiting.result(0.2)
                assert job.mark_replayed(GROUP, [stored(2)], actor="job") == 1
            found = waiting.result(WAIT)

        assert [(key, one.state) for key, one in found.items()] == [(stored(2), "replayed"), (stored(4), "requested")]

    @pytest.mark.behaviour("DLQ-7")
    def test_requested_letters_come_in_order_with_their_contents_and_in_parts(self, five: Claim) -> None:
        assert not self.look(lambda one: one.has_requested(GROUP))
        self.request(at(1, P1), at(6), at(4), at(2))

        assert self.look(lambda one: one.has_requested(GROUP))
        assert self.requested() == ["payments:0:2", "payments:0:4", "payments:0:6", "payments:1:1"]
        assert self.requested(limit=3) == ["payments:0:2", "payments:0:4", "payments:0:6"]
        [letter] = self.letters_to_replay(max_bytes=1)
        assert letter == self.letter(2)
        assert letter.payload == RECORD._replace(key=b"k")
        assert self.look(lambda one: one.requested_letters(GROUP, ["x"], limit=9, max_bytes=9)) == []

    @pytest.mark.behaviour("DLQ-7")
    def test_a_letter_ahead_of_the_job_is_not_replayed_but_passed(self, five: Claim) -> None:
        self.request(at(2), at(4), at(6))
        self.store.reset(GROUP, {P0: 4}, reason=REASON)
        assert self.requested() == ["payments:0:2"]

        self.give(self.again(), {P0: OffsetRange(4, 10)})
        assert self.requested() == ["payments:0:2"]
        assert self.states()["payments:0:6"] == "superseded"

    @pytest.mark.behaviour("DLQ-7", "DLQ-11", "DLQ-14")
    def test_letters_of_an_earlier_topic_are_left_alone_and_replayed_wherever_the_job_is(self, five: Claim) -> None:
        again = self.recreate()
        self.request(at(2), at(6))
        assert self.requested() == ["payments:0:2"], "6 waits for 4, which is dead and of its sequence"
        self.give(again, {P0: OffsetRange(0, 9)}, dead(2, error=PARSE), dead(8, key=b"k"))

        assert self.letter(2, topic_id="payments-id").error == CHECK
        assert self.letter(2, topic_id="another-id").error == PARSE
        assert self.letter(2).topic_id == "another-id"
        assert Counter(one.state for one in self.letters.dead_letters(GROUP)) == {"dead": 5, "requested": 2}
        sequences = self.look(lambda one: one.open_sequences(GROUP))
        assert sequences == {digest(P0, b"k"): 8}, "a sequence ends with its topic"
        self.request(LetterKey(P0, 4, "payments-id"), at(8))
        assert self.requested() == ["payments:0:2", "payments:0:4", "payments:0:6", "payments:0:8"]

    @pytest.mark.behaviour("DLQ-11")
    def test_a_letter_waits_for_the_dead_ones_of_its_sequence_before_it(self, five: Claim) -> None:
        def open_ones() -> dict[bytes, int]:
            return self.look(lambda one: one.open_sequences(GROUP))

        key, other = digest(P0, b"k"), digest(P2, b"k")
        self.give(five, {P2: OffsetRange(0, 9)}, dead(5, P2, b"k", cause="sequence"))
        self.request(at(4), at(6))
        assert (self.requested(), open_ones()) == ([], {key: 2, other: 5})
        self.discard(at(2))
        assert (self.requested(), open_ones()) == (["payments:0:4", "payments:0:6"], {key: 4, other: 5})

        with self.session() as job:
            assert job.return_letters(GROUP, {stored(4): FailedReplay(CHECK)}, actor="job") == 1
        assert self.requested() == []
        self.store.reset(GROUP, {P0: 0, P2: 6}, reason=REASON)
        assert open_ones() == {other: 5}

    @pytest.mark.behaviour("DLQ-17")
    def test_open_letters_are_overtaken_by_what_is_written_above_them(self, five: Claim) -> None:
        def in_sequence() -> dict[str, bool]:
            found = self.letters.dead_letters(GROUP)
            return {str(one.key): one.is_in_sequence for one in found if one.sequence is not None}

        self.discard(at(2))
        self.give(five, {P2: OffsetRange(0, 9)}, dead(5, P2, b"k", cause="sequence"))
        assert self.look(lambda one: one.open_letters(GROUP)) == ({}, {P0: 6, P2: 5})
        self.give(five, {P0: OffsetRange(10, 11), P1: OffsetRange(10, 11)})

        assert self.look(lambda one: one.open_letters(GROUP)) == ({}, {P2: 5})
        assert self.look(lambda one: one.open_sequences(GROUP)) == {digest(P2, b"k"): 5}
        assert in_sequence() == {
            "payments:0:2": True,  # it is settled
            "payments:0:4": False,
            "payments:0:6": False,
            "payments:2:5": True,
        }
        with self.session() as job:
            job.pass_letters(GROUP, {}, {P0: OffsetRange(0, 11)}, actor="job")
        assert self.letter(4).sequence == (digest(P0, b"k") or b"") + b"\0", "once is enough"
        self.request(at(4), at(6))
        assert self.requested() == ["payments:0:4", "payments:0:6"]
        with self.session() as job:
            assert job.return_letters(GROUP, {stored(4): FailedReplay(CHECK)}, actor="job") == 1
        assert self.requested() == [], "6 waits for 4, as before"

        self.give(self.store.claim(GROUP, self.broker), {P0: OffsetRange(11, 13)}, dead(12, key=b"k"))
        assert in_sequence()["payments:0:12"]

    @pytest.mark.behaviour("DLQ-7")
    def test_a_letter_that_fails_again_is_dead_with_its_new_error_and_one_attempt_more(self, five: Claim) -> None:
        self.request(at(2), at(1, P1), forced=True)
        failed = {
            stored(2): FailedReplay(replace(PARSE, text="a\0b"), "rejected"),
            stored(1, P1): FailedReplay(CHECK),
            stored(4): FailedReplay(CHECK),
        }
        with self.session() as job:
            assert job.return_letters(GROUP, failed, actor="the job") == 2

        letter = self.letter(2)
        assert (letter.state, letter.cause, letter.attempts, letter.times) == ("dead", "rejected", 3, 1)
        assert letter.error == replace(PARSE, text="ab")
        assert (letter.forced, letter.actor, letter.payload) == (False, "the job", RECORD._replace(key=b"k"))
        assert self.letter(1, P1).cause == "rejected"
        assert self.letter(4).attempts == 2


LISTED: Final[list[tuple[dict[str, Any], list[str]]]] = [
    ({}, ["payments:0:2", "payments:0:4", "payments:0:6", "payments:1:1", "payments:1:3"]),
    ({"cause": "rejected"}, ["payments:1:1"]),
    ({"topic": "payments", "partition": 1}, ["payments:1:1", "payments:1:3"]),
    ({"topic": "refunds"}, []),
    ({"error_class": "ValueError"}, ["payments:1:1"]),
    ({"sqlstate": ""}, ["payments:1:1"]),
    ({"sqlstate": "23514", "partition": 1}, ["payments:1:3"]),
    ({"table": "public.results", "constraint": "positive", "column": "", "partition": 1}, ["payments:1:3"]),
    ({"constraint": "another"}, []),
    ({"state": "requested"}, ["payments:0:2"]),
    ({"state": ["dead", "discarded"], "partition": 0}, ["payments:0:4", "payments:0:6"]),
]
NOT_LISTED: Final[list[dict[str, Any]]] = [
    {"state": "alive"},
    {"cause": "bad luck"},
    {"limit": 0},
    {"after": "x"},
    {"after": "WzFd"},
    {"within": 0},
    {"within": 5, "contents": True},
    {"partition": 2**31},
    {"partition": "0"},
    {"partition": -1},
    {"topic": "\0"},
    {"error_class": "\ud800"},
]


class PeopleLetterContract(LetterContract):
    """With what only people ask, which a store in memory does not have."""

    # -- decisions

    @pytest.mark.behaviour("DLQ-7")
    def test_a_wait_for_a_letter_goes_on_when_its_topic_s_id_becomes_known(self) -> None:
        first = self.store.claim(GROUP, topics=["payments"])
        self.give(first, {P0: OffsetRange(0, 4)}, dead(2))
        done = self.store.request_replay(GROUP, at(2), reason=REASON)
        assert done.letters == (stored(2, topic_id=""),)

        self.again()
        assert self.store.letter(GROUP, P0, 2).key == stored(2)
        assert self.store.wait_for_replay(GROUP, done.letters, seconds=0) == {"requested": 1}

    @pytest.mark.behaviour("DLQ-7")
    def test_letters_that_are_settled_are_not_decided_about_again(self, five: Claim) -> None:
        self.replay(at(2))
        self.store.discard(GROUP, at(4), reason=REASON)
        for settled in (at(2), at(4)):
            for decide in (self.store.request_replay, self.store.discard):
                with pytest.raises(LetterSettled):
                    decide(GROUP, settled, reason=REASON)
        of_p0 = LetterFilter(topic="payments", partition=0)
        assert self.store.request_replay(GROUP, of_p0, reason=REASON).letters == (stored(6),)

    @pytest.mark.behaviour("DLQ-7")
    def test_a_request_marks_letters_and_the_history_has_one_line(self, five: Claim) -> None:
        done = self.store.request_replay(GROUP, [at(4), at(2)], reason=REASON, actor="ana", forced=True)

        assert done.letters == (stored(2), stored(4))
        letter = self.store.letter(GROUP, P0, 4)
        assert (letter.state, letter.forced, letter.actor, letter.reason) == ("requested", True, "ana", REASON)
        assert letter.decided_at is not None
        assert letter.payload is not None
        [line] = self.store.history(GROUP, events=["replay"])
        assert (line.actor, line.topic_partition, line.from_offset, line.to_offset) == ("ana", P0, 2, 5)
        assert line.reason == f"2 dead letters to be replayed, forced (payments:0:2, payments:0:4): {REASON}"
        assert done.history == (replace(line, at=None, db_role=None),)
        assert line.token == five.token
        with pytest.raises(PayloadMissing, match="left out"):
            self.store.request_replay(GROUP, [at(6), at(3, P1)], reason=REASON)
        assert self.store.letter_counts(GROUP) == {"dead": 3, "requested": 2}

        undone = self.store.discard(GROUP, LetterFilter(("requested",), partition=0), reason="a mistake")
        assert undone.letters == done.letters
        letter = self.store.letter(GROUP, P0, 2)
        assert (letter.state, letter.reason, letter.payload_state) == ("discarded", "a mistake", "kept")
        assert not self.look(lambda one: one.has_requested(GROUP))

    @pytest.mark.behaviour("DLQ-7")
    def test_the_letters_of_a_list_are_decided_about_as_they_are(self, five: Claim) -> None:
        page = self.store.letters(GROUP, topic="payments", partition=0).letters
        assert self.store.request_replay(GROUP, page[0], reason=REASON).letters == (stored(6),)
        assert self.store.request_replay(GROUP, page[1:], reason=REASON).letters == (stored(2), stored(4))
        assert self.store.discard(GROUP, [page[0], at(2)], reason=REASON).letters == (stored(2), stored(6))
        assert self.store.discard(GROUP, (one for one in page[1:2]), reason=REASON).letters == (stored(4),)

    @pytest.mark.behaviour("DLQ-7")
    def test_a_filter_chooses_in_order_up_to_the_limit_and_says_what_it_leaves(self, five: Claim) -> None:
        refused = LetterFilter(cause="refused")
        seen = self.store.request_replay(GROUP, refused, reason=REASON, limit=2, dry_run=True)
        assert (seen.letters, seen.more, seen.without_payload, seen.executed) == (
            (stored(2), stored(4)),
            True,
            1,
            False,
        )
        assert self.store.letter_counts(GROUP) == {"dead": 5}

        done, rest, none = (self.store.request_replay(GROUP, refused, reason=REASON, limit=2) for _ in range(3))
        assert [(one.letters, one.more, one.without_payload, one.executed) for one in (done, rest, none)] == [
            (seen.letters, True, 1, True),
            ((stored(6),), False, 1, True),
            ((), False, 1, False),
        ]
        assert [line.reason for line in self.store.history(GROUP, events=["replay"])] == [
            f"2 dead letters to be replayed (cause=refused): {REASON}",
            f"1 dead letter to be replayed (cause=refused): {REASON}",
        ]

    @pytest.mark.parametrize("decide", ["request_replay", "discard"])
    def test_a_decision_that_cant_be_meant_changes_nothing(self, five: Claim, decide: str) -> None:
        for name, (error, wrong) in REFUSED.items():
            for dry_run in (True, False):
                with pytest.raises(error):
                    getattr(self.store, decide)(
                        **{"group": GROUP, "which": at(2), "reason": REASON, "dry_run": dry_run, **wrong}
                    )
            assert self.store.letter_counts(GROUP) == {"dead": 5}, name
        assert self.store.history(GROUP, events=["replay", "discard"]) == []

    @pytest.mark.behaviour("DLQ-7")
    def test_a_decision_waits_for_a_replay_and_sees_what_it_did(self, five: Claim) -> None:
        self.store.request_replay(GROUP, [at(2), at(4)], reason=REASON)
        with ThreadPoolExecutor(1) as pool:
            with self.session() as job:
                job.lock_letters(GROUP, [stored(2)])
                waiting = pool.submit(self.store.discard, GROUP, LetterFilter(("requested",)), reason=REASON)
                with pytest.raises(TimeoutError):
                    waiting.result(0.2)
                assert job.mark_replayed(GROUP, [stored(2)], actor="job") == 1
            done = waiting.result(WAIT)

        assert done.letters == (stored(4),)
        assert self.store.letter(GROUP, P0, 2).state == "replayed"

    @pytest.mark.behaviour("DLQ-7")
    def test_a_decision_about_named_letters_waits_for_a_replay_too_and_is_refused(self, five: Claim) -> None:
        self.store.request_replay(GROUP, [at(2), at(4)], reason=REASON)
        with ThreadPoolExecutor(1) as pool:
            with self.session() as job:
                job.lock_letters(GROUP, [stored(2)])
                waiting = pool.submit(self.store.discard, GROUP, [at(2), at(4)], reason=REASON)
                with pytest.raises(TimeoutError):
                    waiting.result(0.2)
                assert job.mark_replayed(GROUP, [stored(2)], actor="job") == 1
            with pytest.raises(LetterSettled):
                waiting.result(WAIT)

        assert self.store.letter_counts(GROUP) == {"dead": 3, "replayed": 1, "requested": 1}

    def test_a_decision_does_not_wait_for_ever(self, five: Claim) -> None:
        self.store.timeouts = Timeouts(lock=0.2)
        with self.session() as job:
            job.lock_letters(GROUP, [stored(2)])
            with pytest.raises(LockTimeout):
                self.store.discard(GROUP, at(2), reason=REASON)
            assert self.store.discard(GROUP, at(2), reason=REASON, dry_run=True).letters == (stored(2),)
            self.store.discard(GROUP, at(4), reason=REASON)
        assert self.store.letter(GROUP, P0, 2).state == "dead"

    @pytest.mark.behaviour("DLQ-7")
    def test_a_reset_counts_the_replayed_letters_that_it_goes_back_over(self, five: Claim) -> None:
        for offset in (2, 6):
            self.replay(at(offset))
        for dry_run in (True, False):
            assert self.store.reset(GROUP, {P0: 7, P1: 0}, reason=REASON, dry_run=dry_run).replayed_letters == 0
        assert self.store.reset(GROUP, {P0: 6}, reason=REASON, dry_run=True).replayed_letters == 1
        assert self.store.reset(GROUP, {P0: 2}, reason=REASON).replayed_letters == 2
        assert self.store.reset(GROUP, {P0: 10}, reason=REASON).replayed_letters == 0
        self.recreate()
        self.store.reset(GROUP, {P0: 10}, reason=REASON)
        assert self.store.reset(GROUP, {P0: 0}, reason=REASON).replayed_letters == 0

    # -- reads

    @pytest.mark.behaviour("DLQ-1")
    def test_a_list_has_the_newest_first_page_by_page_and_no_contents_unless_asked(self, five: Claim) -> None:
        self.give(five, {P2: OffsetRange(0, 2)}, dead(1, P2))
        seen: list[str] = []
        after = None
        while True:
            page = self.store.letters(GROUP, after=after, limit=4)
            assert all((one.payload, one.error.text, one.error.traceback) == (None, "", None) for one in page.letters)
            seen += [str(letter.key) for letter in page.letters]
            if (after := page.next) is None:
                break

        assert seen[0] == "payments:2:1"
        assert sorted(seen[1:]) == ["payments:0:2", "payments:0:4", "payments:0:6", "payments:1:1", "payments:1:3"]
        full = self.store.letters(GROUP, contents=True).letters
        assert full == tuple(self.store.letter(GROUP, one.topic_partition, one.offset) for one in full)

    def test_a_list_is_filtered_also_where_it_looks_at_some_letters_at_a_time(self, five: Claim) -> None:
        self.store.request_replay(GROUP, at(2), reason=REASON)
        self.store.discard(GROUP, at(4), reason=REASON)
        for chosen, found in LISTED:
            whole = self.store.letters(GROUP, **chosen).letters
            assert sorted(str(letter.key) for letter in whole) == found
            for within, limit in ((2, 1), (2, 2), (6, 100)):
                seen: list[Letter] = []
                after, looks = None, 0
                while looks == 0 or after is not None:
                    page = self.store.letters(GROUP, **chosen, within=within, limit=limit, after=after)
                    assert len(page.letters) <= min(within, limit)
                    seen += page.letters
                    after, looks = page.next, looks + 1
                    assert looks <= 6
                assert tuple(seen) == whole

    @pytest.mark.behaviour("DASH-4")
    def test_a_letter_can_be_read_without_its_contents_and_one_that_is_not_there_is_told(self, five: Claim) -> None:
        for letter in self.store.letters(GROUP).letters:
            assert self.store.letter(GROUP, *letter.key, contents=False) == letter
            assert self.store.letter(GROUP, *letter.key[:2], contents=False) == letter

        for key in (at(3), at(2, P2), LetterKey(P0, 2, "another-id")):
            for contents in (True, False):
                with pytest.raises(UnknownLetter):
                    self.store.letter(GROUP, *key, contents=contents)
        with pytest.raises(UnknownGroup):
            self.store.letter("nobody", P0, 2)
        wrong: Any
        for wrong in (("payments", 2), (P0, "2"), (P0, 2, 7)):  # which name no letter
            with pytest.raises(TypeError, match="not a dead letter: found LetterKey"):
                self.store.letter(GROUP, *wrong)
        for wrong in NOT_LISTED:
            with pytest.raises(ConfigurationError):
                self.store.letters(GROUP, **wrong)

    def test_errors_are_told_apart_to_the_end_of_a_long_name(self, claim: Claim) -> None:
        """A database may index the beginnings alone."""
        long = "größe" * 1000
        values = [long[:length] + end for length in (1, 39, 40, 41, 63, 4999) for end in ("", "a", "b")]
        names = ("error_class", "sqlstate", "table", "constraint", "column")
        errors: list[dict[str, Any]] = [{name: value} for name in names for value in values]
        letters = [dead(offset, error=replace(CHECK, **chosen)) for offset, chosen in enumerate(errors)]
        self.give(claim, {P0: OffsetRange(0, 100)}, *letters)

        for chosen in errors:
            found = self.store.letters(GROUP, **chosen).letters
            assert [letter.offset for letter in found] == [n for n, other in enumerate(errors) if other == chosen]
            seen = self.store.request_replay(GROUP, LetterFilter(**chosen), reason=REASON, dry_run=True)
            assert {*seen.letters} == {letter.key for letter in found}

    @pytest.mark.behaviour("DLQ-10")
    def test_a_record_that_fails_again_reopens_its_letter(self, five: Claim) -> None:
        before = self.store.letter(GROUP, P0, 2)
        self.store.discard(GROUP, at(2), reason=REASON, erase=True)
        self.store.reset(GROUP, {P0: 0}, reason=REASON)
        self.give(self.again(), {P0: OffsetRange(0, 10)}, dead(2, error=PARSE, attempts=5), dead(4))

        letter = self.store.letter(GROUP, P0, 2)
        assert (letter.state, letter.times, letter.attempts, letter.error) == ("dead", 2, 5, PARSE)
        assert (letter.payload_state, letter.decided_at, letter.actor, letter.reason) == ("kept", None, None, None)
        assert letter.created_at == before.created_at
        assert self.store.letter(GROUP, P0, 4).times == 2
        assert self.states()["payments:0:6"] == "superseded"

    def test_a_rename_takes_letters_and_failed_attempts_along(self, five: Claim) -> None:
        with self.session() as one:
            one.write_failures(GROUP, {(P0, 12): Failed(1, {"X": 1})})
        self.store.rename_group(GROUP, "invoicing", reason=REASON)

        assert (self.store.letter_counts(GROUP), self.failures()) == ({}, {})
        assert self.store.letter_counts("invoicing") == {"dead": 5}
        assert self.failures("invoicing") == {(P0, 12): Failed(1, {"X": 1})}
        with pytest.raises(GroupRenamed):
            self.store.discard(GROUP, at(2), reason=REASON)

    def test_letters_are_grouped_by_their_errors_which_is_a_filter_and_counts_can_be_bounded(self, five: Claim) -> None:
        many, one = self.store.letter_errors(GROUP)

        assert (many.count, many.cause, many.error_class, many.sqlstate) == (4, "refused", "RowsRefused", "23514")
        assert (many.table, many.constraint, many.column) == ("public.results", "positive", None)
        letters = self.store.letters(GROUP, cause="refused").letters
        assert (many.first_at, many.last_at) == (letters[-1].created_at, letters[0].created_at)
        assert many.example == letters[0].key
        assert (one.count, one.error_class, one.sqlstate, one.example) == (1, "ValueError", None, stored(1, P1))
        assert self.store.discard(GROUP, one.which, reason=REASON).letters == (stored(1, P1),)
        assert [error.count for error in self.store.letter_errors(GROUP)] == [4]
        assert [error.count for error in self.store.letter_errors(GROUP, state=None, limit=1)] == [4]

        assert self.store.letter_counts(GROUP, up_to=3) == {"dead": 3, "discarded": 1}
        assert self.store.letter_counts(GROUP, up_to=9) == {"dead": 4, "discarded": 1}
        assert self.store.letter_counts("nobody", up_to=3) == {}
        assert self.group_state().dead_letters == {"dead": 4}
        newest = self.store.letters(GROUP, state="dead", limit=2).letters
        [error] = self.store.letter_errors(GROUP, within=2)
        assert (error.count, error.example in {one.key for one in newest}) == (2, True)
        assert self.store.letter_errors(GROUP, within=4) == self.store.letter_errors(GROUP)
        for count in (partial(self.store.letter_counts, up_to=0), partial(self.store.letter_errors, within=0)):
            with pytest.raises(ConfigurationError):
                count(GROUP)

    def test_erasing_discards_what_is_open_and_clears_contents_in_any_state(self, five: Claim) -> None:
        self.replay(at(2))
        before = self.store.letter(GROUP, P0, 2)
        erased = [
            self.store.discard(GROUP, LetterFilter(), reason="ticket 18", erase=True, limit=limit)
            for limit in (4, 5, 5)
        ]
        assert [(len(done.letters), done.more) for done in erased] == [(4, True), (1, False), (0, False)]

        assert self.store.letter_counts(GROUP) == {"replayed": 1, "discarded": 4}
        for letter in self.store.letters(GROUP, contents=True).letters:
            assert (letter.payload, letter.payload_state, letter.sequence) == (None, "erased", None)
            assert (letter.error.text, letter.error.traceback, bool(letter.error.error_class)) == ("", None, True)
        after = self.store.letter(GROUP, P0, 2)
        assert (after.state, after.decided_at, after.reason) == ("replayed", before.decided_at, before.reason)
        assert len(self.store.history(GROUP, events=["erase"])) == 2
        self.store.discard(GROUP, at(2), reason=REASON, erase=True)
        with pytest.raises(LetterSettled):
            self.store.request_replay(GROUP, at(2), reason=REASON)

    def test_only_what_was_settled_long_enough_ago_is_pruned(self, five: Claim) -> None:
        def prune(older_than: timedelta = timedelta(0), **how: Any) -> Any:
            given: dict[str, Any] = {"older_than": older_than, "reason": REASON, **how}
            return self.store.prune(GROUP, **given)

        assert not prune().executed  # each is open
        self.replay(at(2))
        self.store.discard(GROUP, [at(4), at(1, P1)], reason=REASON)
        self.store.request_replay(GROUP, at(6), reason=REASON)
        assert prune(timedelta(days=1)).count == 0
        seen = prune(limit=2, dry_run=True)
        assert (seen.count, seen.more, seen.executed) == (2, True, False)
        with pytest.raises(PlanChanged):  # other letters, and as many, may be older than that
            prune(timedelta(microseconds=1), limit=2, if_plan=seen.digest)
        for wrong in (
            partial(prune, states=["dead"]),
            partial(prune, states=["requested", "replayed"]),
            partial(prune, states=[]),
            partial(prune, timedelta(-1)),
            partial(prune, reason=""),
        ):
            with pytest.raises(ConfigurationError):
                wrong()

        assert prune(states=["discarded"], limit=1).more
        done = prune(actor="ana")
        assert (done.count, done.more, done.executed) == (2, False, True)
        assert self.store.letter_counts(GROUP) == {"dead": 1, "requested": 1}
        assert not prune().executed
        first, last = self.store.history(GROUP, events=["prune"])
        assert first.reason.startswith("1 dead letter deleted (discarded before ")
        assert last.reason.startswith("2 dead letters deleted (replayed, discarded, superseded before ")
        assert last.actor == "ana"

    @pytest.mark.behaviour("DLQ-7")
    def test_a_replay_locks_its_letters_and_sees_what_has_changed_since_it_read_them(self, five: Claim) -> None:
        self.store.request_replay(GROUP, [at(2), at(4)], reason=REASON, forced=True)
        self.store.discard(GROUP, at(4), reason=REASON, erase=True)
        with self.session() as job:
            found = job.lock_letters(GROUP, [stored(4), stored(2), stored(3)])
            assert list(found) == [stored(2), stored(4)]
            assert found[stored(2)][:5] == ("requested", "kept", True, 1, 2)
            assert found[stored(4)][:2] == ("discarded", "erased")
            assert job.mark_replayed(GROUP, [*found], actor="the job") == 1

        letter = self.store.letter(GROUP, P0, 2)
        assert (letter.state, letter.actor, letter.reason) == ("replayed", "the job", REASON)
        assert self.store.letter(GROUP, P0, 4).state == "discarded"
