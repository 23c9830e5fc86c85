"""The sink: crop, plan, placement of rows in tasks, and what a task knows of its rows."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_JOB: Final = "offsetstore/spark/run_job.py"
_BATCH: Final = "offsetstore/spark/ways/batch.py"
_CYCLE: Final = "offsetstore/processing/cycle.py"
_TASK: Final = "offsetstore/spark/executors/task.py"
_SCAN: Final = "offsetstore/spark/plans/scan.py"
_OUTPUTS: Final = "offsetstore/spark/outputs.py"

_SPARK: Final = "tests/integration/spark/"
_PLACED: Final = f"{_SPARK}test_scan.py::test_each_task_has_the_rows_of_one_partition_and_all_of_them"
_FOUND: Final = f"{_SPARK}test_targets.py::test_executors_write_to_the_table_that_the_driver_has_found"
_SHARING: Final = "offsetstore/spark/plans/sharing.py"
_AGREEMENT: Final = f"{_SPARK}test_agreement.py::"
_SHARED: Final = f"{_SPARK}test_sharing.py::"
_JOBS: Final = "tests/unit/spark/test_job.py::"
_TASKS: Final = "tests/unit/spark/test_task.py::"
_BUFFERED: Final = "offsetstore/spark/ways/buffered.py"
_COMPUTED: Final = (
    f"{_SPARK}test_dead_letters.py::test_without_dead_letters_the_error_names_the_record_that_cant_be_computed"
)
_COLLECTING: Final = "offsetstore/spark/collecting.py"
_COLLECTED: Final = "tests/unit/spark/test_collecting.py::"
_POISON: Final = "offsetstore/processing/isolate.py"
_SEARCHES: Final = "tests/unit/processing/test_isolate.py::"
_CYCLES: Final = "tests/unit/processing/test_cycle.py::"

_RE_PLAN: Final = """\
    if any(locked[tp] != decision for tp, decision in decisions.items()):
        raise PlanOutdated
"""
_SKIP_IN_A_TASK: Final = """\
            if locked.outcome is Outcome.SKIP:
                raise _RolledBack(Ending.SKIPPED)
"""
_RE_PLAN_IN_A_TASK: Final = """\
            if locked != decision:
                raise _RolledBack(Ending.OUTDATED)
