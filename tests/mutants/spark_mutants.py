"""The sink: crop, plan, placement of rows in tasks, and what a task knows of its rows."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_SPARK: Final = "tests/integration/spark/"
_PLACED: Final = f"{_SPARK}test_scan.py::test_each_task_has_the_rows_of_one_partition_and_all_of_them"
_FOUND: Final = f"{_SPARK}test_targets.py::test_executors_write_to_the_table_that_the_driver_has_found"
_AGREEMENT: Final = f"{_SPARK}test_agreement.py::"
_SHARED: Final = f"{_SPARK}test_sharing.py::"
_JOBS: Final = "tests/unit/spark/test_job.py::"
_TASKS: Final = "tests/unit/spark/test_task.py::"
_COMPUTED: Final = (
    f"{_SPARK}test_dead_letters.py::test_without_dead_letters_the_error_names_the_record_that_cant_be_computed"
)
_COLLECTED: Final = "tests/unit/spark/test_collecting.py::"
_SEARCHES: Final = "tests/unit/processing/test_blame.py::"
_RUNNER: Final = "tests/unit/processing/test_runner.py::"
_CYCLES: Final = "tests/unit/processing/test_cycle.py::"


_BY_PARTITION: Final = "tests/integration/spark/test_collecting.py::"

TASKS: Final[tuple[Mutant, ...]] = (
    mutant(
        "rows-of-the-task",
        ("_Rows._checked", "if not ours: ...", "if ours is None: ..."),
        tests=(f"{_TASKS}test_rows_of_other_records_write_nothing",),
        why="Were the proof from Spark's plan wrong, rows would be committed with another partition's offset.",
    ),
    mutant(
        "rows-of-the-task-without-topic",
        ("_Rows._checked", "kafka.null_count == partition.null_count == 0", "kafka.null_count == 0"),
        tests=(f"{_TASKS}test_the_topic_may_be_left_out_and_is_no_excuse_for_the_rest",),
        why="A partition that is NULL equals none, and differs from none.",
    ),
    mutant(
        "rows-that-the-writer-left",
        ("_Rows.write", "for _ in self._filled: pass", ""),
        tests=(f"{_TASKS}test_rows_that_the_writer_leaves_are_looked_at_all_the_same",),
        why="What a writer leaves would not be checked.",
    ),
    mutant(
        "end-of-stream-before-the-commit",
        ("_Rows.write", "self._check_whole()", ""),
        tests=(f"{_TASKS}test_rows_that_were_cut_off_write_nothing",),
        why="An executor that dies looks like the end of the rows: the offset would move over those that never came.",
    ),
    mutant(
        "end-of-stream-without-rows",
        ("_Rows.begin", "self._check_whole()", ""),
        tests=(f"{_TASKS}test_rows_that_were_cut_off_write_nothing",),
        why="The same, where the executor dies before the first row: as if a filter had dropped all.",
    ),
    mutant(
        "end-of-stream",
        ("spark:_read", "raise InputCutOff", 'return b"\\xff\\xff\\xff\\xff"'),
        tests=("tests/unit/spark/test_record_batches.py::test_an_end_anywhere_else_is_none",),
        why="The same, at its root: Spark sends a sign after the last row.",
    ),
    mutant(
        "results-cut-off",
        ("Parts.run", "len(results) != expected", "not expected"),
        tests=("tests/unit/spark/test_record_batches.py::test_results_that_did_not_arrive_are_missed",),
        why="A task whose report is lost would count as one that had no rows: the offsets would move over its records.",
    ),
    mutant(
        "re-plan-in-a-task",
        ("_lock_as_planned", "if locked != unit.decisions: ...", ""),
        tests=(f"{_TASKS}test_a_partition_that_has_moved_since_it_was_planned_is_left_to_a_new_plan",),
        why="Rows that were planned for an older offset would be written beside those that moved it.",
    ),
    mutant(
        "skip-in-a-task",
        ("Tasks.perform", "TaskEnding.SKIPPED if outdated.is_stored else TaskEnding.OUTDATED", "TaskEnding.OUTDATED"),
        tests=(f"{_TASKS}test_a_partition_that_another_attempt_has_written_is_skipped",),
        why="A batch whose tasks had a speculative twin each would be planned again and again.",
    ),
)

BATCHES: Final[tuple[Mutant, ...]] = (
    mutant(
        "collected-rows-in-order",
        ("Rows.put_in_order", "[self._places[number] for number in order]", "list(self._places)"),
        tests=(f"{_COLLECTED}test_rows_can_be_put_in_order",),
        why="Of equal versions, the last row of the DataFrame wins.",
    ),
    mutant(
        "collected-parts-that-are-lost",
        ("spark:_by_partition", "if block.isEmpty(): ...", "if block.isEmpty(): continue"),
        ("spark:_by_partition", "if count: ...", ""),
        tests=(f"{_BY_PARTITION}test_rows_that_an_executor_loses_before_they_are_fetched_are_not_computed_again",),
        why="The offset would move over rows that an executor has lost. The count alone would see it: both go.",
    ),
    mutant(
        "file-manager-of-state",
        (
            "_check_file_manager",
            'manager and manager.endswith(".FileSystemBasedCheckpointFileManager") and not root.startswith("file:")',
            'manager is None and manager == ".FileSystemBasedCheckpointFileManager" and not root.startswith("file:")',
        ),
        tests=("tests/unit/spark/test_file_manager.py::test_the_tuned_manager_is_refused_on_another_file_system",),
        why="A state file that is not replaced would hold other state than the results.",
    ),
    mutant(
        "session-of-other-queries",
        (
            "tuned",
            "given = {name.lower() for name in options}",
            'spark.conf.set(MANAGER, "")\ngiven = {name.lower() for name in options}',
        ),
        tests=(
            "tests/unit/spark/test_tuning.py::test_options_are_added_to_those_of_the_source_and_nothing_of_the_session_is_touched",
        ),
        why="Other queries of the session would keep their checkpoints by another file manager.",
    ),
    mutant(
        "reader-at-the-first-batch",
        ("_check_sources", "check_reader(options.get)", 'options.get("")'),
        tests=(
            f"{_SPARK}test_unsupported.py::test_a_reader_with_another_start_or_an_end_is_refused_at_the_first_batch[startingtimestamp]",
        ),
        why="A query that begins elsewhere than the claim has resolved would end in a gap, or read for nothing.",
    ),
    mutant(
        "booleans-in-small-letters",
        ("spark_boolean", "value.strip().lower()", "value.strip()"),
        tests=(
            "tests/unit/spark/test_sink.py::test_a_sink_with_a_handler_replays_no_letters_where_tasks_run_twice[TRUE]",
        ),
        why="Spark reads TRUE as true, and would run slow tasks twice, with their calls.",
    ),
    mutant(
        "booleans-that-are-none",
        (
            "spark_boolean",
            "(word := value.strip().lower()) not in {'true', 'false'}",
            "not (word := value.strip().lower())",
        ),
        tests=(
            "tests/unit/kafka/test_options.py::test_what_spark_takes_for_no_boolean_is_none_here[yes-includeHeaders]",
        ),
        why="A setting that Spark refuses would be read as false.",
    ),
    mutant(
        "drain-where-tasks-run-twice",
        ("TransactionalSink.drain", "if self._outputs.handler is not None: ...", ""),
        tests=(
            "tests/unit/spark/test_sink.py::test_a_sink_with_a_handler_replays_no_letters_where_tasks_run_twice[true]",
        ),
        why="The calls of a replay would be made twice at once.",
    ),
    mutant(
        "query-where-tasks-run-twice",
        ("TransactionalSink._begin", "refuse_speculation(spark)", ""),
        tests=(f"{_SPARK}test_handlers.py::test_a_query_where_spark_runs_slow_tasks_twice_makes_no_call",),
        why="The calls of a batch would be made twice at once.",
    ),
    mutant(
        "crop",
        ("MicroBatch.part", "self.frame if part == self.ranges and not without else ...", "self.frame"),
        tests=(f"{_SPARK}test_replay.py::test_each_partition_of_a_batch_is_cropped_at_its_own_stored_offset",),
        why="A replayed batch that reaches further than the first time would be written whole.",
    ),
    mutant(
        "crop-by-one-more",
        ("within", "offset >= begin", "offset > begin"),
        tests=(f"{_SPARK}test_replay.py::test_each_partition_of_a_batch_is_cropped_at_its_own_stored_offset",),
        why="The first record that is not in the results yet would be lost.",
    ),
    mutant(
        "re-plan",
        ("_lock_as_planned", "if locked != unit.decisions: ...", ""),
        tests=(f"{_CYCLES}test_a_batch_is_planned_again_if_a_stored_offset_changed_while_it_was_computed",),
        why="Rows that were cropped for an older offset would be written beside those that moved it. With the plan's "
        "own ends, advance would refuse that: so both go.",
    ),
    mutant(
        "topic-id-of-each-batch",
        ("commit_plan", "check_topics(claim, plan.stored, plan.decisions)", ""),
        tests=(f"{_CYCLES}test_a_topic_that_is_recreated_while_the_batch_is_computed_stops_it",),
        why="Records of a topic that was recreated in mid run have the old one's offsets: they would be mixed.",
    ),
)

REFUSED: Final[tuple[Mutant, ...]] = (
    mutant(
        "refused-once-more",
        ("_Bisection.first_refused", "not self._refuses(self.size)", "self.size == 0"),
        tests=(f"{_SEARCHES}test_a_refusal_that_does_not_recur_names_no_record",),
        why="A parent that arrives a moment later would leave the batch's last record accused.",
    ),
    mutant(
        "accepted-without-the-record",
        ("blame", "repeats() and search.is_cause(first)", "repeats()"),
        tests=(
            f"{_SEARCHES}test_a_record_that_a_later_one_makes_good_is_not_blamed",
            f"{_SEARCHES}test_a_function_that_fails_for_every_row_names_no_record",
        ),
        why="The error would offer to pass over a good record, which a later one makes good, or which met a bug.",
    ),
    mutant(
        "named-without-a-trial",
        (
            "_Bisection.is_cause",
            "not self._refuses(first, begin=first - 1)",
            "not self.size",
        ),
        tests=(
            f"{_SEARCHES}test_of_records_that_are_refused_together_the_last_is_told_without_a_command",
            f"{_SEARCHES}test_a_function_that_takes_only_so_many_records_names_none",
        ),
        why="Of a batch with more records than a function takes, the error would offer to pass over a good one.",
    ),
    mutant(
        "record-that-is-first-refused-is-not-stored",
        ("_Bisection._refuses", "not (without or begin) and count < self.fewest", "not (without or begin)"),
        tests=(
            f"{_SEARCHES}test_a_first_record_that_is_accepted_when_it_is_tried_alone_is_not_stored_and_refused_at_once",
        ),
        why="The error would name a record as refused that is in the results.",
    ),
    mutant(
        "named-beside-other-bad-records",
        ("_Bisection.is_cause", "len(others) == _MAX_OTHERS", "len(others) == 0"),
        tests=(f"{_SEARCHES}test_bad_records_of_two_kinds_are_told_one_after_the_other",),
        why="Beside a second bad record, the error would give no command.",
    ),
    mutant(
        "whichever-others-are-there",
        (
            "_Bisection.is_cause",
            "range(1, len(others) + 1)",
            "[len(others)] if others else []",
        ),
        tests=(f"{_SEARCHES}test_two_legs_of_an_entry_do_not_accuse_each_other",),
        why="Two records that need each other would each look bad without the other.",
    ),
    mutant(
        "whichever-others-are-there-in-the-database",
        ("_Bisection.is_cause", "if self.only_computed: return True", "return True"),
        tests=(f"{_SEARCHES}test_two_legs_of_an_entry_do_not_accuse_each_other",),
        why="Only what can't be computed alone can't be beside others: of two legs of an entry, one would look bad.",
    ),
    mutant(
        "one-record-more-than-a-table-allows",
        ("_Bisection.is_cause", "one_more is None or self._refuses(self.size, [*others, one_more])", "True"),
        tests=(f"{_SEARCHES}test_of_more_records_than_a_table_allows_none_is_named",),
        why="Of a batch with more rows than a table allows, the error would offer to pass over a good record.",
    ),
    mutant(
        "rows-by-chance",
        ("blame", "repeats() and ...", "..."),
        tests=(f"{_SEARCHES}test_a_transform_that_makes_other_rows_each_time_names_no_record",),
        why="Of rows that differ each time, the one that was refused last would be accused.",
    ),
    mutant(
        "functions-with-chance",
        ("blame_uncomputable", "delivery.repeats", "lambda: True"),
        tests=(f"{_RUNNER}test_of_rows_that_differ_each_time_no_record_is_shown_to_be_the_one_that_cant_be_computed",),
        why="A function that fails by chance would have an innocent record named, with the command that skips it.",
    ),
    mutant(
        "record-that-can-t-be-computed",
        ("Whole.write", "self.blame_failed(failed, delivery, stored)", "failed"),
        tests=(f"{_COMPUTED}[way0-4]",),
        why="The error would not say which record it is, and the records before it would not be stored.",
    ),
    mutant(
        "record-that-a-task-can-t-compute",
        ("PerPartition._attempt", "self._whole.blame_failed(failed, batch, stored)", "failed"),
        tests=(f"{_COMPUTED}[way1-4]",),
        why="The same, where tasks compute the rows.",
    ),
    mutant(
        "records-before-it-of-what-is-kept",
        ("Buffered.write", "self.flush()", "None"),
        tests=(
            "tests/unit/processing/test_buffered.py::test_a_record_that_can_t_be_computed_is_passed_over_by_the_command",
        ),
        why="With a buffer, a record would be searched for before the batches that are kept are stored.",
    ),
    mutant(
        "record-that-spark-s-source-can-t-read",
        ("unreadable", "(next_step := delivery.unreadable()) is None", "(next_step := str(delivery)) is not None"),
        tests=(
            f"{_SPARK}test_dead_letters.py::test_a_record_that_sparks_source_cant_read_is_named_with_the_way_past_it[settings0]",
        ),
        why="The error would not say how to pass a record that no query can read.",
    ),
    mutant(
        "reset-for-one-stored-offset",
        ("ResetOffsets._move", "row.next_offset != self.from_offset", "row.next_offset < 0"),
        tests=(
            "tests/integration/operations/test_resets.py::test_a_reset_for_one_stored_offset_does_nothing_at_another",
        ),
        why="The command that an error gave, run late, would move a job back that has gone on.",
    ),
    mutant(
        "records-before-the-refused-one",
        ("blame", "{} if store is None else cut(ranges, 0, search.accepted)", "{}"),
        tests=(
            f"{_SEARCHES}test_what_comes_before_the_named_record_is_stored_and_a_reset_passes_over_that_record_alone",
        ),
        why="The reset that the error offers would lose every good record before the refused one.",
    ),
    mutant(
        "records-before-that-are-refused",
        (
            "blame",
            "suspects, first, is_cause = ({tp: one for tp, one in ranges.items() if tp not in stored}, 0, False)",
            "suspects = {tp: one for tp, one in ranges.items() if tp not in stored}",
        ),
        tests=(f"{_SEARCHES}test_where_what_was_accepted_is_refused_when_it_is_stored_no_record_is_named",),
        why="The same, where the records before it could not be stored.",
    ),
    mutant(
        "records-before-and-no-others",
        (
            "Plan.up_to",
            "OffsetRange(..., range_.until)",
            "OffsetRange(..., max(range_.until, self.decisions[tp].range.until))",
        ),
        tests=(f"{_CYCLES}test_the_part_of_a_batch_before_a_record_is_stored_alone",),
        why="The offset would move over the refused record and all behind it, with the records before it.",
    ),
)

PLACEMENT: Final[tuple[Mutant, ...]] = (
    mutant(
        "proof-of-one-task-a-partition",
        (
            "_proven",
            "found = dict(read)\nif len(found) != len(read): ...",
            "found = dict(ranges)\nif not found: ...",
        ),
        tests=(f"{_PLACED}[several tasks a partition]",),
        why="[0, 400) can come as three tasks: the first to commit would move the offset over the others' rows.",
    ),
    mutant(
        "proof-of-one-to-one-dependencies",
        ("_narrow_root", "dependencies[0].getClass().getName() != _ONE_TO_ONE", "simple_name(rdd) == _SCAN"),
        ("_proven", "simple_name(scan) != _SCAN", "scan is None"),
        tests=(f"{_PLACED}[a shuffle]",),
        why="After a shuffle a task has rows of every partition.",
    ),
    mutant(
        "proof-left-out",
        ("place", "_proven(parts.rdd, ranges)", "list(ranges)"),
        tests=(f"{_PLACED}[several tasks a partition]",),
        why="All of it: tasks taken for partitions because that is what Spark does by default.",
    ),
)

TARGETS: Final[tuple[Mutant, ...]] = (
    mutant(
        "target-found-by-the-driver",
        ("CheckedOutputs._check", "writer.resolve_table(connection)", "repr(writer)"),
        tests=(_FOUND,),
        why="Executors do not run the listeners of the driver's engine: their rows went to another schema.",
    ),
    mutant(
        "target-of-each-sink",
        ("CheckedOutputs.__init__", "copy(writer)", "writer"),
        tests=(_FOUND,),
        why="A writer that serves two stores would carry the first one's schema into the second.",
    ),
)

AGREEMENT: Final[tuple[Mutant, ...]] = (
    mutant(
        "what-outputs-share",
        ("_Shared._search", "self._may_differ(node)", "node is None"),
        tests=(f"{_SHARED}test_what_outputs_share_is_computed_once[from_a_function]",),
        why="Orders and their lines would have other ids, since Spark computes each output apart.",
    ),
    mutant(
        "lineage-of-what-outputs-share",
        ("_Sharing._materialize", "if is_ours: ...", "if rdd is None: ..."),
        tests=(f"{_AGREEMENT}test_a_lost_part_of_what_is_shared_is_not_computed_again_for_one_output_alone",),
        why="A block that is lost would be computed again with other values, between two outputs.",
    ),
    mutant(
        "blocks-of-what-outputs-share",
        ("computed_once", "if not sharing.is_intact(): raise PlanOutdated(_LOST)", ""),
        tests=(f"{_SHARED}test_a_lost_block_makes_the_outputs_outdated",),
        why="A speculative twin's block has other values than the one that the first output was made of.",
    ),
    mutant(
        "one-clock",
        ("_Sharing._with_one_clock", "not any(...)", "plans"),
        tests=(f"{_AGREEMENT}test_outputs_that_look_at_the_clock_apart_see_the_same_time",),
        why="Rows of one batch would have other times of loading in each table.",
    ),
)

_BUFFERING: Final = "tests/unit/processing/test_buffered.py::"
_MARKING: Final = f"{_SPARK}test_marking.py::"
_RUNS: Final = "tests/unit/processing/test_runner.py::"

KEPT: Final[tuple[Mutant, ...]] = (
    mutant(
        "kept-although-it-failed",
        ("Buffered._flush_with", "self._buffer.remove([last])", ""),
        tests=(f"{_BUFFERING}test_of_refused_rows_the_batches_before_them_are_written[in the last, behind another]",),
        why="The batch that can be searched would be written among those that are kept, and its record not found.",
    ),
    mutant(
        "delivered-by-this-run",
        ("Buffered.write", "lambda _: kept_until", "lambda _: {}"),
        tests=(f"{_BUFFERING}test_of_refused_rows_the_batches_before_them_are_written[in the last]",),
        why="What is kept would be decided on again, as if it had not been delivered.",
    ),
    mutant(
        "flush-at-the-end",
        ("Between._finish", "self._buffered.has_any and not self._claim.is_lost", "self._claim.is_lost"),
        tests=(
            "tests/unit/processing/test_between.py::test_what_is_left_is_flushed_at_the_end_or_forgotten_if_the_claim_is_lost",
        ),
        why="A job that ends well would leave its last rows to the next start.",
    ),
    mutant(
        "one-lock-for-the-sink",
        (
            "Runner.run",
            "while not self._lock.acquire(timeout=LOOK): ...",
            "self._lock = threading.RLock()\nself._lock.acquire()",
        ),
        tests=(f"{_RUNS}test_idle_work_waits_for_a_batch",),
        why="A flush by the clock would write a batch that is just being kept, or fail.",
    ),
    mutant(
        "one-sink-for-what-is-kept",
        ("Runner.begin", "self.claim.reserve()", "pass"),
        tests=(f"{_RUNS}test_a_second_runner_on_the_claim_is_refused",),
        why="The offsets would move over what another sink keeps.",
    ),
    mutant(
        "checkpoint-beyond-what-is-stored",
        ("SinkSettings.check_query", "self.has_unstored and ...", "not self.has_unstored and ..."),
        tests=(f"{_MARKING}test_a_checkpoint_that_outlives_the_claim_is_refused",),
        why="The next start would begin above what is stored, and fail for ever.",
    ),
    mutant(
        "row-of-what-is-kept",
        ("Buffered.write", "create_rows(claim, plan)", ""),
        tests=(f"{_BUFFERING}test_the_first_records_of_a_new_partition_are_not_forgotten_with_the_buffer",),
        why="After a crash nothing would show that they are missing, if no broker says where the partition begins.",
    ),
    mutant(
        "once-for-a-function-that-keeps-rows",
        ("commit", "may_pass(error) and not unit.is_spent", "may_pass(error)"),
        tests=(f"{_RUNS}test_a_function_that_keeps_rows_is_not_called_again",),
        why="The function's own memory is not rolled back: rows would be lost and doubled.",
    ),
    mutant(
        "sink-whose-function-has-failed",
        ("_InMemory.require_whole", "self._broken_by is not None", "False"),
        tests=(f"{_RUNS}test_a_function_that_keeps_rows_is_not_called_again",),
        why="The same, where the query is started again on the same sink.",
    ),
    mutant(
        "search-with-marks",
        ("Runner._policy", 'settings.marking == "manual"', 'settings.marking == "never"'),
        tests=(f"{_RUNS}test_rows_that_a_function_is_refused_are_not_searched_for",),
        why="A function that keeps rows would be given them again and again.",
    ),
)

JOBS: Final[tuple[Mutant, ...]] = (
    mutant(
        "stop-after-the-batch",
        ("Job._wait", "sink.stop(query)", "query.stop()"),
        tests=(f"{_JOBS}test_a_signal_leaves_the_batch_to_the_sink_and_then_closes_the_claim",),
        why="Each deploy would interrupt a batch, whose work is done again.",
    ),
    mutant(
        "close-that-a-signal-cuts",
        (
            "Job.run",
            "try: ...\nexcept ... as ended: ...\nfinally: ...",
            "try: ...\nexcept ... as ended: ...\nfinally:\n    self._is_running = False\n    ...",
        ),
        tests=(f"{_JOBS}test_a_signal_while_the_claim_is_being_closed_cuts_nothing_and_hides_no_error",),
        why="A flush would be cut, and a job that has failed would end with exit code 0, without a word.",
    ),
    mutant(
        "start-of-a-query-that-has-ended",
        ("Job._wait", "if not is_checked: ...", "if False: ..."),
        tests=(f"{_JOBS}test_where_a_query_starts_is_compared_once_also_if_it_has_ended_before_the_first_look",),
        why="A job with a checkpoint above what is stored would end well each time, until records come.",
    ),
    mutant(
        "exit-code-of-a-job",
        ("Job.__exit__", "int(exit_code(told))", "1"),
        tests=(f"{_JOBS}test_an_error_is_told_in_a_few_lines_and_becomes_the_exit_code",),
        why="A supervisor would start a job again that was fenced, which takes the group back.",
    ),
    mutant(
        "sink-that-was-refused",
        ("TransactionalSink.__init__", "self._check_early()", ""),
        ("TransactionalSink.__init__", "claim.observers.on(...)", "claim.observers.on(...)\nself._check_early()"),
        tests=("tests/unit/spark/test_sink.py::test_a_sink_that_is_refused_leaves_nothing_behind",),
        why="The corrected sink would be refused, too, since the claim belonged to the first.",
    ),
)

SPARK: Final = (*JOBS, *TASKS, *BATCHES, *REFUSED, *PLACEMENT, *TARGETS, *AGREEMENT, *KEPT)
