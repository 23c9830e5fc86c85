"""The supervisor of a consumer's processes: what it replaces, what ends it, and what it leaves alone."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_PROCESSES: Final = "tests/unit/monitoring/test_processes.py::"
_CONSUME: Final = "tests/integration/consumer/test_consume.py::"
_FIFTH: Final = "test_what_no_restart_mends_ends_all_at_the_fifth_time_if_no_process_has_ever_worked"
_PASSES: Final = "test_what_may_pass_is_retried_without_an_end"
_NARROWED: Final = "test_the_third_process_that_dies_at_a_record_names_it_and_what_they_handle_is_narrowed"
_ALONE: Final = "test_a_record_that_was_handled_alone_by_chance_is_named_at_the_third_death_as_well"
_RUNNING: Final = "test_processes_that_run_are_told_of_suspects_too_since_kafka_gives_them_the_partition_first"
_NO_RECORD: Final = "test_an_operators_signal_an_error_that_is_told_and_a_death_between_flushes_name_no_record"
_POLLING: Final = "tests/unit/consumer/test_polling.py::"
_TOLD: Final = "test_what_is_handled_is_told_before_the_function_is_called_and_taken_back_when_it_is_stored"
_ONE_BY_ONE: Final = "test_records_in_whose_handling_processes_died_are_handled_one_by_one"
_IN_TURN: Final = "test_suspect_records_are_handed_over_one_by_one_and_others_in_turn_with_them"
_LAST: Final = "test_the_narrowest_range_comes_last_since_its_record_is_the_most_likely_to_end_the_process"
_GIVEN_BACK: Final = "test_a_partition_that_is_given_back_takes_what_waits_of_it_along"
_PROCESS: Final = "tests/unit/cli/test_consume_process.py::"
_TYPES: Final = f"{_PROCESS}test_what_a_restart_does_is_told_by_the_type_of_the_error"
_KINDS: Final = f"{_PROCESS}test_only_what_stays_as_it_is_until_someone_mends_it_repeats"
_REFUSED: Final = (
    "tests/integration/postgres/test_connect.py::"
    "test_a_server_that_refuses_who_asks_is_told_from_one_that_is_away_or_full"
)
_SLOW: Final = "test_a_fenced_process_that_is_slow_to_end_is_killed_as_late_as_a_drained_one_and_never_replaced"

SUPERVISOR: Final[tuple[Mutant, ...]] = (
    mutant(
        "silence-that-is-no-hang",
        ("Supervisor._hangs", "silent > patience", "False"),
        tests=(f"{_PROCESSES}test_a_process_that_hangs_is_killed_and_replaced",),
        why="A process that is stopped would keep its place, and its partitions would have no owner for ever.",
    ),
    mutant(
        "process-whose-pool-stays",
        ("Process.exit_status", "self._kill_group()", "pass"),
        tests=(f"{_PROCESSES}test_what_a_process_has_started_ends_with_it",),
        why="Each replacement would leave a pool of the function behind, with its memory and connections.",
    ),
    mutant(
        "process-that-is-not-live-and-stays",
        ("Supervisor._hangs", "report is None or report.verdict.is_live", "True"),
        tests=(f"{_PROCESSES}test_a_process_that_hangs_is_killed_and_replaced",),
        why="A process whose writes hang would never be replaced.",
    ),
    mutant(
        "restart-of-a-fenced-process",
        ("consume_process:FINAL", "{ExitCode.NO, ExitCode.USAGE, ExitCode.FENCED}", "{ExitCode.NO, ExitCode.USAGE}"),
        tests=(_TYPES,),
        why="Two fleets of one group would take it from each other for ever.",
    ),
    mutant(
        "restart-of-a-fenced-process-that-was-killed",
        ("Supervisor._bury", "end is None and process.is_fenced", "False"),
        tests=(f"{_PROCESSES}{_SLOW}",),
        why='With takeover="fence", the process that is started in its place would fence the job that has the group.',
    ),
    mutant(
        "fenced-process-that-is-killed-as-one-that-hangs",
        ("Supervisor._hangs", "self._patience(process) if process.is_fenced else limits.exit", "limits.exit"),
        tests=(f"{_PROCESSES}{_SLOW}",),
        why="It would be killed before it can say whether the group is still that of its own fleet.",
    ),
    mutant(
        "fenced-process-that-rejoins-whoever-has-the-group",
        ("rejoins", "owner.fleet == consumer.fleet_name", "True"),
        tests=(f"{_CONSUME}test_a_process_rejoins_its_own_fleet_and_no_other",),
        why="A consumer that a Spark job has fenced would come back once that job is not live for a moment.",
    ),
    mutant(
        "exit-code-that-no-process-has-told-and-that-is-believed",
        ("Supervisor._bury", "End(ExitCode.DEAD if is_ours else ExitCode.BUG)", 'End(status, "harms")'),
        tests=(f"{_PROCESSES}test_an_exit_code_that_the_process_has_not_told_is_a_crash",),
        why="A transform that calls sys.exit, or a library that exits, would end the whole fleet.",
    ),
    mutant(
        "failure-that-is-repeated-for-ever",
        ("Supervisor._bury", "place.repeated >= _TRIES", "False"),
        tests=(f"{_PROCESSES}{_FIFTH}",),
        why="With a wrong password it would loop for ever, and exit with 0 at Ctrl-C.",
    ),
    mutant(
        "failure-that-ends-what-has-worked",
        ("Supervisor._bury", "repeats and not has_worked", "repeats"),
        tests=(f"{_PROCESSES}{_PASSES}",),
        why="A password that is changed first here and then there would end a fleet that has run for months.",
    ),
    mutant(
        "readiness-while-it-joins-that-passes-for-work",
        (
            "Supervisor._bury",
            "self._works(process, now) if words.has_joined else self._has_begun",
            "self._has_begun",
        ),
        tests=(f"{_PROCESSES}{_FIFTH}",),
        why="Each process is ready before it has a record: a wrong column would be met for ever.",
    ),
    mutant(
        "what-was-written-that-is-no-work",
        ("Supervisor._works", "one.words.has_written or ...", "one.was_ready and now - one.began >= _LONGEST_PAUSE"),
        tests=(f"{_PROCESSES}{_PASSES}",),
        why="A table that is altered in a deploy would end the fleet in half a minute.",
    ),
    mutant(
        "flush-without-records-that-is-work",
        ("Watched.on", "event.outcome == 'written'", "True"),
        tests=(
            f"{_PROCESS}test_a_process_has_written_once_records_are_stored_and_not_by_a_flush_that_had_nothing_left",
        ),
        why="A wrong column would be met for ever, if a partition was given back once.",
    ),
    mutant(
        "waiting-for-records-that-is-no-work",
        ("Supervisor._works", "one.words.has_written or ...", "one.words.has_written"),
        tests=(f"{_PROCESSES}test_a_process_that_was_ready_for_a_minute_without_a_record_has_worked",),
        why="A fleet of a quiet topic would end as one that has never worked.",
    ),
    mutant(
        "end-without-an-error-though-no-process-was-ever-ready",
        ("Supervisor._turn", "0 if self._has_begun else self._failed_with", "0"),
        tests=(f"{_PROCESSES}test_the_exit_code_is_that_of_the_last_failure_if_no_process_was_ever_ready",),
        why="A start that has failed for an hour would pass for a good end.",
    ),
    mutant(
        "outage-of-tls-that-no-restart-mends",
        (
            "is_lasting",
            "isinstance(error, _LASTING) and not isinstance(error, TlsFailed)",
            "isinstance(error, _LASTING)",
        ),
        tests=(_KINDS,),
        why="A proxy whose broker is away would end a fleet that has just been started.",
    ),
    mutant(
        "import-error-that-ends-all",
        ("end_after", "isinstance(error, (NotLoaded, MissingDependency))", "False"),
        tests=(_TYPES,),
        why="A process that starts while its package is being replaced would end the whole fleet.",
    ),
    mutant(
        "wrong-password-that-passes-for-an-outage",
        ("end_after", "... and is_refused(error)", "False"),
        tests=(_REFUSED,),
        why="It would be tried for ever.",
    ),
    mutant(
        "server-without-connections-that-passes-for-a-wrong-password",
        ("_is_answered_alike", "named == answer and ...", "True"),
        tests=(_REFUSED,),
        why="A server that is full for half a minute would end a fleet that has just been started.",
    ),
    mutant(
        "server-without-connections-that-passes-for-a-missing-database",
        ("_is_answered_alike", "name == 'password' or named != error.pgconn.error_message", "True"),
        tests=(_REFUSED,),
        why="As above.",
    ),
    mutant(
        "death-by-our-own-signal-that-is-held-against-a-record",
        ("Supervisor._bury", "words.handled and not is_ours and status not in _OF_OPERATORS", "words.handled"),
        tests=(f"{_PROCESSES}test_a_process_that_the_supervisor_kills_names_no_record",),
        why="A flush that takes too long would name an innocent record, with the command that skips it.",
    ),
    mutant(
        "death-by-an-operators-signal-that-is-held-against-a-record",
        (
            "Supervisor._bury",
            "words.handled and not is_ours and status not in _OF_OPERATORS",
            "words.handled and not is_ours",
        ),
        tests=(f"{_PROCESSES}{_NO_RECORD}",),
        why="As above.",
    ),
    mutant(
        "record-that-is-named-before-it-was-handled-alone",
        ("Supervisor._note_death", "count >= _NAMED and words.skip", "words.skip"),
        tests=(f"{_PROCESSES}{_ALONE}",),
        why="With little traffic the first death by chance would say which record to skip.",
    ),
    mutant(
        "suspects-that-are-not-narrowed",
        ("Supervisor._note_death", "(OffsetRange(begin, until), times + 1)", "(before, times + 1)"),
        tests=(f"{_PROCESSES}{_NARROWED}",),
        why="Each record of the first flush would be handled alone, though some were stored since.",
    ),
    mutant(
        "deaths-anywhere-that-are-counted-together",
        ("Supervisor._note_death", "begin < until", "True"),
        tests=(f"{_PROCESSES}test_deaths_at_different_records_are_no_reason_to_be_careful",),
        why="Kills by the kernel, hours apart, would make a partition slow.",
    ),
    mutant(
        "processes-that-run-and-hear-of-no-suspects",
        ("Supervisor._note_death", "other.process is not None", "False"),
        tests=(f"{_PROCESSES}{_RUNNING}",),
        why="Kafka gives them the partition first: each would die of the record in turn.",
    ),
    mutant(
        "death-that-is-recorded-by-nobody",
        ("Supervisor._bury", "self._unrecorded += process.orders.deaths", "pass"),
        tests=(f"{_PROCESSES}test_the_next_process_that_joins_is_given_the_deaths_to_record",),
        why="`offsetstore errors` would lack what a process met that could not even join.",
    ),
    mutant(
        "records-that-are-told-after-the-function-was-called",
        ("Membership._handling", "self._watch.handles(*self._handled)", ""),
        tests=(f"{_POLLING}{_TOLD}",),
        why="A crash in C leaves no time to tell them.",
    ),
    mutant(
        "records-that-stay-told-when-they-are-stored",
        ("Membership._handling", "self._watch.handles(*before)", ""),
        tests=(f"{_POLLING}{_TOLD}",),
        why="A process that dies while it waits would be held against the last records that it has stored.",
    ),
    mutant(
        "suspects-that-are-handled-together",
        ("CarefulFeed.take", "not suspects and not self._apart", "True"),
        tests=("tests/unit/consumer/test_watch.py", f"{_POLLING}{_ONE_BY_ONE}"),
        why="The record that kills its process would never be found.",
    ),
    mutant(
        "suspects-that-need-no-memory",
        ("CarefulFeed.room", "self._bytes + sum(...) >= self._limits.bytes", "False"),
        ("CarefulFeed.room", "super().room - sum(...)", "super().room"),
        tests=("tests/unit/consumer/test_watch.py::test_what_is_kept_apart_counts_for_the_limits",),
        why="After processes that ran out of memory, the next one would hold more than they did.",
    ),
    mutant(
        "suspects-that-keep-others-waiting",
        ("CarefulFeed.take", "self._was_one or not self._apart", "not self._apart"),
        tests=("tests/unit/consumer/test_watch.py::" + _IN_TURN,),
        why="Partitions beside a suspect one would stand still for as long as that is handled record by record.",
    ),
    mutant(
        "named-record-that-comes-first",
        ("CarefulFeed.take", "suspects[tp].size if tp in suspects else 0", "0"),
        tests=("tests/unit/consumer/test_watch.py::" + _LAST,),
        why="Each process would die of it before it has handled what is suspect in other partitions.",
    ),
    mutant(
        "suspects-of-a-partition-that-was-given-back",
        ("CarefulFeed.drop", "self._apart.pop(tp, None)", "pass"),
        tests=("tests/unit/consumer/test_watch.py::" + _GIVEN_BACK,),
        why="Kafka's client would be told to pause a partition that it does not have.",
    ),
    mutant(
        "process-that-is-stopped-and-ready",
        ("processes:_SILENCE", "10.0", "1e9"),
        tests=(f"{_PROCESSES}test_a_process_that_tells_nothing_is_not_ready",),
        why="A deploy would go on to the next machine while a partition stands still.",
    ),
    mutant(
        "pause-that-does-not-grow",
        ("Supervisor._pause", "doubled(1.0, place.failures, _LONGEST_PAUSE)", "1.0"),
        tests=(f"{_PROCESSES}test_a_process_that_died_is_replaced_with_growing_pauses",),
        why="A record that is refused would make the group rebalance every second.",
    ),
    mutant(
        "all-processes-at-once",
        ("Supervisor._turn", "self.places if self._has_begun else self.places[:1]", "self.places"),
        tests=(f"{_PROCESSES}test_what_is_wrong_with_all_processes_is_told_by_the_first",),
        why="A mistake in the settings would be told as many times as there are processes.",
    ),
    mutant(
        "drain-that-is-shorter-than-the-consumers",
        ("Supervisor._patience", "DRAIN if process.report is None else process.report.drain", "DRAIN"),
        tests=(f"{_PROCESSES}test_a_process_has_as_long_to_end_as_its_own_limits_let_it_take",),
        why="A process that still writes what it has polled would be killed, and all of that read again.",
    ),
    mutant(
        "drain-without-an-end",
        ("Supervisor._look", "now >= place.kill_at or self._signals > 1", "self._signals > 1"),
        tests=(f"{_PROCESSES}test_what_does_not_end_in_time_is_killed_and_the_exit_code_says_so",),
        why="A process that hangs would hold up a deploy until its supervisor is killed.",
    ),
    mutant(
        "consumer-that-does-not-tell-of-its-polls",
        (
            "Membership.status",
            "QueryStatus(is_active=is_active, trigger=self._polls, has_failed=self._failed is not None)",
            "QueryStatus(is_active=is_active, trigger=None, has_failed=self._failed is not None)",
        ),
        tests=(f"{_CONSUME}test_a_consumer_is_ready_when_it_polls_and_not_live_when_it_no_longer_does",),
        why="A consumer whose polling thread hangs would pass for live.",
    ),
)
