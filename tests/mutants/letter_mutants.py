"""Dead letters: who is blamed, how often it was tried, and what is kept. Most of them need no server."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant, text

_UPSERT_S_GRANT: Final = (
    "tests/integration/postgres/test_missing_privileges.py::"
    "test_what_is_missing_on_a_target_is_told_before_any_row_with_the_command_that_grants_it[update-write]"
)

_ERRORS_OF_SPARK: Final = "tests/unit/spark/test_function_errors.py::"
_SEARCH: Final = "tests/unit/processing/test_computing.py::"
_UNIT: Final = "tests/unit/processing/test_recovery.py::"
_RUNNER: Final = "tests/unit/processing/test_runner.py::"
_MEMORY: Final = "tests/contract/test_memory.py::TestInMemoryOffsetStore::"
_SEQUENCES: Final = "tests/unit/processing/test_sequences.py::"
_PUT_BACK: Final = "tests/unit/processing/test_put_back.py::"
_SETTINGS: Final = "tests/unit/spark/test_settings.py::"
_SECOND: Final = "tests/integration/processing/test_second_source.py::"
_POSTGRES: Final = "tests/integration/processing/test_recovery_on_postgres.py::"

_EXECUTES: Final = "tests/integration/writers/test_execute.py::"
_SHOWN_OF_VALUES: Final = "tests/integration/writers/test_values_in_errors.py::"
_HINTED: Final = f"{_SHOWN_OF_VALUES}test_the_same_state_raised_by_a_trigger_is_the_rows_and_shows_no_value"
_NO_TEXT: Final = f"{_UNIT}test_an_error_that_ends_the_batch_tells_a_functions_class_and_place_and_none_of_its_text"

_FUNCTIONS: Final = "tests/unit/protocol/test_functions.py::"
_FILTERS: Final = "tests/unit/consumer/test_filters.py::"

LETTERS: Final[tuple[Mutant, ...]] = (
    mutant(
        "a-failure-of-spark-s-in-a-query-with-state",
        ("spark:among", "not (is_of_function(failed) or speaks_for_itself(failed))", "False"),
        tests=(f"{_ERRORS_OF_SPARK}test_what_may_be_no_records_is_spark_s_own_error_where_there_is_no_trial",),
        why="A lost executor or a full disk would be told as refused rows, with the advice to correct a function.",
    ),
    mutant(
        "a-failure-of-spark-s-in-a-careful-batch",
        ("Whole.blame_failed", "self._recovery is not None", "self._claim is None"),
        tests=(f"{_ERRORS_OF_SPARK}test_a_failure_of_spark_s_in_a_careful_batch_is_spark_s_own_error",),
        why="Records whose key has an open letter would be written, and a lost executor would name a record to skip.",
    ),
    mutant(
        "letters-count",
        ("Transaction.write_letters", "written != len(letters)", "written > len(letters)"),
        tests=(f"{_UNIT}test_if_letters_are_swallowed_nothing_is_written",),
        why="A trigger on our table that swallows a letter would take its record with it.",
    ),
    mutant(
        "letters-of-passed-records",
        ("Transaction.write_letters", "range_ is None or ...", "range_ is None"),
        tests=("tests/unit/store/test_letters_in_transactions.py::test_a_letter_is_of_a_record_that_is_passed",),
        why="A letter of a record that is still to be read: it would be in the results, and replayed as well.",
    ),
    mutant(
        "supersede-in-lock",
        ("Transaction._lock", "if not self._is_manual: self._settle_ahead(session, _remaining(decisions), gone)", ""),
        tests=(
            f"{_UNIT}test_after_a_reset_a_record_that_passes_closes_its_letter_and_another_reopens_its_own",
            f"{_SECOND}test_a_record_that_is_good_after_a_kill_is_written_and_its_attempts_are_forgotten",
        ),
        why="After a reset a replay would write again what the job has read again.",
    ),
    mutant(
        "outages-as-refusals",
        ("_refusal", "if is_of_server(error): return stripped(error)", ""),
        tests=(f"{_POSTGRES}test_an_outage_counts_for_no_record",),
        why="While the disk is full, each record would become a letter.",
    ),
    mutant(
        "foreign-servers-that-are-away",
        ("unavailable", "state.startswith(_OF_ANOTHER_SERVER) and ...", "False"),
        tests=(f"{_POSTGRES}test_an_outage_counts_for_no_record",),
        why="While the server of a foreign table is down, records whose trigger asks it would become letters.",
    ),
    mutant(
        "failures-that-move",
        ("_MOST_RELAPSES", "20", "2000"),
        tests=(f"{_UNIT}test_a_function_that_fails_for_others_each_time_ends_the_batch[False]",),
        why="A function that fails at random would keep a batch, and the job, for ever.",
    ),
    mutant(
        "a-function-that-keeps-what-it-is-given",
        (
            "Marked.write",
            "blame_uncomputable(failed, delivery, delivery.ranges, claim)",
            "blame_uncomputable(failed, delivery, delivery.ranges, claim, print)",
        ),
        tests=(f"{_RUNNER}test_the_way_past_a_record_that_can_t_be_computed_loses_none_that_is_not_marked",),
        why="The command that an error gives would pass over good records that are only delivered.",
    ),
    mutant(
        "states-that-functions-raise",
        text("_PLPGSQL", "pl_", "none"),
        tests=(f"{_POSTGRES}test_a_record_is_a_letter_whatever_a_trigger_raises_for_it",),
        why="A record for which a trigger raises 40001 would be repeated without end.",
    ),
    mutant(
        "connections-that-functions-lose",
        ("is_connection_lost", "is_of_pooler and ...", "..."),
        tests=(f"{_SHOWN_OF_VALUES}test_a_connection_is_not_lost_because_a_trigger_says_so",),
        why="So would one for which a trigger raises 08006, on a connection that is sound.",
    ),
    mutant(
        "a-type-that-fails",
        ("_not_sent", "sql_of is not None and not isinstance(error, psycopg.Error)", "False"),
        tests=(f"{_EXECUTES}test_a_type_that_fails_in_a_functions_sql_is_an_error_of_the_function",),
        why="On a topic with one record a batch, a bug in a type would make letters of good records.",
    ),
    mutant(
        "places-after-the-text",
        (
            "_places",
            'not line.startswith(" ") or (line.startswith("  File ") and not is_place)',
            'line.startswith("  File ") and not is_place',
        ),
        tests=(f"{_UNIT}test_where_a_function_fails_is_told_and_nothing_of_the_record",),
        why="A record that quotes a traceback would stand in the log of the job that ends with it.",
    ),
    mutant(
        "places-after-a-quoted-source",
        (
            "_places",
            'not line.startswith(" ") or (line.startswith("  File ") and not is_place)',
            'not line.startswith(" ")',
        ),
        tests=(f"{_UNIT}test_where_a_function_fails_is_told_and_nothing_of_the_record",),
        why="So would a record that a parser quotes whole in a SyntaxError.",
    ),
    mutant(
        "an-error-that-was-swallowed",
        ("_refusal", "is_swallowed(error)", "not state"),
        tests=("tests/integration/writers/test_execute.py::test_an_error_that_a_function_swallows_blames_no_row",),
        why="A function that swallows an outage would have its record blamed for that.",
    ),
    mutant(
        "an-outage-after-which-sql-goes-on",
        ("_failed_first", "... and not _had_failed(one)", "... and not _had_failed(one) and not is_of_server(one)"),
        tests=("tests/integration/writers/test_execute.py::test_an_outage_after_which_sql_goes_on_is_one",),
        why="A query would end for a deadlock that a function's handler has met, in place of going on after it.",
    ),
    mutant(
        "sql-that-goes-on-after-a-refusal",
        ("refusals", "_failed_first(last)", "last"),
        tests=("tests/integration/writers/test_execute.py::test_where_sql_goes_on_after_an_error_that_one_is_told",),
        why="A bad record would block its partition, unnamed, if the function goes on after the error of its row.",
    ),
    mutant(
        "a-writer-that-fails-for-a-letter",
        (
            "_OrHalve.write",
            "try: ...\nexcept ...: raise\nexcept SinkError as error: raise Halve(error) from error",
            "try: ...\nexcept ...: raise\nexcept SinkError: raise",
        ),
        tests=(f"{_PUT_BACK}test_a_letter_for_which_a_writer_fails_keeps_no_others_waiting",),
        why="One letter for which a function swallows an error would keep all others from being replayed.",
    ),
    mutant(
        "blame-without-another-that-is-accepted",
        (
            "discover",
            "set[int]() if limit is None else trials.told_apart(doubtful, proceed)",
            "{*doubtful}",
        ),
        tests=(
            f"{_UNIT}test_where_no_other_record_is_accepted_the_query_ends_after_the_retries",
            f"{_POSTGRES}test_a_grant_that_is_missing_inside_a_trigger_blames_no_record",
        ),
        why="A grant that is missing inside a trigger would make letters of good records.",
    ),
    mutant(
        "blame-after-the-last-that-is-accepted",
        ("KeptTrials._refused_between", "refused if refused and self._keep(after) is None else set()", "refused"),
        tests=("tests/unit/processing/test_discovery.py::test_what_begins_in_the_middle_of_the_search_blames_none",),
        why="A sequence that comes to its end during the search would make letters of good records.",
    ),
    mutant(
        "blame-in-another-place",
        ("KeptTrials._refused_between", "self.probe([record]) is not None", "True"),
        tests=("tests/unit/processing/test_discovery.py::test_of_more_records_than_a_table_takes_none_is_to_blame",),
        why="Records beyond what a trigger allows would become letters, although any of them would have been accepted.",
    ),
    mutant(
        "blame-for-a-conflict",
        ("KeptTrials.told_apart", "(none, others), (first, second), (second, first)", "((none, others),)"),
        tests=(f"{_UNIT}test_a_duplicate_within_its_batch_is_a_letter_whatever_the_function_raises_for_it",),
        why="A duplicate would block its partition for good: it would be accepted in the place of all other records.",
    ),
    mutant(
        "blame-with-another",
        (
            "discover",
            "[record for record in doubtful if record not in told]",
            "[] if told else doubtful",
        ),
        tests=("tests/unit/processing/test_discovery.py::test_a_bad_record_does_not_make_others_to_blame",),
        why="One bad record would make letters of those for which there is no room.",
    ),
    mutant(
        "cause-without-another-that-is-accepted",
        ("_Bisection.is_cause", "if not self.rows and not speaks_for_itself(refused): return False", ""),
        tests=("tests/unit/processing/test_blame.py::test_what_any_record_is_refused_for_names_none",),
        why="Without dead letters, the error would tell to pass over a good record.",
    ),
    mutant(
        "attempts-that-end-in-a-stop",
        (
            "Recovery._prepare_retry",
            "self._store(plan, failed)\nif ending is not None: ...",
            "if ending is None: self._store(plan, failed)\nelse: ...",
        ),
        tests=(f"{_UNIT}test_starts_that_each_end_in_a_stop_are_one_attempt_after_the_other",),
        why="A strategy that stops until the tenth attempt would stop for ever.",
    ),
    mutant(
        "lock-during-discovery",
        ("discover", "Unit(decisions, **...)", "Unit(**...)"),
        tests=("tests/unit/processing/test_discovery.py::test_a_stale_claim_and_an_outdated_plan_pass",),
        why="Another transaction could move the offsets meanwhile, and discovery would blame records that are stored.",
    ),
    mutant(
        "attempts-count",
        (
            "Recovery._decide",
            "1 + (mine.attempts if self._settings.independent else highest.get(tp, 0))",
            "(mine.attempts if self._settings.independent else highest.get(tp, 0)) or 1",
        ),
        tests=(f"{_UNIT}test_attempts_survive_a_restart",),
        why="A bad record would be tried for ever.",
    ),
    mutant(
        "attempts-per-record",
        ("Recovery._decide", "mine.attempts if self._settings.independent else highest.get(tp, 0)", "mine.attempts"),
        tests=(f"{_UNIT}test_attempts_of_a_partition_add_up_until_it_moves_on",),
        why="Errors that come and go would hold up the partition without end: each has retries of its own.",
    ),
    mutant(
        "attempts-are-kept",
        ("Failures.end", "tx.write_failures(self.failed)", ""),
        tests=(f"{_UNIT}test_attempts_survive_a_restart", f"{_SECOND}test_attempts_survive_a_kill"),
        why="A job that a bad record kills would begin again with the first attempt.",
    ),
    mutant(
        "halve-what-is-refused-after-all",
        ("Recovery._write_without", "Halve(refused)", "refused"),
        tests=(f"{_UNIT}test_what_the_transaction_refuses_although_discovery_accepts_it_is_halved",),
        why="Rows that are accepted in another order would end the query, for good.",
    ),
    mutant(
        "halve-when-the-time-is-up",
        ("discover", "Halve(refused)", "refused"),
        tests=(f"{_UNIT}test_if_the_time_is_up_the_part_is_halved_and_each_half_is_written_alone",),
        why="A large batch with many bad records would end the query, for good.",
    ),
    mutant(
        "attempts-of-records-ahead",
        ("Recovery._before", "offset < remaining[tp].until", "offset >= 0"),
        tests=(f"{_UNIT}test_attempts_at_a_record_ahead_are_not_those_of_the_records_before_it",),
        why="After a restart with smaller batches each record that needs a retry would be a letter without one.",
    ),
    mutant(
        "attempts-of-records-that-are-decided-about",
        ("Recovery._before", "... and (tp, offset) not in dead", "..."),
        tests=(f"{_UNIT}test_attempts_at_a_record_that_cant_be_computed_are_not_those_of_one_that_is_refused",),
        why="One record that can't be computed would take away the retries of those that the database refuses.",
    ),
    mutant(
        "functions-that-fail-in-a-row",
        ("_blamed", '{"refused", "raised"}', '{"refused"}'),
        tests=(f"{_UNIT}test_records_that_cant_be_computed_are_refused_in_a_row_too",),
        why="While each record has a value that can't be read, a slow topic would drain into the letters.",
    ),
    mutant(
        "outages-that-functions-raise",
        ("function_failed", "... or any(one.is_outage for one in found) or ...", "... or ..."),
        tests=("tests/unit/spark/test_function_errors.py::test_an_outage_is_no_records",),
        why="While a service is down that a function asks, each record would become a letter.",
    ),
    mutant(
        "a-function-that-fails-for-all",
        ("_Computing.run", "self._require_any(error)", "pass"),
        tests=(f"{_SEARCH}test_what_fails_for_all_records_is_given_up_after_a_few",),
        why="A bug in a function would cost a search for each record of the batch.",
    ),
    mutant(
        "a-record-that-fails-only-with-others",
        ("_Computing.run", "self._fails(place, place + 1)", "self._fails(begin, end)"),
        tests=(f"{_SEARCH}test_a_record_that_can_be_computed_alone_is_not_to_blame",),
        why="What is too much for Spark, and passes in parts, would make a letter of a good record.",
    ),
    mutant(
        "letters-before-a-stop",
        ("Recovery._prepare_retry", "_end_before(run, part, found)", ""),
        tests=(
            f"{_UNIT}test_a_stop_makes_no_letter_of_a_record_that_needs_one_after_it",
            f"{_UNIT}test_what_is_stored_before_a_stop_ends_at_the_first_record_that_is_not_decided_about",
        ),
        why="A child whose parent comes after the record at which the query ends would become a letter, and one to "
        "be tried again would be decided about without its tries.",
    ),
    mutant(
        "names-before-a-stop",
        ("Recovery._write_without", "_end_before(run, part, new)", ""),
        tests=(f"{_UNIT}test_whatever_is_refused_before_a_stop_its_error_is_the_stop_s",),
        why="The same, where a function names the child.",
    ),
    mutant(
        "verdicts-before-a-stop",
        ("Recovery._prepare_retry", "replace(ending, **...)", "ending"),
        tests=(f"{_UNIT}test_a_record_that_was_told_apart_by_later_ones_stays_a_letter_before_a_stop",),
        why="A record would be doubtful again, and the record at which the query ends would never be named.",
    ),
    mutant(
        "a-cut-behind-bad-records-alone",
        (
            "_Computing.run",
            "self.has_rows and time.monotonic() >= deadline and begin < self.size",
            "time.monotonic() >= deadline and begin < self.size",
        ),
        tests=(f"{_UNIT}test_a_bad_record_at_the_front_is_a_letter_where_each_search_has_no_time",),
        why="A bad record at the front would end the job on every start, although others of its batch can be computed.",
    ),
    mutant(
        "failures-from-before-a-wait",
        ("Recovery._prepare_retry", "run.suspects = dict.fromkeys(run.suspects)", ""),
        tests=(f"{_UNIT}test_what_a_search_without_time_has_found_is_not_tried_again_unless_it_waits",),
        why="A record that failed during an outage, and was not tried again after it, would become a letter.",
    ),
    mutant(
        "what-a-search-has-found",
        ("_computed_without_failing", "Halve(computed, place=place, suspects=found)", "Halve(computed, place=place)"),
        tests=(
            "tests/unit/spark/test_careful.py::test_a_search_that_is_cut_again_and_again_does_not_search_again_what_it_has_found",
        ),
        why="With many bad records each cut would find all of them again, and the job would hardly move.",
    ),
    mutant(
        "a-record-that-nothing-is-compared-with",
        ("Recovery._pass_uncomputable", "[] if part.accepted else ...", "[] if part.numbers else ..."),
        tests=(f"{_UNIT}test_where_no_other_record_can_be_computed_the_query_ends_after_the_retries",),
        why="A bug in a function would make letters of all records of a slow topic.",
    ),
    mutant(
        "a-reject-that-others-are-compared-with",
        ("ComputedPart.with_rows", "n not in self.rejected and ...", "..."),
        tests=(
            "tests/unit/spark/test_careful.py::test_a_rejected_record_makes_no_rows_and_is_not_computed_after_those_that_fail",
        ),
        why="A bug in a function would make letters of records that come with a rejected one, which never reached it.",
    ),
    mutant(
        "a-function-that-fails-for-a-good-record-later",
        ("ComputedPart.fail_again", "self.failing(self.with_rows[:1]).values() if failed else ()", "()"),
        tests=("tests/unit/spark/test_careful.py::test_a_good_record_that_fails_too_shows_that_none_is_to_blame",),
        why="A service that goes down while a record is tried again would use up its retries.",
    ),
    mutant(
        "classes-in-an-errors-text",
        (
            "raised",
            'next((line for line in lines if line and not line.startswith(" ")), "")',
            "[line for line in lines if _CLASS.fullmatch(line)][-1]",
        ),
        tests=("tests/unit/spark/test_function_errors.py::test_a_functions_error_is_told_by_the_first_class_alone",),
        why="A record that says ConnectionError would end the job, for good.",
    ),
    mutant(
        "a-source-that-cant-be-read",
        ("MicroBatch.unreadable", "not is_out_of_range(error)", "function_failed(error) is None"),
        tests=(f"{_ERRORS_OF_SPARK}test_where_the_source_fails_for_a_reason_that_is_in_no_record_its_error_passes",),
        why="A missing right on the topic would name a good record, with the command that loses it.",
    ),
    mutant(
        "partitions-before-a-record-that-cant-be-computed",
        ("blame", "one[1].size", "0"),
        tests=(
            f"{_ERRORS_OF_SPARK}test_what_comes_before_a_record_that_cant_be_computed_is_stored_as_the_way_stores_it",
        ),
        why="A function that may rely on one partition a call would be given several at once.",
    ),
    mutant(
        "a-limit-in-an-errors-text",
        (
            "is_over_limit",
            "... and last.classes[0] == _SPARK and not last.condition and last.text.startswith(_OVER_LIMIT)",
            "... and _OVER_LIMIT in last.text",
        ),
        tests=(
            "tests/unit/spark/test_function_errors.py::test_words_in_a_text_are_no_sign_of_the_limit_or_of_a_lost_block",
        ),
        why="A record that quotes Spark's error would be halved, and never be a letter.",
    ),
    mutant(
        "named-records-that-were-not-given",
        ("letters:_named", "[number for number in part.numbers if number not in dead]", "part.numbers"),
        tests=(f"{_UNIT}test_a_function_can_name_only_records_that_it_was_given",),
        why="A function that names a record again and again would be called for ever.",
    ),
    mutant(
        "refused-in-a-row",
        ("Recovery._check_count", "self._refused_in_a_row + _blamed(dead)", "_blamed(dead)"),
        tests=(f"{_UNIT}test_ten_records_that_are_refused_in_a_row_over_many_batches_are_not_to_blame",),
        why="During an outage that looks like a refusal, a slow topic would drain into the letters, one by one.",
    ),
    mutant(
        "refused-in-a-row-without-rows",
        (
            "letters:_has_accepted",
            "(number not in dead for number in part.accepted)",
            "(number not in dead for number in part.numbers)",
        ),
        tests=(f"{_UNIT}test_records_without_rows_don_t_show_that_others_are_accepted",),
        why="So would a topic of which most records are filtered out.",
    ),
    mutant(
        "limit-of-the-whole-batch",
        ("Recovery._check_count", "run.letters + _count_letters(dead)", "_count_letters(dead)"),
        tests=(f"{_UNIT}test_the_limit_is_one_for_all_parts_of_a_batch",),
        why="A large batch could have the limit's number of letters in each of its parts.",
    ),
    mutant(
        "sequence-of-letters-without-records",
        (
            "DeadLetters.__post_init__",
            'self.sequence is not None and self.keep == "coordinates"',
            'self.sequence is not None and self.keep == "nothing"',
        ),
        tests=(f"{_SETTINGS}test_records_that_wait_for_a_dead_one_need_letters_that_can_be_replayed",),
        why="Good records that wait behind a dead one would be passed over for ever: nothing holds them.",
    ),
    mutant(
        "marks-of-two-functions",
        ("SinkSettings._check_unstored", "len(writers) > 1", "len(writers) > 2"),
        tests=(f"{_SETTINGS}test_manual_marking_needs_one_function_since_the_last_mark_of_several_would_count",),
        why="The mark of one function would pass records that the other one keeps for later.",
    ),
    mutant(
        "letters-of-what-is-only-delivered",
        ("Transaction._lock", "if not self._is_manual: ...", "..."),
        tests=(f"{_MEMORY}test_a_letter_is_superseded_where_its_record_is_stored_and_not_where_it_is_delivered",),
        why="A record that is never marked would have no letter any more, and nobody would decide about it.",
    ),
    mutant(
        "letters-that-are-overtaken",
        ("settle_passed", "{} if in_sequence else ...", "{} if not in_sequence else ..."),
        tests=(f"{_SEQUENCES}test_letters_are_overtaken_by_a_run_for_which_nothing_waits",),
        why="A replay would replace the row of a later record, which a run without sequences has written.",
    ),
    mutant(
        "letters-that-are-passed-are-locked-in-order",
        ("settle_passed", "session.lock_passed_letters(group, letters | below)", "pass"),
        tests=(
            "tests/integration/operations/test_letters.py::test_letters_read_again_and_below_are_locked_in_one_order",
        ),
        why="A job that reads on after a reset and a decision about all letters would wait for each other.",
    ),
    mutant(
        "letters-that-are-overtaken-in-this-run",
        ("Transaction._tell_terms", "self._terms[tp].note_sequence(offset)", "pass"),
        tests=(f"{_SEQUENCES}test_a_transaction_of_the_job_s_own_overtakes_letters_of_the_same_run",),
        why="The same, where the letters and the later record are of one run.",
    ),
    mutant(
        "replay-of-a-letter-that-was-overtaken",
        (
            "PutBack._out_of_order",
            "... and letter.is_in_sequence and ...",
            "... and letter.sequence is not None and ...",
        ),
        tests=(f"{_PUT_BACK}test_a_sequence_protects_no_newer_row_once_a_run_without_sequences_has_gone_on",),
        why="The same: that it is marked does not help if a replay does not look.",
    ),
    mutant(
        "metadata-of-a-replay",
        ("Transaction.write_metadata", "if decisions[tp].is_stored: ...", "if not decisions: ..."),
        tests=(f"{_MEMORY}test_a_replay_does_not_replace_the_metadata_of_a_later_offset",),
        why="The next owner would read the note of a batch that was replayed as that of the stored offset.",
    ),
    mutant(
        "metadata-of-a-letter",
        ("Transaction.lock_letters", "self._is_replay = True", ""),
        tests=(f"{_PUT_BACK}test_a_function_that_notes_what_it_writes_does_not_replace_a_later_note",),
        why="The same, where a letter is replayed: its transaction has an empty range at the stored offset.",
    ),
    mutant(
        "metadata-of-a-replay-in-an-advance",
        ("Transaction._not_stored", "wanted.keys() - stored if stored else wanted.keys()", "wanted.keys()"),
        tests=(f"{_MEMORY}test_a_replay_does_not_replace_the_metadata_of_a_later_offset",),
        why="The same, where the note comes with the advance, or was stored for it.",
    ),
    mutant(
        "texts-of-a-function-that-ends-the-job",
        ("Recovery.write", "_hide_texts(error)", ""),
        tests=(_NO_TEXT,),
        why="Spark logs the error with its cause, whose text may quote a record.",
    ),
    mutant(
        "texts-of-a-function-s-cause",
        ("_hide_texts", "one.__cause__, one.__suppress_context__ = (None, True)", ""),
        tests=(_NO_TEXT,),
        why="The same, where only the error itself has lost its text.",
    ),
    mutant(
        "texts-of-a-function-behind-another-error",
        ("_hide_texts", "[*chain(error)]", "[error]"),
        tests=(_NO_TEXT,),
        why="The same for TooManyLetters, which is raised from the function's error.",
    ),
    mutant(
        "lock-timeout-of-what-is-read",
        ("Claim.read", "read(self.database, query, lock_timeout=self.timeouts.lock)", "read(self.database, query)"),
        tests=(f"{_POSTGRES}test_what_a_claim_reads_waits_for_a_lock_as_long_as_its_transactions_do",),
        why="The look for misfits, in the careful way and in a replay, would wait for a locked target for ever.",
    ),
    mutant(
        "lock-timeout-of-a-target",
        ("before_rows", "is_lock_timeout(error)", "state is None"),
        tests=("tests/integration/writers/test_append.py::test_a_lock_that_is_held_elsewhere_is_told_with_its_table",),
        why="The error would not name the table that is locked, and so not its holder.",
    ),
    mutant(
        "holder-of-a-locked-target",
        ("PostgresDatabase.translate", "ours.table is not None", "ours.table is ours"),
        tests=(f"{_POSTGRES}test_a_locked_target_ends_in_a_lock_timeout_that_names_the_holder[commit]",),
        why="Nobody would know whom to ask.",
    ),
    mutant(
        "outage-in-the-search",
        ("commit", "may_pass(error) and not unit.is_spent", "may_pass(error) and unit.ending is not Ending.ROLL_BACK"),
        tests=(
            f"{_UNIT}test_an_outage_in_discovery_counts_for_no_record_and_the_search_begins_again",
            f"{_PUT_BACK}test_an_outage_in_the_search_of_a_replay_begins_the_search_again",
        ),
        why="A deadlock during the search would end the job, or a replay.",
    ),
    mutant(
        "what-a-copy-is-refused-before-the-rows",
        ("copy_batches", "with before_rows(encoding.table, target.as_string()): ...", "if True: ..."),
        tests=("tests/integration/writers/test_append.py::test_a_column_without_a_grant_is_told_before_any_row",),
        why="A missing grant on a column would be searched for in the records.",
    ),
    mutant(
        "what-an-upsert-is-refused-before-the-rows",
        ("create_temporary", "with before_rows(table, table.identifier.as_string(driver)): ...", "if True: ..."),
        tests=(_UPSERT_S_GRANT,),
        why="The same, where the role may not update the table.",
    ),
    mutant(
        "what-an-upsert-is-refused-without-a-row",
        ("create_temporary", 'execute_together(..., f"EXPLAIN {move.as_string(driver)}")', "execute_together(...)"),
        tests=(_UPSERT_S_GRANT,),
        why="It would be told with the first rows, as if these were to blame.",
    ),
    mutant(
        "copy-where-policies-apply",
        ("Append.send", "if not target.has_policies: ...", "if target.columns: ..."),
        tests=("tests/integration/writers/test_row_security.py::test_an_append_inserts_its_rows",),
        why="PostgreSQL refuses COPY there, and the job would end.",
    ),
    mutant(
        "class-of-an-exhausted-sequence",
        ("speaks_for_itself", '... and state != "2200H"', "..."),
        tests=("tests/unit/processing/test_blame.py::test_other_refusals_do_not_speak_for_themselves",),
        why="Once a sequence has come to its end, each record that is alone in its batch would become a letter.",
    ),
    mutant(
        "class-of-a-function-s-error",
        ("speaks_for_itself", "not isinstance(refused, FunctionFailed)", "True"),
        tests=(f"{_UNIT}test_where_no_other_record_can_be_computed_the_query_ends_after_the_retries",),
        why="A bug in a function would make letters of all records of a slow topic.",
    ),
    mutant(
        "outage-behind-a-function-s-error",
        ("_failing", "may_pass(one) or is_of_server(one)", "may_pass(one)"),
        tests=(f"{_EXECUTES}test_an_error_that_a_function_raises_from_an_outage_is_one",),
        why="A function that raises its own error from a deadlock's would have its record blamed for that.",
    ),
    mutant(
        "swallowed-behind-a-function-s-error",
        ("_failing", "next(filter(is_swallowed, chain(error)), None)", "None"),
        tests=(f"{_EXECUTES}test_nor_does_what_it_raises_from_the_next_one",),
        why="The same, where it has swallowed the deadlock's.",
    ),
    mutant(
        "suspects-in-time",
        ("_Computation.failing", "if time.monotonic() >= deadline: break", ""),
        tests=("tests/unit/spark/test_careful.py::test_the_look_at_records_that_have_failed_before_ends_in_time",),
        why="After a restart with many failed records, the job would write nothing for hours.",
    ),
    mutant(
        "letters-of-what-is-marked",
        ("Transaction._store_marks", "self._settle_ahead(session, ranges)", ""),
        tests=(f"{_MEMORY}test_a_letter_is_superseded_where_its_record_is_stored_and_not_where_it_is_delivered",),
        why="With marks, a letter of a record that the job has read again could be replayed: twice in the results.",
    ),
    mutant(
        "sequences-of-letters-that-were-overtaken",
        text("OPEN_SEQUENCES", "octet_length(l.sequence) = ", "octet_length(l.sequence) >= 0 * "),
        tests=(
            "tests/contract/test_postgres.py::TestPostgresOffsetStore::test_open_letters_are_overtaken_by_what_is_written_above_them",
        ),
        why="Records of a key would wait behind a letter that later rows of the key have overtaken.",
    ),
    mutant(
        "hint-as-a-verdict",
        ("_Sweep._singles_of", "hinted + ...", "..."),
        tests=("tests/unit/processing/test_discovery.py::test_a_hint_is_never_a_verdict",),
        why="A row that looks like a line of the error's context would decide about another record.",
    ),
    mutant(
        "hint-of-the-database",
        ("IntoTable.write", "self._refusals(..., copied=self.table.name)", "self._refusals(...)"),
        tests=(_HINTED,),
        why="Each bad record of a large batch would take as many tries as it can be halved, and not four.",
    ),
    mutant(
        "sql-of-a-splittable-function",
        ("_refusal", "... and not is_splittable and ...", "... and ..."),
        tests=(f"{_EXECUTES}test_wrong_sql_is_of_the_rows_only_where_single_ones_can_tell",),
        why="A record for which a function's SQL meets a missing table or type would end the job, for good.",
    ),
    mutant(
        "calls-that-end-threads",
        ("functions:call", "_is_of_signal(error)", "True"),
        tests=(f"{_FUNCTIONS}test_what_ends_programs_ends_the_call_alone",),
        why="A transform that calls sys.exit would end the whole fleet, and a tick its thread.",
    ),
    mutant(
        "calls-that-pass-for-ctrl-c",
        ("functions:_is_of_signal", "threading.current_thread() is not threading.main_thread()", "False"),
        tests=(f"{_FUNCTIONS}test_ctrl_c_passes_with_pythons_own_handler_in_the_main_thread_alone",),
        why="A KeyboardInterrupt that a function raises in a thread would pass for a stop.",
    ),
    mutant(
        "calls-that-swallow-a-stop",
        ("functions:_is_of_signal", "any(...)", "False"),
        tests=(f"{_FUNCTIONS}test_what_another_handler_raises_at_a_signal_passes",),
        why="With Spark's handler, or one of the application's, a stop would look like a failed record.",
    ),
    mutant(
        "threads-that-end-without-a-word",
        ("Background._run", "call(self._turn)", "self._turn()"),
        tests=("tests/unit/protocol/test_background.py::test_a_thread_that_is_ended_by_what_is_no_error_tells_it",),
        why="Python ignores a SystemExit in a thread: nobody would learn that heartbeats have ended.",
    ),
    mutant(
        "writers-that-leave-while-they-look",
        ("CheckedOutputs._check", "call(writer.check, ...)", "writer.check(...)"),
        tests=(
            "tests/unit/consumer/test_outputs.py::test_a_writer_that_leaves_while_it_looks_at_its_table_ends_its_call_alone",
        ),
        why="A writer's sys.exit would end the process, and with it the other members.",
    ),
    mutant(
        "bugs-that-are-records-faults",
        ("errors:exit_code", "isinstance(error, FunctionFailed) and ...", "False"),
        tests=(
            f"{_FILTERS}test_a_predicate_that_fails_for_some_records_is_their_fault_and_one_that_fails_for_all_has_a_bug",
        ),
        why="A release with a bug would look like bad data.",
    ),
    mutant(
        "records-faults-without-a-trial-alone",
        ("_Bisection.is_of_record", "self._refuses(first, begin=first - 1)", "True"),
        tests=("tests/unit/processing/test_blame.py::test_a_function_that_takes_only_so_many_records_names_none",),
        why="A function that takes only so many records would have one of them blamed.",
    ),
    mutant(
        "records-faults-without-another-row",
        ("_Bisection.is_of_record", "self.rows", "True"),
        tests=("tests/unit/processing/test_blame.py::test_a_function_that_fails_for_every_row_names_no_record",),
        why="A bug would look like bad data where other records make no rows.",
    ),
    mutant(
        "records-faults-of-a-quiet-topic",
        ("_Bisection.is_of_record", "self.has_made_rows", "False"),
        tests=(
            "tests/unit/processing/test_blame.py::test_where_no_other_record_makes_rows_those_of_earlier_deliveries_count",
        ),
        why="One bad record in a flush of its own would look like a bug of a function that has worked for days.",
    ),
    mutant(
        "endings-of-doubtful-records",
        ("letters:_end", "not run.ending.is_doubtful", "True"),
        tests=(f"{_UNIT}test_where_no_other_record_can_be_computed_the_query_ends_after_the_retries",),
        why="With dead letters, a bug of the function would end the job with the code of bad data.",
    ),
)
