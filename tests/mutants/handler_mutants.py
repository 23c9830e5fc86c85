"""Handlers: which calls are made, in which order, and what becomes of their outcomes."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_MODEL: Final = "tests/property/test_handling_model.py::test_calls_are_those_of_the_model"
_CALLS: Final = "tests/unit/processing/test_handling.py::"
_ROWS: Final = "tests/unit/spark/test_handled_rows.py::"
_KINDS: Final = "tests/unit/writers/test_kinds.py::"
_KEPT: Final = f"{_KINDS}test_a_handler_s_value_is_kept_as_it_is_or_fails_its_record"
_SPARK: Final = "tests/integration/spark/test_handlers.py::"
_CONTEXT: Final = "tests/unit/processing/test_context.py::"
_LETTER: Final = (
    "tests/unit/processing/test_recovery.py::"
    "test_a_letter_has_its_records_trace_if_that_is_named_or_all_headers_are_kept"
)
_OFTEN: Final = "tests/integration/spark/test_handler_calls.py::"

CALLS: Final[tuple[Mutant, ...]] = (
    mutant(
        "calls-at-once",
        ("Handling.next_call", "self.in_flight >= self.handler.concurrency", "False"),
        tests=(_MODEL,),
        why="A service would get more calls at once than it was said to take.",
    ),
    mutant(
        "calls-in-order-of-a-key",
        ("Queues.add", "key is None", "True"),
        ("Queues.done", "key is None", "True"),
        tests=(_MODEL,),
        why="Two records of one key would be handled at once.",
    ),
    mutant(
        "calls-that-wait-in-order",
        ("Queues.done", "waiting.popleft()", "waiting.pop()"),
        tests=(_MODEL,),
        why="A later record of a key would be handled first.",
    ),
    mutant(
        "calls-that-are-retried",
        ("Handling._take", "task.attempts < retries.attempts", "task.attempts <= retries.attempts"),
        tests=(_MODEL,),
        why="A record would be tried once more than it was said to be.",
    ),
    mutant(
        "calls-while-a-retry-waits",
        (
            "Handling._take",
            "heapq.heappush(...)\nreturn",
            "heapq.heappush(...)\nself._queues.done(task.key)\ntask.key = None\nreturn",
        ),
        tests=(_MODEL,),
        why="The next record of the key would be handled before the one that is to be retried.",
    ),
    mutant(
        "calls-while-a-late-one-runs",
        (
            "Handling._look",
            "self.figures.timeouts += 1",
            (
                "self.figures.timeouts += 1\nself._queues.done(call.task.key)\n"
                "call.task.key = None\nself.may_begin.notify()"
            ),
        ),
        tests=(f"{_CALLS}test_a_thread_that_takes_too_long_fails_alone_and_its_key_waits_for_it",),
        why="A thread that hangs may still do its work, after that of a later record of its key.",
    ),
    mutant(
        "calls-that-are-left-without-number",
        ("Handling.close", "_left.update(self._running | self._late)", "pass"),
        tests=(f"{_CALLS}test_calls_that_never_return_are_bounded_however_many_batches_they_come_from",),
        why="Each batch with a call that hangs would leave a thread behind, until the process has no memory.",
    ),
    mutant(
        "calls-that-are-left-for-ever",
        ("Handling._take", "_left.pop(call, None)", "pass"),
        tests=(f"{_CALLS}test_calls_that_never_return_are_bounded_however_many_batches_they_come_from",),
        why="A handler that is now and then slow would be taken for one that hangs, in the end.",
    ),
    mutant(
        "calls-and-outages",
        ("handling:_failure", "tells_of_outage(error)", "False"),
        tests=(f"{_CALLS}test_an_outage_is_no_records_fault",),
        why="While a service is down, each record would become a letter.",
    ),
    mutant(
        "keys-and-outages",
        ("Handling._ended_by", "failure.outage is None", "True"),
        tests=(f"{_CALLS}test_an_outage_of_key_blames_no_record_and_names_its_own",),
        why="While the service that makes keys is down, each record would become a letter.",
    ),
    mutant(
        "keys-that-hang",
        ("Handling._await_keys", "now - since >= self.handler.timeout", "False"),
        tests=(f"{_CALLS}test_a_key_that_hangs_ends_in_an_error_and_many_slow_ones_do_not",),
        why="The query would stand still for ever, without a word.",
    ),
    mutant(
        "keys-that-are-many",
        ("Handling._await_keys", "len(found) > count or ...", "..."),
        tests=(f"{_CALLS}test_a_key_that_hangs_ends_in_an_error_and_many_slow_ones_do_not",),
        why="The keys of a large batch would be taken for one that hangs.",
    ),
    mutant(
        "calls-after-an-outage",
        ("Handling.next_call", "self.is_closed or self._outage is not None", "self.is_closed"),
        tests=(f"{_ROWS}test_an_outage_is_told_at_each_record_that_is_left_and_nothing_more_is_called",),
        why="A service that is down would get all other calls too, and their outcomes would be dropped.",
    ),
    mutant(
        "calls-and-an-error-of-ours",
        ("Handling.returned", "self._outage = error", "pass"),
        tests=(f"{_CALLS}test_an_error_of_the_engine_itself_ends_the_handling",),
        why="The task would wait for ever for a call that is forgotten.",
    ),
    mutant(
        "late-calls-of-a-process-that-did-not-run",
        ("Handling._look", "if was_away: ...", "pass"),
        tests=(f"{_CALLS}test_what_waits_for_a_late_call_is_not_stuck_by_a_time_in_which_the_process_did_not_run",),
        why="A job that was stopped for a moment would end with HandlerStuck.",
    ),
    mutant(
        "calls-of-a-blocked-loop",
        ("Handling._look", "not was_away and self._goes_on()", "True"),
        tests=(f"{_CALLS}test_blocking_code_in_an_async_function_is_named",),
        why="Records would fail since another one's call blocks the event loop.",
    ),
    mutant(
        "context-of-a-call",
        ("_Loop._start", "self._context.copy()", "self._context"),
        tests=(f"{_CALLS}test_each_call_has_a_context_of_its_own",),
        why="A call would see what another one has set: a tenant, a trace.",
    ),
)

ROWS: Final[tuple[Mutant, ...]] = (
    mutant(
        "handled-values",
        ("check_exact", "not exact.fits(one, kind)", "False"),
        tests=(f"{_ROWS}test_values_that_do_not_fit",),
        why="Arrow cuts fractions off, and the time of a day: 1.5 would be stored as 1.",
    ),
    mutant(
        "handled-units",
        ("_is_moment", "value.microsecond % _unit(kind)", "False"),
        tests=(_KEPT,),
        why="A timestamp in seconds would lose its microseconds.",
    ),
    mutant(
        "handled-digits",
        ("_is_float_of", "any(...)", "True"),
        tests=(_KEPT,),
        why="1e-50 in a float would become 0.",
    ),
    mutant(
        "handled-types-that-are-unknown",
        ("handled_rows:_checked", "held(kind) is None", "False"),
        tests=(f"{_KINDS}test_a_type_that_is_not_in_the_table_is_refused",),
        why="A type of a later Arrow would count as fitting, whatever Arrow makes of its values.",
    ),
    mutant(
        "handled-inside-another-type",
        ("held_inside", "None if is_json(kind) or is_uuid(kind) else held(kind)", "held(kind)"),
        tests=(f"{_KINDS}test_the_same_inside_a_list",),
        why="JSON inside a list would be stored as a text of JSON, with quotes.",
    ),
    mutant(
        "handled-names",
        ("handled_rows:_values", "row.keys() - {*names}", "set()"),
        tests=(f"{_ROWS}test_a_row_that_does_not_fit_says_why",),
        why="A misspelt column would be stored as NULL.",
    ),
    mutant(
        "handled-outage-at-each",
        ("handlers:_with_outage", "[first, *others][: batch.num_rows]", "[first] + [None] * (batch.num_rows - 1)"),
        tests=(f"{_ROWS}test_an_outage_is_told_at_each_record_that_is_left_and_nothing_more_is_called",),
        why="A plan that begins beyond the first of them would take the others for records without rows.",
    ),
    mutant(
        "handled-and-sparks-own",
        ("function_failed", "has_handler and not is_out_of_range(error)", "False"),
        tests=(f"{_OFTEN}test_a_worker_that_dies_is_no_records_fault_and_nothing_is_called_to_find_one",),
        why="If a worker dies, a search for a record would make all calls again at each try.",
    ),
    mutant(
        "handled-and-failed",
        ("HandlerTransform.__call__", "failed.isNotNull() | (F.size(rows) > 0)", "F.size(rows) > 0"),
        tests=(f"{_SPARK}test_a_record_that_fails_is_a_letter_and_every_other_is_called_once",),
        why="The offset would pass a record that has failed, without a letter and without an error.",
    ),
    mutant(
        "handled-once",
        ("Handled.part", "self._kept is None or not _covers(self._kept[0], part)", "True"),
        tests=(f"{_SPARK}test_a_refused_row_and_the_careful_way_call_no_handler_again",),
        why="Each time that a batch is computed again, all its calls would be made again.",
    ),
    mutant(
        "handled-and-kept",
        ("Handled.part", "handled.persist(StorageLevel.DISK_ONLY)", "handled"),
        tests=(f"{_SPARK}test_several_outputs_are_handled_once",),
        why="Each output would make the calls of its own.",
    ),
    mutant(
        "handled-after-a-crop",
        ("Handled.part", "self._frame if part == self._ranges else within(self._frame, part)", "self._frame"),
        tests=(f"{_SPARK}test_what_is_stored_is_not_handled_again",),
        why="After a restart, records whose rows are stored would be handled again.",
    ),
    mutant(
        "handled-in-order",
        ("HandlerTransform.handled", "ranges is None or not is_in_order(records, ranges)", "ranges is None"),
        tests=(f"{_SPARK}test_the_order_of_a_key_is_kept_where_tasks_are_not_partitions",),
        why="With minPartitions two tasks would handle records of one key at once.",
    ),
)

CONTEXT: Final[tuple[Mutant, ...]] = (
    mutant(
        "context-names",
        ("propagated", "name in names", "True"),
        tests=(
            "tests/unit/protocol/test_context.py::test_only_named_headers_follow_a_record_as_they_are_and_in_their_order",
        ),
        why="A header that nobody has named would be handed on to other services.",
    ),
    mutant(
        "context-after-a-record",
        ("as_current", "_headers.reset(token)", "_ = token"),
        tests=("tests/unit/protocol/test_context.py::test_headers_are_those_of_the_innermost_block_and_gone_after_it",),
        why="What comes after a record would be done in the name of its tenant.",
    ),
    mutant(
        "context-shared-on-a-loop",
        ("_Loop._start", "self._context.copy()", "self._context"),
        tests=(f"{_CONTEXT}test_each_call_sees_the_named_headers_of_its_own_record_and_no_others",),
        why="While one record's call waits, it would get the headers of another.",
    ),
    mutant(
        "context-names-in-traces",
        ("span_of_call", "attach(_context_of(headers))", "attach(_context_of(record.headers))"),
        tests=(f"{_CONTEXT}test_traces_are_the_records_own_and_only_if_they_are_named",),
        why="OpenTelemetry would hand on a baggage that nobody has named.",
    ),
    mutant(
        "context-spans-without-a-trace",
        ("span_of_call", "get_current_span().get_span_context().is_valid", "True"),
        tests=(f"{_CONTEXT}test_a_record_with_a_malformed_trace_is_handled_like_one_without",),
        why="Each record without a trace would begin one.",
    ),
    mutant(
        "context-errors-in-spans",
        (
            "spans:_span",
            "_tracer.start_as_current_span(..., **..., record_exception=False, set_status_on_exception=False)",
            "_tracer.start_as_current_span(..., **..., set_status_on_exception=False)",
        ),
        tests=(f"{_CONTEXT}test_a_call_that_fails_has_the_errors_class_in_its_span_and_not_its_text",),
        why="The text of an error, which may quote the record, would be exported.",
    ),
    mutant(
        "context-names-in-letters",
        ("Recovery._letters", "propagated(payload.headers, self._propagate)", "payload.headers"),
        tests=(_LETTER,),
        why="A letter of which only coordinates are kept would have a trace that nobody has named.",
    ),
    mutant(
        "context-contents-of-letters",
        ("Recovery._letters", "payload if self._settings.keep == 'all' else None", "payload"),
        tests=(_LETTER,),
        why='With keep="coordinates", the record would be stored since its trace is.',
    ),
    mutant(
        "context-without-headers",
        ("SinkSettings._check_headers", "self.propagate and 'headers' not in columns", "False"),
        tests=("tests/unit/spark/test_settings.py::test_headers_that_the_query_has_not_read_follow_no_record",),
        why="Without includeHeaders each call would be made without a tenant.",
    ),
    mutant(
        "context-links-of-what-is-recorded",
        ("Tracing.on", "event.headers is not None and span.is_recording()", "event.headers is not None"),
        tests=("tests/unit/monitoring/test_tracing.py::test_a_batch_that_no_one_records_reads_no_headers",),
        why="Each batch would cost a Spark job for links that nobody keeps.",
    ),
)

HANDLERS: Final = (*CALLS, *ROWS, *CONTEXT)