"""

TASKS: Final[tuple[Mutant, ...]] = (
    mutant(
        "rows-of-the-task",
        (_TASK, "        if not ours:\n", "        if ours is None:\n"),
        tests=(f"{_TASKS}test_rows_of_other_records_write_nothing",),
        why="Were the proof from Spark's plan wrong, rows would be committed with another partition's offset.",
    ),
    mutant(
        "rows-of-the-task-without-topic",
        (_TASK, "kafka.null_count == partition.null_count == 0", "kafka.null_count == 0"),
        tests=(f"{_TASKS}test_the_topic_may_be_left_out_and_is_no_excuse_for_the_rest",),
        why="A partition that is NULL equals none, and differs from none.",
    ),
    mutant(
        "rows-that-the-writer-left",
        (_TASK, "        for _ in self._filled:\n            pass\n        self._check", "        self._check"),
        tests=(f"{_TASKS}test_rows_that_the_writer_leaves_are_looked_at_all_the_same",),
        why="What a writer leaves would not be checked.",
    ),
    mutant(
        "end-of-stream-before-the-commit",
        (_TASK, "            pass\n        self._check_whole()\n", "            pass\n"),
        tests=(f"{_TASKS}test_rows_that_were_cut_off_write_nothing",),
        why="An executor that dies looks like the end of the rows: the offset would move over those that never came.",
    ),
    mutant(
        "end-of-stream-without-rows",
        (_TASK, "            return True\n        self._check_whole()\n", "            return True\n"),
        tests=(f"{_TASKS}test_rows_that_were_cut_off_write_nothing",),
        why="The same, where the executor dies before the first row: as if a filter had dropped all.",
    ),
    mutant(
        "end-of-stream",
        (
            "offsetstore/spark/executors/record_batches.py",
            "    if len(found) != length:\n        raise InputCutOff\n",
            '    if len(found) != length:\n        return b"\\xff\\xff\\xff\\xff"\n',
        ),
        tests=("tests/unit/spark/test_record_batches.py::test_an_end_anywhere_else_is_none",),
        why="The same, at its root: Spark sends a sign after the last row.",
    ),
    mutant(
        "results-cut-off",
        (
            "offsetstore/spark/executors/record_batches.py",
            "        if len(results) != expected:\n",
            "        if not expected:\n",
        ),
        tests=("tests/unit/spark/test_record_batches.py::test_results_that_did_not_arrive_are_missed",),
        why="Rows of a task whose report is lost would stay in staging, and the offsets would move over them.",
    ),
    mutant(
        "re-plan-in-a-task",
        (_TASK, _RE_PLAN_IN_A_TASK, ""),
        tests=(f"{_TASKS}test_a_partition_that_has_moved_since_it_was_planned_is_left_to_a_new_plan",),
        why="Rows that were planned for an older offset would be written beside those that moved it.",
    ),
    mutant(
        "skip-in-a-task",
        (
            _TASK,
            _SKIP_IN_A_TASK + _RE_PLAN_IN_A_TASK,
            "",
        ),
        tests=(f"{_TASKS}test_a_partition_that_another_attempt_has_written_is_skipped",),
        why="A speculative twin would write what its original has written. Alone, the re-plan would see it: both go.",
    ),
)

BATCHES: Final[tuple[Mutant, ...]] = (
    mutant(
        "collected-rows-in-order",
        (_COLLECTING, "[self._places[number] for number in order]", "list(self._places)"),
        tests=(f"{_COLLECTED}test_rows_can_be_put_in_order",),
        why="Of equal versions, the last row of the DataFrame wins.",
    ),
    mutant(
        "file-manager-of-state",
        (
            "offsetstore/spark/ways/stateful.py",
            '    if manager and manager.endswith(".FileSystemBasedCheckpointFileManager")',
            '    if manager is None and manager == ".FileSystemBasedCheckpointFileManager"',
        ),
        tests=("tests/unit/spark/test_file_manager.py::test_the_tuned_manager_is_refused_on_another_file_system",),
        why="A state file that is not replaced would hold other state than the results.",
    ),
    mutant(
        "session-of-other-queries",
        (
            "offsetstore/spark/tuning.py",
            "    given = {name.lower() for name in options}\n",
            '    spark.conf.set(MANAGER, "")\n    given = {name.lower() for name in options}\n',
        ),
        tests=(
            "tests/unit/spark/test_tuning.py::test_options_are_added_to_those_of_the_source_and_nothing_of_the_session_is_touched",
        ),
        why="Other queries of the session would keep their checkpoints by another file manager.",
    ),
    mutant(
        "reader-at-the-first-batch",
        (
            "offsetstore/spark/plans/admission.py",
            "            check_reader(options.get)\n",
            '            options.get("")\n',
        ),
        tests=(
            f"{_SPARK}test_unsupported.py::test_a_reader_with_another_start_or_an_end_is_refused_at_the_first_batch[startingtimestamp]",
        ),
        why="A query that begins elsewhere than the claim has resolved would end in a gap, or read for nothing.",
    ),
    mutant(
        "crop",
        (
            "offsetstore/spark/cropping.py",
            '    return batch.where(F.col("offset") >= first)\n',
            "    return batch if first is not None else batch\n",
        ),
        tests=(f"{_SPARK}test_replay.py::test_each_partition_of_a_batch_is_cropped_at_its_own_stored_offset",),
        why="A replayed batch that reaches further than the first time would be written whole.",
    ),
    mutant(
        "crop-by-one-more",
        ("offsetstore/spark/cropping.py", 'F.col("offset") >= first', 'F.col("offset") > first'),
        tests=(f"{_SPARK}test_replay.py::test_each_partition_of_a_batch_is_cropped_at_its_own_stored_offset",),
        why="The first record that is not in the results yet would be lost.",
    ),
    mutant(
        "re-plan",
        (_CYCLE, _RE_PLAN, ""),
        tests=(f"{_CYCLES}test_a_batch_is_planned_again_if_a_stored_offset_changed_while_it_was_computed",),
        why="Rows that were cropped for an older offset would be written beside those that moved it. With the plan's "
        "own ends, advance would refuse that: so both go.",
    ),
    mutant(
        "topic-id-of-each-batch",
        (_CYCLE, "        check_topics(claim, plan.stored, plan.decisions)\n", ""),
        tests=(f"{_CYCLES}test_a_topic_that_is_recreated_while_the_batch_is_computed_stops_it",),
        why="Records of a topic that was recreated in mid run have the old one's offsets: they would be mixed.",
    ),
)

REFUSED: Final[tuple[Mutant, ...]] = (
    mutant(
        "refused-once-more",
        (_POISON, "        if not search.refuses(search.size):\n", "        if search.size == 0:\n"),
        tests=(f"{_SEARCHES}test_a_refusal_that_does_not_recur_names_no_record",),
        why="A parent that arrives a moment later would leave the batch's last record accused.",
    ),
    mutant(
        "accepted-without-the-record",
        (_POISON, "(needed is Proof.BATCH and search.is_cause(first, search.error))", "needed is Proof.BATCH"),
        tests=(f"{_SEARCHES}test_a_record_that_a_later_one_makes_good_is_not_blamed",),
        why="The error would offer to pass over a good record, which a later one makes good.",
    ),
    mutant(
        "named-by-a-bug",
        (_POISON, "needed is Proof.ROW and search.is_of_record(first, search.error)", "needed is Proof.ROW"),
        tests=(f"{_SEARCHES}test_a_function_that_fails_for_every_row_names_no_record",),
        why="After a deploy with a bug, the error would offer to pass over a good record.",
    ),
    mutant(
        "named-without-a-trial",
        (_POISON, "        if not self.refuses(first, begin=first - 1):\n            return False\n", ""),
        tests=(f"{_SEARCHES}test_a_function_that_takes_only_so_many_records_names_none",),
        why="Of a batch with more records than a function takes, the error would offer to pass over a good one.",
    ),
    mutant(
        "named-as-nothing-is-accepted-any-more",
        (_POISON, "        self.has_rows = False\n        if first > 1", "        if first > 1 and not self.has_rows"),
        tests=(f"{_SEARCHES}test_a_quota_that_is_used_up_during_the_search_names_no_record",),
        why="Once a function's quota is used up, the error would offer to pass over a good record.",
    ),
    mutant(
        "whichever-others-are-there",
        (_POISON, "for count in range(1, len(others) + 1)", "for count in [len(others)] if others"),
        tests=(f"{_SEARCHES}test_two_legs_of_an_entry_do_not_accuse_each_other",),
        why="Two records that need each other would each look bad without the other.",
    ),
    mutant(
        "refused-by-the-database",
        (_POISON, "return refused.sqlstate is None and", "return"),
        tests=(f"{_SEARCHES}test_only_a_value_that_was_refused_before_it_was_sent_is_proven_by_itself",),
        why="What a trigger or a CHECK refuses another record may lift, whatever the SQLSTATE.",
    ),
    mutant(
        "rows-by-chance",
        (
            _POISON,
            "        needed = proof(search.error)\n",
            "        needed = proof(search.error)\n        needed = Proof.BATCH if needed is Proof.NONE else needed\n",
        ),
        tests=(f"{_SEARCHES}test_a_transform_that_makes_other_rows_each_time_names_no_record",),
        why="Of rows that differ each time, the one that was refused last would be accused.",
    ),
    mutant(
        "record-that-can-t-be-computed",
        (
            _BATCH,
            "            raise self.name_record(failed, batch) from error\n",
            "            raise failed from error\n",
        ),
        tests=(f"{_COMPUTED}[way0-4]",),
        why="The error would not say which record it is, and the records before it would not be stored.",
    ),
    mutant(
        "record-that-a-task-can-t-compute",
        (
            "offsetstore/spark/ways/partition.py",
            "            raise self._driver.name_record(failed, batch) from error\n",
            "            raise failed from error\n",
        ),
        tests=(f"{_COMPUTED}[way1-4]",),
        why="The same, where tasks compute the rows.",
    ),
    mutant(
        "records-before-it-of-what-is-kept",
        (
            _BUFFERED,
            "    def _stores_parts(self) -> bool:\n        return False\n",
            "    def _stores_parts(self) -> bool:\n        return True\n",
        ),
        tests=(f"{_COMPUTED}[way2-0]",),
        why="With a buffer, a part of a batch would be stored before the batches that are kept.",
    ),
    mutant(
        "record-that-spark-s-source-can-t-read",
        (_BATCH, "        if not _can_read(frame):\n", "        if frame is None:\n"),
        tests=(
            f"{_SPARK}test_dead_letters.py::test_a_record_that_sparks_source_cant_read_is_named_with_the_way_past_it[settings0]",
        ),
        why="The error would not say how to pass a record that no query can read.",
    ),
    mutant(
        "reset-for-one-stored-offset",
        ("offsetstore/store/admin.py", "row.next_offset != self.from_offset", "row.next_offset < 0"),
        tests=("tests/integration/store/test_resets.py::test_a_reset_for_one_stored_offset_does_nothing_at_another",),
        why="The command that an error gave, run late, would move a job back that has gone on.",
    ),
    mutant(
        "records-before-the-refused-one",
        (_POISON, "    if accepted:\n", "    if verdict is None:\n"),
        tests=(
            f"{_SEARCHES}test_what_comes_before_the_named_record_is_stored_and_a_reset_passes_over_that_record_alone",
        ),
        why="The reset that the error offers would lose every good record before the refused one.",
    ),
    mutant(
        "records-before-that-are-refused",
        (_POISON, " if tp not in stored}, None\n", " if tp not in stored}, record\n"),
        tests=(f"{_SEARCHES}test_where_what_was_accepted_is_refused_when_it_is_stored_no_record_is_named",),
        why="The same, where the records before it could not be stored.",
    ),
    mutant(
        "records-before-and-no-others",
        (
            "offsetstore/processing/plan.py",
            "OffsetRange(self.decisions[tp].range.from_, range_.until)",
            "OffsetRange(self.decisions[tp].range.from_, max(range_.until, self.decisions[tp].range.until))",
        ),
        tests=(f"{_CYCLES}test_the_part_of_a_batch_before_a_record_is_stored_alone",),
        why="The offset would move over the refused record and all behind it, with the records before it.",
    ),
)

PLACEMENT: Final[tuple[Mutant, ...]] = (
    mutant(
        "proof-of-one-task-a-partition",
        (
            _SCAN,
            "    found = dict(read)\n    if len(found) != len(read):\n",
            "    found = dict(ranges)\n    if not found:\n",
        ),
        tests=(f"{_PLACED}[several tasks a partition]",),
        why="[0, 400) can come as three tasks: the first to commit would move the offset over the others' rows.",
    ),
    mutant(
        "proof-of-one-to-one-dependencies",
        (
            _SCAN,
            "        if len(dependencies) != 1 or dependencies[0].getClass().getName() != _ONE_TO_ONE:\n",
            "        if len(dependencies) != 1 or simple_name(rdd) == _SCAN:\n",
        ),
        (_SCAN, "    if simple_name(scan) != _SCAN:\n", "    if scan is None:\n"),
        tests=(f"{_PLACED}[a shuffle]",),
        why="After a shuffle a task has rows of every partition.",
    ),
    mutant(
        "proof-left-out",
        (
            _SCAN,
            "        return Placed(parts, _proven(parts.rdd, ranges))\n",
            "        return Placed(parts, list(ranges))\n",
        ),
        tests=(f"{_PLACED}[several tasks a partition]",),
        why="All of it: tasks taken for partitions because that is what Spark does by default.",
    ),
)

TARGETS: Final[tuple[Mutant, ...]] = (
    mutant(
        "target-found-by-the-driver",
        (_OUTPUTS, "            writer.resolve_table(connection)", "            repr(writer)"),
        tests=(_FOUND,),
        why="Executors do not run the listeners of the driver's engine: their rows went to another schema.",
    ),
    mutant(
        "target-of-each-sink",
        (_OUTPUTS, "copy(writer) if isinstance", "writer if isinstance"),
        tests=(_FOUND,),
        why="A writer that serves two stores would carry the first one's schema into the second.",
    ),
)

AGREEMENT: Final[tuple[Mutant, ...]] = (
    mutant(
        "what-outputs-share",
        (
            _SHARING,
            "self._is_whole(*place) and self._may_differ(node)",
            "self._is_whole(*place) and node is None",
        ),
        tests=(f"{_SHARED}test_what_outputs_share_is_computed_once[from_a_function]",),
        why="Orders and their lines would have other ids, since Spark computes each output apart.",
    ),
    mutant(
        "lineage-of-what-outputs-share",
        (_SHARING, "        if is_ours:  # else", "        if rdd is None:  # else"),
        tests=(f"{_AGREEMENT}test_a_lost_part_of_what_is_shared_is_not_computed_again_for_one_output_alone",),
        why="A block that is lost would be computed again with other values, between two outputs.",
    ),
    mutant(
        "blocks-of-what-outputs-share",
        (_SHARING, "        if not sharing.is_intact():\n            raise PlanOutdated(_LOST)\n", ""),
        tests=(f"{_SHARED}test_a_lost_block_makes_the_outputs_outdated",),
        why="A speculative twin's block has other values than the one that the first output was made of.",
    ),
    mutant(
        "one-clock",
        (_SHARING, "if not any(plan.containsPattern(self._patterns.CURRENT_LIKE()) for plan in plans):", "if plans:"),
        tests=(f"{_AGREEMENT}test_outputs_that_look_at_the_clock_apart_see_the_same_time",),
        why="Rows of one batch would have other times of loading in each table.",
    ),
)

_SINK: Final = "offsetstore/spark/sink.py"
_BETWEEN: Final = "offsetstore/processing/between.py"
_BUFFERING: Final = f"{_SPARK}test_buffering.py::"
_MARKING: Final = f"{_SPARK}test_marking.py::"

KEPT: Final[tuple[Mutant, ...]] = (
    mutant(
        "kept-although-it-failed",
        (_BUFFERED, "            self._buffer.remove([last])\n", ""),
        tests=(f"{_BUFFERING}test_of_refused_rows_the_batches_before_them_are_written[in the last, behind another]",),
        why="The batch that can be searched would be written among those that are kept, and its record not found.",
    ),
    mutant(
        "delivered-by-this-run",
        (_BUFFERED, "plan = Plan.of(claim, batch.ranges, delivered)", "plan = Plan.of(claim, batch.ranges)"),
        tests=(f"{_BUFFERING}test_of_refused_rows_the_batches_before_them_are_written[in the last]",),
        why="What is kept would be decided on again, as if it had not been delivered.",
    ),
    mutant(
        "flush-at-the-end",
        (_BETWEEN, "self._buffered.has_any and not self._claim.is_lost:", "self._claim.is_lost:"),
        tests=(
            "tests/unit/processing/test_between.py::test_what_is_left_is_flushed_at_the_end_or_forgotten_if_the_claim_is_lost",
        ),
        why="A job that ends well would leave its last rows to the next start.",
    ),
    mutant(
        "one-lock-for-the-sink",
        (
            _SINK,
            "        self._acquire(batch)\n        try:",
            "        self._lock = threading.RLock()\n        self._acquire(batch)\n        try:",
        ),
        tests=(f"{_MARKING}test_idle_work_waits_for_a_batch",),
        why="A flush by the clock would write a batch that is just being kept, or fail.",
    ),
    mutant(
        "one-sink-for-what-is-kept",
        (_SINK, "            claim.reserve()\n", "            pass\n"),
        tests=(f"{_MARKING}test_a_second_sink_on_the_claim_is_refused",),
        why="The offsets would move over what another sink keeps.",
    ),
    mutant(
        "checkpoint-beyond-what-is-stored",
        (
            "offsetstore/spark/settings.py",
            "        if self.has_unstored and (claim.keeps_checkpoint",
            "        if not self.has_unstored and (claim.keeps_checkpoint",
        ),
        tests=(f"{_MARKING}test_a_checkpoint_that_outlives_the_claim_is_refused",),
        why="The next start would begin above what is stored, and fail for ever.",
    ),
    mutant(
        "row-of-what-is-kept",
        (_BUFFERED, "        create_rows(claim, plan)  #", "        #"),
        tests=(f"{_BUFFERING}test_the_first_records_of_a_new_partition_are_not_forgotten_with_the_buffer",),
        why="After a crash nothing would show that they are missing, if no broker says where the partition begins.",
    ),
    mutant(
        "once-for-a-function-that-keeps-rows",
        (_BATCH, "not calls and may_pass(error)", "may_pass(error)"),
        tests=(f"{_MARKING}test_a_function_that_keeps_rows_is_not_called_again",),
        why="The function's own memory is not rolled back: rows would be lost and doubled.",
    ),
    mutant(
        "sink-whose-function-has-failed",
        (_BATCH, "        if self._broken_by is not None:\n", "        if not self._claim:\n"),
        tests=(f"{_MARKING}test_a_function_that_keeps_rows_is_not_called_again",),
        why="The same, where the query is started again on the same sink.",
    ),
    mutant(
        "search-with-marks",
        (_BATCH, '        if self._marking == "manual":\n            return refused\n', ""),
        tests=(f"{_MARKING}test_refused_rows_are_not_searched_for",),
        why="A function that keeps rows would be given them again and again.",
    ),
)

JOBS: Final[tuple[Mutant, ...]] = (
    mutant(
        "stop-after-the-batch",
        (_JOB, "                sink.stop(query)\n", "                query.stop()\n"),
        tests=(f"{_JOBS}test_a_signal_leaves_the_batch_to_the_sink_and_then_closes_the_claim",),
        why="Each deploy would interrupt a batch, whose work is done again.",
    ),
    mutant(
        "close-that-a-signal-cuts",
        (
            _JOB,
            "                finally:\n                    if progress",
            "                finally:\n                    self._is_running = False\n                    if progress",
        ),
        tests=(f"{_JOBS}test_a_signal_while_the_claim_is_being_closed_cuts_nothing_and_hides_no_error",),
        why="A flush would be cut, and a job that has failed would end with exit code 0, without a word.",
    ),
    mutant(
        "start-of-a-query-that-has-ended",
        (_JOB, "        if not is_checked:  # it has", "        if False:  # it has"),
        tests=(f"{_JOBS}test_where_a_query_starts_is_compared_once_also_if_it_has_ended_before_the_first_look",),
        why="A job with a checkpoint above what is stored would end well each time, until records come.",
    ),
    mutant(
        "exit-code-of-a-job",
        (_JOB, "        raise SystemExit(int(exit_code(told))) from None\n", "        raise SystemExit(1) from None\n"),
        tests=(f"{_JOBS}test_an_error_is_told_in_a_few_lines_and_becomes_the_exit_code",),
        why="A supervisor would start a job again that was fenced, which takes the group back.",
    ),
    mutant(
        "sink-that-was-refused",
        (_SINK, "        self._check_early()  # before the claim is reserved, and a thread works for the sink\n", ""),
        (
            _SINK,
            "            )\n        )\n\n    def _check_early",
            "            )\n        )\n        self._check_early()\n\n    def _check_early",
        ),
        tests=("tests/unit/spark/test_sink.py::test_a_sink_that_is_refused_leaves_nothing_behind",),
        why="The corrected sink would be refused, too, since the claim belonged to the first.",
    ),
)

SPARK: Final = (*JOBS, *TASKS, *BATCHES, *REFUSED, *PLACEMENT, *TARGETS, *AGREEMENT, *KEPT)
