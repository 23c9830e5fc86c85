"""The start, and the mirror whose copies it judges: pure, or on a store in memory."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_RESOLVER: Final = "offsetstore/resolver.py"
_TAKING: Final = "offsetstore/store/taking.py"
_DECISIONS: Final = "offsetstore/store/decisions.py"
_MIRROR: Final = "offsetstore/store/mirror.py"
_SQL: Final = "offsetstore/store/statements.py"

_RESOLVED: Final = "tests/unit/test_resolver.py::"
_MIRRORED: Final = "tests/unit/test_mirror.py::"
_BOTH_LOOKS: Final = (
    (
        "offsetstore/store/starting.py",
        "        return resolve(stored, view, policy, store_id=store_id, adopted=adopted)\n    except",
        "        return resolve(stored, view, policy, adopted=adopted)\n    except",
    ),
    (
        _TAKING,
        "resolve(rows, view, request.policy, store_id=store_id, adopted=starts)",
        "resolve(rows, view, request.policy, adopted=starts)",
    ),
)

START: Final[tuple[Mutant, ...]] = (
    mutant(
        "stamp-of-our-own",
        (_RESOLVER, "    _our_copy,\n", ""),
        tests=(f"{_RESOLVED}test_a_copy_beyond_the_row_stops_the_start",),
        why="A restored database would be taken for one that another tool has overtaken: its records would be skipped.",
    ),
    mutant(
        "stamp-of-another-store",
        (_RESOLVER, "    _foreign_copy,\n", ""),
        tests=(f"{_RESOLVED}test_a_copy_of_another_store_is_refused",),
        why="Two stores under one group would follow each other's offsets.",
    ),
    mutant(
        "stamp-at-the-claim",
        *_BOTH_LOOKS,
        tests=(f"{_MIRRORED}test_a_rewound_row_is_noticed_also_after_claims_that_did_not_look_at_it",),
        why="The claim looks twice, without and with its locks. Either alone refuses, so that both go.",
    ),
    mutant(
        "epoch-above-the-copies",
        (_TAKING, "Token(max(before.epoch, copied) + 1, claim_id)", "Token(before.epoch + 1, claim_id)"),
        tests=(f"{_MIRRORED}test_after_a_restore_epochs_go_on_above_those_that_kafka_has_seen",),
        why="A late copy of the lost database's job would look newer than the decision that replaced it.",
    ),
    mutant(
        "pinned",
        (_RESOLVER, "    _pinned,\n", ""),
        tests=(f"{_RESOLVED}test_a_pinned_row_wins_whatever_kafka_says",),
        why="A reset backwards would be undone by what Kafka still has.",
    ),
    mutant(
        "pinned-after-copies",
        (
            _RESOLVER,
            "    _pinned,\n    _foreign_copy,\n    _our_copy,\n",
            "    _foreign_copy,\n    _our_copy,\n    _pinned,\n",
        ),
        tests=(f"{_RESOLVED}test_a_pinned_row_wins_over_every_copy",),
        why="The order of the rules is the table: an operator's decision comes before every copy.",
    ),
    mutant(
        "pin-kept-by-a-claim",
        (_DECISIONS, "start.reason in _PINS or (row is not None and row.pinned) or", "start.reason in _PINS or"),
        tests=(
            "tests/contract/test_memory.py::TestInMemoryOffsetStore::test_a_reset_backwards_sticks_through_restarts_whatever_kafka_says",
        ),
        why="A reset would stick through one start and be undone by the next, if the job dies before the mirror.",
    ),
    mutant(
        "pin-of-an-override",
        (
            _DECISIONS,
            "_PINS = {Reason.RECREATED_RESTART, Reason.REWOUND_STORED, Reason.REWOUND_KAFKA}",
            "_PINS = {Reason.RECREATED_RESTART}",
        ),
        tests=("tests/unit/test_pins.py::test_a_decision_about_a_rewound_database_is_made_once",),
        why="A decision about a rewound database would have to be made at every start anew, or be undone.",
    ),
    mutant(
        "pin-taken-off-too-soon",
        (
            _MIRROR,
            "        if self._commit(rows) and not self._given_up:\n",
            "        if self._commit(rows) or not self._given_up:\n",
        ),
        tests=(f"{_MIRRORED}test_a_pin_comes_off_when_kafka_has_the_copy_and_not_before",),
        why="Kafka's older, larger offset would win again before the mirror has overwritten it.",
    ),
    mutant(
        "log-judged-by-its-id",
        (
            _RESOLVER,
            "        if row.topic_id and log.topic_id and row.topic_id != log.topic_id:\n",
            "        if row.topic_id and log.topic_id and not tp:\n",
        ),
        tests=(f"{_RESOLVED}test_a_recreated_topic_that_is_longer_is_noticed_by_its_id",),
        why="The first records of a recreated topic would be skipped, up to the old log's offset.",
    ),
    mutant(
        "end-of-the-same-topic",
        (
            _RESOLVER,
            "    if start.offset > end and facts.is_same_log:\n",
            "    if start.offset > end and facts.is_same_log and facts.stored is None:\n",
        ),
        tests=(f"{_RESOLVED}test_a_log_that_ends_below_the_row_under_the_same_id_is_no_other_topic",),
        why="An open transaction under read_committed would look like a recreated topic; a restart would double it.",
    ),
    mutant(
        "mirror-of-a-stale-claim",
        (
            _MIRROR,
            "        if any(row.token != self._claim.token for row in rows.values()):\n",
            "        if any(row.token is None for row in rows.values()):\n",
        ),
        tests=(f"{_MIRRORED}test_a_stale_claim_copies_nothing_not_even_at_its_end",),
        why="A stale job would go on copying, with a stamp of its own, what the new one has written.",
    ),
    mutant(
        "mirror-of-a-rewound-database",
        (
            _MIRROR,
            "        if any(row.next_offset < self._highest.get(tp, 0) for tp, row in rows.items()):\n",
            "        if not rows:\n",
        ),
        tests=(f"{_MIRRORED}test_a_database_that_is_restored_under_the_job_does_not_pull_the_copy_back",),
        why="The copy is all that shows that the database was restored; the mirror would overwrite it.",
    ),
)
