"""What is shown: a log that lost records, and letters that nobody replays, never look well. They need no server."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_UNIT: Final = "tests/unit/operations/"
_BEYOND: Final = (
    f"{_UNIT}test_reads.py::test_an_offset_beyond_the_end_has_no_lag_and_what_is_behind_a_transaction_is_unread"
)
_LAGS: Final = "tests/integration/operations/test_lag.py::"
_NEVER_0: Final = f"{_LAGS}test_a_stored_offset_beyond_the_end_of_the_log_is_never_lag_0"
_LOST: Final = (
    f"{_UNIT}test_group_checks.py::test_a_log_that_lost_records_is_bad_while_it_is_too_short_and_when_it_has_grown"
)
_LEFT: Final = f"{_UNIT}test_group_checks.py::test_requested_letters_that_the_job_does_not_replay_need_attention"
_TOLD: Final = (
    "tests/integration/commands/test_group_commands.py::"
    "test_status_tells_of_an_offset_beyond_the_end_and_of_evidence_of_loss_and_of_no_lag"
)
_SERIES: Final = (
    "tests/integration/operations/test_exporter.py::"
    "test_an_offset_beyond_the_end_and_evidence_of_loss_have_series_of_their_own_and_no_lag"
)
_PAGE: Final = (
    "tests/integration/pages/test_groups.py::"
    "test_a_log_that_lost_records_is_told_while_it_is_too_short_and_when_it_has_grown"
)
_FOLD: Final = "tests/unit/protocol/test_job_state.py::"
_REQUESTED: Final = (
    "tests/integration/commands/test_dead_letters.py::"
    "test_what_is_requested_is_printed_though_the_database_is_gone_right_after"
)
_REPLAYED_BY_NONE: Final = (
    "tests/integration/commands/test_dead_letters.py::test_letters_that_no_job_will_replay_are_reported_as_such"
)

LOSS: Final[tuple[Mutant, ...]] = (
    mutant(
        "lag-beyond-the-end",
        ("operations:lag_of", "None if lag < 0 else lag", "max(0, lag)"),
        tests=(_BEYOND,),
        why="A log that lost records would look like one of which all is read.",
    ),
    mutant(
        "lag-behind-an-open-transaction",
        ("end_of", "log.end if log.high is None else log.high", "log.end"),
        tests=(_BEYOND,),
        why="A transaction that hangs would hide what waits behind it.",
    ),
    mutant(
        "lag-of-the-other-partitions",
        ("GroupState.lag", "known and len(known) == len(lags)", "known"),
        tests=(f"{_UNIT}test_reads.py::test_a_state_with_an_offset_beyond_the_end_has_no_lag_of_the_others",),
        why="The group's lag would leave out the partition that lost records.",
    ),
    mutant(
        "lag-on-another-cluster",
        ("another_log", "row.is_of_another_cluster(cluster_id)", "False"),
        tests=(f"{_UNIT}test_reads.py::test_a_log_that_the_stored_offset_does_not_belong_to_gives_no_lag",),
        why="Offsets of one cluster would be compared with another's logs, and the lag look plausible.",
    ),
    mutant(
        "well-though-unknown",
        ("_Checks._if_known", "one.stored and one.log is None", "not place"),
        tests=(f"{_UNIT}test_group_checks.py::test_of_a_log_that_is_not_known_nothing_is_called_well",),
        why="A check would call well what it knows nothing of.",
    ),
    mutant(
        "seconds-beyond-the-end",
        ("_Behind._partition", "None if lag is None else 0.0", "0.0"),
        tests=(_NEVER_0,),
        why="A partition that lost records would be 0 seconds behind.",
    ),
    mutant(
        "health-of-a-log-that-is-too-short",
        (
            "judge_group",
            "any(...) or (lag is not None and lag.beyond_end)",
            "any(...)",
        ),
        tests=(_NEVER_0,),
        why="A check of the group would pass, and the next start be refused.",
    ),
    mutant(
        "health-of-a-log-that-has-grown",
        ("judge_group", "one.suspect or one.beyond_end", "one.beyond_end"),
        tests=(f"{_LAGS}test_a_group_whose_log_lost_records_and_has_grown_again_is_not_well",),
        why="The same once the log has grown again.",
    ),
    mutant(
        "check-of-a-log-that-is-too-short",
        ("_Checks._logs", "one.beyond_end", "one.beyond_end < 0"),
        tests=(_LOST,),
        why="The group's page would call its logs well.",
    ),
    mutant(
        "check-of-a-log-that-has-grown",
        ("_Checks._logs", "one.is_suspect", "not place"),
        tests=(_LOST,),
        why="The same once the log has grown again.",
    ),
    mutant(
        "status-of-a-log-that-is-too-short",
        ("status:_notes", "if one.beyond_end: ...", "if one.beyond_end < 0: ..."),
        tests=(_TOLD,),
        why="The status would only leave the lag out, and not say why.",
    ),
    mutant(
        "status-of-a-log-that-has-grown",
        ("status:_notes", "one.suspect is not None", "one.suspect is one"),
        tests=(_TOLD,),
        why="The status would show a lag as if all were well, and the next start be refused.",
    ),
    mutant(
        "lag-command-of-a-log-that-is-too-short",
        ("lag:_notes", "if part.beyond_end: ...", "if part.beyond_end < 0: ..."),
        tests=(
            "tests/integration/commands/test_lag.py::test_an_offset_beyond_the_end_is_told_and_fails_above_any_limit",
        ),
        why="The command would only leave the lag out, and not say why.",
    ),
    mutant(
        "lag-command-of-a-log-that-has-grown",
        ("lag:_notes", "if part.is_suspect: ...", "if not part: ..."),
        tests=(
            "tests/integration/commands/test_lag.py::test_evidence_of_loss_is_told_also_where_the_log_has_grown_again",
        ),
        why="The command would show a lag as if all were well.",
    ),
    mutant(
        "series-of-a-log-that-is-too-short",
        ("_add_groups", "page.add(BEYOND, topic.beyond_end, group, name)", "page.add(BEYOND, 0, group, name)"),
        tests=(_SERIES,),
        why="The alert would never be raised.",
    ),
    mutant(
        "series-of-a-log-that-has-grown",
        ("_add_groups", "row.suspect is not None", "row.suspect is row"),
        tests=(_SERIES,),
        why="The alert would end once the log has grown again.",
    ),
    mutant(
        "page-of-a-log-that-is-too-short",
        ("_troubles", "part.is_suspect or part.beyond_end", "part.is_suspect"),
        tests=(_PAGE,),
        why="The list of groups would show the group as any other.",
    ),
    mutant(
        "page-of-a-log-that-has-grown",
        ("_troubles", "part.is_suspect or part.beyond_end", "part.beyond_end"),
        tests=(_PAGE,),
        why="The same once the log has grown again.",
    ),
)

REQUESTS: Final[tuple[Mutant, ...]] = (
    mutant(
        "requests-to-nobody-in-a-check",
        ("_Checks._has_no_dead_letters", "run.status.replays_letters is False", "run.status.replays_letters is run"),
        tests=(_LEFT,),
        why="Letters would wait for a job that runs, and never replays them.",
    ),
    mutant(
        "requests-to-an-earlier-job-in-a-check",
        ("_Checks._has_no_dead_letters", "... and run.token == self._of.owner.token and ...", "... and ..."),
        tests=(_LEFT,),
        why="After a deploy that adds dead_letters=, the check would still say that nobody replays them.",
    ),
    mutant(
        "requests-to-nobody-in-the-status",
        ("status:_head", "state.replays_letters is False", "state.replays_letters is state"),
        tests=(_REPLAYED_BY_NONE,),
        why="The same in the status.",
    ),
    mutant(
        "requests-to-nobody-in-the-command",
        ("_is_replayed_by_none", "store.group_state(done.group).replays_letters is False", "False"),
        tests=(_REPLAYED_BY_NONE,),
        why="The same where they are requested.",
    ),
    mutant(
        "request-that-fails-after-its-commit",
        ("_is_replayed_by_none", "OffsetStoreError", "AssertionError"),
        tests=(_REQUESTED,),
        why="A command whose letters are requested would end as if nothing had been.",
    ),
    mutant(
        "requests-to-nobody-in-the-log",
        ("RunRecord._save", "status.replays_letters is False", "status.replays_letters is status"),
        tests=(
            "tests/unit/store/test_run_record.py::test_a_job_without_dead_letters_says_that_it_replays_none_once_for_each_time_that_some_are_requested",
        ),
        why="The same in the job's log.",
    ),
    mutant(
        "requests-to-the-group-s-owner",
        ("read_group", "owner and run.token == owner.token", "owner"),
        tests=(
            "tests/contract/test_postgres.py::TestPostgresOffsetStore::test_whether_a_job_replays_letters_is_known_of_the_last_run",
        ),
        why="An earlier job would be asked.",
    ),
    mutant(
        "requests-that-the-sink-looks-for",
        ("TransactionalSink.__init__", "SinkMade(**..., replays_letters=...)", "SinkMade(**..., replays_letters=True)"),
        tests=(
            "tests/unit/processing/test_requests.py::test_a_sink_tells_the_run_s_record_whether_it_looks_for_requests",
        ),
        why="Each job would be said to replay them.",
    ),
)

ENDS: Final[tuple[Mutant, ...]] = (
    mutant(
        "failure-recorded-with-the-next-heartbeat",
        ("Runner._run", "claim.record_run()", ""),
        tests=("tests/unit/spark/test_sink.py::test_the_failure_is_in_the_database_before_the_sink_raises",),
        why="A job that dies of a batch's error would look killed.",
    ),
    mutant(
        "killed-and-replaced-at-once",
        ("Run.state", "... and is_live(self.read_at - self.next_at)", "..."),
        tests=("tests/unit/protocol/test_runs.py::test_a_run_that_was_replaced_was_fenced_only_if_it_was_alive",),
        why="A job that is killed and restarted again and again would look like two that fight.",
    ),
    mutant(
        "late-end-of-a-replaced-claim",
        ("JobState.after", "isinstance(event, SinkMade | ClaimEnded) and event.token != self.token", "False"),
        tests=(f"{_FOLD}test_a_state_is_what_the_whole_history_says",),
        why="A job that has just claimed its group again would be restarted as fenced.",
    ),
    mutant(
        "one-missed-heartbeat-is-an-outage",
        ("JobState._of_database", "at - self.database_answered > self.unreachable", "True"),
        tests=(f"{_FOLD}test_a_database_that_can_t_be_reached_is_away_until_it_answers",),
        why="Each heartbeat would begin the time limit of a batch that hangs anew.",
    ),
    mutant(
        "silent-with-records-unread",
        ("state_of", 'owner.state == "silent" and has_unread', "False"),
        tests=("tests/integration/pages/test_groups.py::test_a_group_is_in_one_word",),
        why="A job that was killed would not be called stalled until fifteen minutes later.",
    ),
    mutant(
        "first-claim-without-a-word",
        ("protocol:resolve", "None if stored else group", "None"),
        tests=(
            "tests/unit/store/test_first_claims.py::test_a_misspelt_group_is_told_what_it_reads_again_and_whom_it_resembles",
        ),
        why="A misspelt group would read the whole topic again without a word.",
    ),
)

SHOWN: Final = (*LOSS, *REQUESTS, *ENDS)
