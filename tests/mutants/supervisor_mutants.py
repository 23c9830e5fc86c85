"""The supervisor of a consumer's processes: what it replaces, what ends it, and what it leaves alone."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_PROCESSES: Final = "tests/unit/monitoring/test_processes.py::"
_CONSUME: Final = "tests/integration/consumer/test_consume.py::"
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
        ("processes:FINAL", "{ExitCode.NO, ExitCode.USAGE, ExitCode.FENCED}", "{ExitCode.NO, ExitCode.USAGE}"),
        tests=(f"{_PROCESSES}test_a_process_for_which_no_restart_helps_ends_all",),
        why="Two fleets of one group would take it from each other for ever.",
    ),
    mutant(
        "restart-of-a-fenced-process-that-was-killed",
        ("Supervisor._bury", "status < 0 and process.is_fenced", "False"),
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
        "fenced-process-whose-next-report-takes-back-that-it-rejoins",
        ("Reporter.send", "self._rejoins or rejoins", "rejoins"),
        tests=("tests/unit/cli/test_reports.py::test_later_reports_do_not_take_back_that_another_process_may_join",),
        why="Where a process takes a second to end, a decision that its own fleet has made would end all, for good.",
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
