"""Dead letters: which of them wait, what the job passes, and a replay that writes each once."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant, text

_REPLAYS: Final = "tests/unit/processing/test_put_back.py::"
_SEQUENCES: Final = "tests/unit/processing/test_sequences.py::"
_MEMORY: Final = "tests/contract/test_memory.py::TestInMemoryOffsetStore::"
_CONTRACT: Final = "tests/contract/test_postgres.py::TestPostgresOffsetStore::"

_DISCARDED: Final = f"{_REPLAYS}test_a_letter_that_is_discarded_after_it_was_read_is_not_written"
_TWICE: Final = f"{_REPLAYS}test_of_two_replays_of_one_letter_the_second_writes_nothing"
_STOPS: Final = f"{_REPLAYS}test_the_letters_of_a_key_stop_at_the_first_that_fails"


REPLAY: Final[tuple[Mutant, ...]] = (
    mutant(
        "letters-locked-before-the-write",
        ("_Settled.begin", "if not tx.lock_letters(self.letters): ...", ""),
        tests=(_DISCARDED, _TWICE),
        why="A replay would write what was decided about meanwhile; only the count of what it marks would be left.",
    ),
    mutant(
        "letters-compared-under-the-lock",
        ("Transaction.lock_letters", "locked.get(one.key) == ChosenLetter.of(one)", "one.key in locked"),
        tests=(_DISCARDED, _TWICE),
        why="The same: a letter that is locked may have been given up, or replayed, since it was read.",
    ),
    mutant(
        "letters-compared-in-all-that-was-read",
        (
            "Transaction.lock_letters",
            "locked.get(one.key) == ChosenLetter.of(one)",
            "(found := locked.get(one.key)) and found[:-1] == ChosenLetter.of(one)[:-1]",
        ),
        tests=(f"{_REPLAYS}test_a_letter_that_is_overtaken_after_it_was_read_is_not_written",),
        why="A replay would replace rows that a transaction without sequences has written meanwhile.",
    ),
    mutant(
        "letters-locked-and-counted",
        ("_Settled.begin", "if not tx.lock_letters(self.letters): ...", ""),
        ("Transaction.settle_letters", "(done, back) != ...", "(done, back) > ..."),
        tests=(_TWICE,),
        why="Each of the two keeps a letter from being written twice. With both gone nothing does.",
    ),
    mutant(
        "letters-lock",
        ("LOCK_NAMED", 'CHOOSE_NAMED + "FOR UPDATE OF l\\n"', "CHOOSE_NAMED"),
        tests=(f"{_CONTRACT}test_a_decision_waits_for_a_replay_and_sees_what_it_did",),
        why="A letter could be discarded between the comparison and the COMMIT, and be written all the same.",
    ),
    mutant(
        "letters-marked",
        ("Transaction.settle_letters", "(done, back) != ...", "(done, back) > ..."),
        tests=(f"{_REPLAYS}test_a_letter_that_cant_be_marked_is_not_written",),
        why="Where a trigger leaves a letter as it is, its rows would be written again and again.",
    ),
    mutant(
        "letters-marked-only-if-requested",
        text("MARK_REPLAYED", " AND l.state = 'requested'", ""),
        tests=(f"{_CONTRACT}test_a_replay_locks_its_letters_and_sees_what_has_changed_since_it_read_them",),
        why="A letter that was discarded would become one that was replayed.",
    ),
    mutant(
        "letters-below-the-stored-offset",
        text("REQUESTED_LETTERS", "l.record_offset < p.next_offset", "true"),
        tests=(f"{_CONTRACT}test_a_letter_ahead_of_the_job_is_not_replayed_but_passed",),
        why="After a reset a letter would be replayed, and its record read by the job once more.",
    ),
    mutant(
        "touch",
        ("PutBack._commit", "Ending.TOUCH", "Ending.ADVANCE"),
        tests=(f"{_REPLAYS}test_a_replay_whose_commit_has_no_answer_is_looked_up",),
        why="No row would show whether a replay whose answer is lost was committed.",
    ),
    mutant(
        "letters-without-their-records",
        ("PutBack._write", "letter.payload is None", "letter.payload is letter"),
        tests=(f"{_REPLAYS}test_a_requested_letter_whose_record_is_gone_is_dead_again_and_not_replayed",),
        why="It would make no rows, and be marked as replayed: a record that is lost.",
    ),
    mutant(
        "letters-out-of-order",
        (
            "PutBack._out_of_order",
            "self._settings.sequence is not None and letter.is_in_sequence and is_current",
            "letter.is_in_sequence and is_current",
        ),
        tests=(f"{_REPLAYS}test_a_sequence_protects_no_newer_row_in_a_job_without_sequences",),
        why="An older row would replace the newer one that the job has written meanwhile.",
    ),
)

PASSED: Final[tuple[Mutant, ...]] = (
    mutant(
        "supersede",
        ("settle_passed", "session.supersede(group, letters, actor=actor, gone=gone)", "pass"),
        tests=(f"{_MEMORY}test_open_letters_are_superseded_by_the_batch_that_passes_their_records_again",),
        why="The job has written the record, and its letter could still be replayed: twice.",
    ),
    mutant(
        "supersede-open-ones",
        text("_IN_RANGES", "l.state IN ('dead', 'requested')", "true"),
        tests=(f"{_CONTRACT}test_letters_that_are_settled_stay_so_when_their_records_pass",),
        why="What people have decided, and what was replayed, would no longer be told.",
    ),
    mutant(
        "adopted-letters",
        ("LetterStatements.adopt_letters", "self.run(ADOPT_LETTERS, **...)", "dict(**...)"),
        tests=(f"{_CONTRACT}test_a_topic_s_id_that_becomes_known_becomes_the_letter_s",),
        why="A record that fails again would have two letters, and each could be replayed.",
    ),
)

ORDER: Final[tuple[Mutant, ...]] = (
    mutant(
        "replay-in-sequence",
        ("processing:_kept", "number in failed or letter.sequence in stopped", "number in failed"),
        tests=(_STOPS,),
        why="After a letter that fails again, later ones of its key would be written: out of order.",
    ),
    mutant(
        "replay-in-sequence-in-halves",
        ("PutBack._still_first", "[letter for letter in letters if letter.sequence not in keys]", "letters"),
        tests=(f"{_REPLAYS}test_a_key_is_in_order_in_halves_too",),
        why="The same, where a key's letters are in two halves.",
    ),
    mutant(
        "replay-after-the-dead-ones",
        text("REQUESTED_LETTERS", "e.state = 'dead'", "false"),
        tests=(f"{_CONTRACT}test_a_letter_waits_for_the_dead_ones_of_its_sequence_before_it",),
        why="A letter would be replayed although an earlier one of its key is dead.",
    ),
    mutant(
        "parking",
        ("Recovery._waiting", "key in stopped", "not key"),
        tests=(f"{_SEQUENCES}test_later_records_of_a_dead_one_s_key_wait_and_no_others",),
        why="Later records of a dead one's key would be written before it.",
    ),
    mutant(
        "parking-in-later-batches",
        ("Recovery._waiting", "set(self._open_sequences())", "set()"),
        tests=(f"{_SEQUENCES}test_they_wait_in_later_batches_and_after_a_restart_too",),
        why="They would wait in the batch of the dead record alone.",
    ),
    mutant(
        "parking-behind-a-record-that-is-gone",
        ("Recovery._waiting", "key in stopped or ...", "key in stopped"),
        tests=(f"{_SEQUENCES}test_after_a_reset_a_letter_whose_record_was_compacted_away_stays_and_its_key_waits",),
        why="Later records of its key would be written first, and be replaced by its replay.",
    ),
    mutant(
        "parking-behind-a-record-that-is-gone-in-later-batches",
        ("Recovery._commit", "self._open_sequences().update(waiting_behind)", "pass"),
        tests=(f"{_SEQUENCES}test_behind_such_a_letter_its_key_waits_in_the_next_batch_too",),
        why="So would those of the next batch.",
    ),
    mutant(
        "supersede-what-is-gone",
        ("Recovery._commit", "Unit(..., **..., gone=gone, **...)", "Unit(..., **..., **...)"),
        tests=(f"{_SEQUENCES}test_after_a_reset_a_letter_whose_record_was_compacted_away_stays_and_its_key_waits",),
        why="A record that Kafka has compacted away would be nowhere: its letter is all that is left of it.",
    ),
    mutant(
        "parking-after-an-unknown-commit",
        ("Recovery.forget", "self._open = None", ""),
        tests=(f"{_SEQUENCES}test_a_new_run_of_the_query_knows_the_letters_of_a_commit_without_an_answer",),
        why="A query that is started again in the same process would write past the letters of that COMMIT.",
    ),
)

REPLAYS: Final = (*REPLAY, *PASSED, *ORDER)
