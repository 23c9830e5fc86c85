"""The start, and the mirror whose copies it judges: pure, or on a store in memory."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant, text

_RESOLVED: Final = "tests/unit/protocol/test_resolver.py::"
_LOGS: Final = "tests/contract/test_memory.py::TestInMemoryOffsetStore::"
_MIRRORED: Final = "tests/unit/store/test_mirror.py::"
_BROKERS: Final = "tests/unit/kafka/test_broker.py::"
_TOGETHER: Final = "tests/integration/store/test_claims_together.py::"
_OVERVIEW: Final = "tests/unit/kafka/test_overview.py::"
_GRANTS: Final = "tests/integration/postgres/test_grants.py::"
_CONTINUITY: Final = "tests/unit/spark/test_continuity.py::"
_ADMIN: Final = "tests/contract/test_postgres.py::TestPostgresOffsetStore::"

START: Final[tuple[Mutant, ...]] = (
    mutant(
        "no-offset-is-an-answer",
        (
            "Request.outcome",
            "KafkaError(KafkaError.OFFSET_NOT_AVAILABLE) if self.is_empty(key, result) else result",
            "result",
        ),
        tests=(f"{_OVERVIEW}test_an_answer_without_an_offset_is_none",),
        why="While a leader changes, a log would seem to have lost its records, and each start would be refused.",
    ),
    mutant(
        "stamp-of-our-own",
        ("protocol:_RULES", "(..., _our_copy, ...)", "(..., ...)"),
        tests=(f"{_RESOLVED}test_a_copy_beyond_the_row_stops_the_start",),
        why="A restored database would be taken for one that another tool has overtaken: its records would be skipped.",
    ),
    mutant(
        "stamp-of-another-store",
        ("protocol:_RULES", "(..., _foreign_copy, ...)", "(..., ...)"),
        tests=(f"{_RESOLVED}test_a_copy_of_another_store_is_refused",),
        why="Two stores under one group would follow each other's offsets.",
    ),
    mutant(
        "stamp-at-the-claim",
        (
            "resolve_unlocked",
            "partial(resolve, view=view, policy=policy, store_id=store_id, group=group, **...)",
            "partial(resolve, view=view, policy=policy, **...)",
        ),
        ("resolve_locked", "resolve(..., store_id=store_id, group=request.group, **...)", "resolve(..., **...)"),
        tests=(f"{_MIRRORED}test_a_rewound_row_is_noticed_also_after_claims_that_did_not_look_at_it",),
        why="The claim looks twice, without and with its locks. Either alone refuses, so that both go.",
    ),
    mutant(
        "epoch-above-the-copies",
        ("write_whole", "max(locked.epoch, copied)", "locked.epoch"),
        tests=(f"{_MIRRORED}test_after_a_restore_epochs_go_on_above_those_that_kafka_has_seen",),
        why="A late copy of the lost database's job would look newer than the decision that replaced it.",
    ),
    mutant(
        "pinned",
        ("protocol:_RULES", "(..., _pinned, ...)", "(..., ...)"),
        tests=(f"{_RESOLVED}test_a_pinned_row_wins_whatever_kafka_says",),
        why="A reset backwards would be undone by what Kafka still has.",
    ),
    mutant(
        "pinned-after-copies",
        (
            "protocol:_RULES",
            "(..., _pinned, _foreign_copy, _our_copy, ...)",
            "(..., _foreign_copy, _our_copy, _pinned, ...)",
        ),
        tests=(f"{_RESOLVED}test_a_pinned_row_wins_over_every_copy",),
        why="The order of the rules is the table: an operator's decision comes before every copy.",
    ),
    mutant(
        "pin-kept-by-a-claim",
        ("new_offsets", "... or (row is not None and row.pinned) or ...", "... or ..."),
        tests=(
            "tests/contract/test_postgres.py::TestPostgresOffsetStore::test_a_reset_backwards_sticks_through_restarts_whatever_kafka_says",
        ),
        why="A reset would stick through one start and be undone by the next, if the job dies before the mirror.",
    ),
    mutant(
        "pin-of-an-override",
        ("_PINS", "{..., Reason.REWOUND_STORED, Reason.REWOUND_KAFKA, Reason.CONTEST_STORED, ...}", "{..., ...}"),
        tests=("tests/unit/store/test_pins.py::test_a_decision_about_a_rewound_database_is_made_once",),
        why="A decision about a rewound database would have to be made at every start anew, or be undone.",
    ),
    mutant(
        "pin-taken-off-too-soon",
        (
            "Mirror._copy",
            "(is_last or self._is_due) and self._commit(rows) and not self._given_up",
            "self._commit(rows) or not self._given_up",
        ),
        tests=(f"{_MIRRORED}test_a_pin_comes_off_when_kafka_has_the_copy_and_not_before",),
        why="Kafka's older, larger offset would win again before the mirror has overwritten it.",
    ),
    mutant(
        "first-partition-first",
        ("spark:judge", "(stored[one[0]] >= one[1], one)", "one"),
        tests=(f"{_CONTINUITY}test_what_is_missing_in_one_partition_is_told_before_what_would_be_repeated_in_another",),
        why="The error would tell to remove a checkpoint, and nothing of the results that are missing.",
    ),
    mutant(
        "log-judged-by-its-id",
        ("_judge_log", "row.is_of_another_topic(log.topic_id)", "not tp"),
        tests=(f"{_RESOLVED}test_a_restart_begins_the_whole_topic_anew[longer]",),
        why="The first records of a recreated topic would be skipped, up to the old log's offset.",
    ),
    mutant(
        "end-of-the-same-topic",
        ("_judge_range", "... and facts.is_same_log", "... and facts.is_same_log and facts.stored is None"),
        tests=(f"{_RESOLVED}test_a_log_that_ends_below_the_row_under_the_same_id_is_no_other_topic",),
        why="An open transaction under read_committed would look like a recreated topic; a restart would double it.",
    ),
    mutant(
        "mirror-of-a-stale-claim",
        ("Mirror._copy", "row.token != self._claim.token", "row.token is None"),
        tests=(f"{_MIRRORED}test_a_stale_claim_copies_nothing_not_even_at_its_end",),
        why="A stale job would go on copying, with a stamp of its own, what the new one has written.",
    ),
    mutant(
        "mirror-of-a-rewound-database",
        ("Mirror._copy", "any(row.next_offset < self._highest.get(tp, 0) for tp, row in rows.items())", "not rows"),
        tests=(f"{_MIRRORED}test_a_database_that_is_restored_under_the_job_does_not_pull_the_copy_back",),
        why="The copy is all that shows that the database was restored; the mirror would overwrite it.",
    ),
    mutant(
        "another-application-is-looked-for",
        ("Mirror._commit", "rows and self._is_used_by_others(rows)", "self._is_used_by_others({})"),
        tests=(f"{_MIRRORED}test_what_another_application_commits_under_the_job_is_neither_overwritten_nor_adopted",),
        why="An old consumer in the same group would resume at our offset, and never read the records before it.",
    ),
    mutant(
        "another-application-s-same-commit-again",
        ("Mirror._send", "self._found.pop(tp, None)", "pass"),
        tests=(f"{_MIRRORED}test_what_the_claim_has_read_may_be_overwritten_once_and_not_if_it_comes_again",),
        why="An application that is set back to where it was when the job started would be overwritten.",
    ),
    mutant(
        "members-end-the-mirror",
        ("Mirror._note_failure", "time.monotonic() >= self._leave_by", "False"),
        tests=(f"{_MIRRORED}test_members_end_it_for_good_also_when_they_have_left",),
        why="The mirror would wait until the other application has left, and overwrite its offsets then.",
    ),
    mutant(
        "members-of-the-fleet-before",
        ("Mirror._note_failure", "time.monotonic() >= self._leave_by", "True"),
        tests=(f"{_MIRRORED}test_a_job_waits_for_the_consumers_before_it_to_leave_kafkas_group_and_then_copies",),
        why="A job that takes a group over from consumers would show no lag in Kafka for as long as it runs.",
    ),
    mutant(
        "members-of-the-fleet-before-at-the-claim",
        ("Mirror._found_others", "not self._target.after_fleet", "True"),
        tests=(f"{_MIRRORED}test_a_job_waits_for_the_consumers_before_it_to_leave_kafkas_group_and_then_copies",),
        why="The same, where the claim has seen the consumers already.",
    ),
    mutant(
        "members-of-no-fleet",
        ("_follows_fleet", "locked.owner.last_fleet == fleet_name(...)", "True"),
        tests=(f"{_MIRRORED}test_members_of_a_group_in_kafka_that_the_consumers_did_not_use_are_another_applications",),
        why="Another application's group would be tried again and again, until it has left.",
    ),
    mutant(
        "members-that-stay",
        ("Mirror.__init__", "LEAVING", "LEAVING * 1000"),
        tests=(f"{_MIRRORED}test_members_that_stay_longer_than_a_session_are_another_applications",),
        why="The mirror would wait until the other application has left, and overwrite its offsets then.",
    ),
    mutant(
        "members-at-the-claim",
        ("_has_members", "has_members and ...", "not has_members and ..."),
        tests=(f"{_MIRRORED}test_members_at_the_claim_can_refuse_it_and_nobody_is_fenced",),
        why="A job that must not share its group with another application would do so.",
    ),
    mutant(
        "contest-recorded",
        ("Mirror._record", "session.contest(claim.group, claim.token, rows)", ""),
        tests=(f"{_MIRRORED}test_what_another_application_commits_under_the_job_is_neither_overwritten_nor_adopted",),
        why="The next start would adopt the other application's offset, and skip what is between.",
    ),
    mutant(
        "contested",
        ("protocol:_RULES", "(..., _contested, ...)", "(..., ...)"),
        tests=(f"{_RESOLVED}test_what_another_application_has_committed_under_the_job_stops_the_start",),
        why="The same: that it is recorded does not help if the start does not look.",
    ),
    mutant(
        "contested-before-pinned",
        ("protocol:_RULES", "(..., _contested, _pinned, ...)", "(..., _pinned, _contested, ...)"),
        tests=(f"{_RESOLVED}test_what_another_application_has_committed_under_the_job_stops_the_start",),
        why="A reset of before would overwrite what another application has committed after it.",
    ),
    mutant(
        "contest-through-a-rename",
        ("RenameGroup.write", "_same_offset(row, keep_contested=True)", "_same_offset(row, keep_contested=False)"),
        tests=(f"{_MIRRORED}test_a_new_name_does_not_decide_about_another_application",),
        why="A new name would decide what only an operator can: that the other application's offsets do not count.",
    ),
    mutant(
        "stamp-of-another-group",
        ("Stamp.is_of", "self.store_id == store_id and ...", "self.store_id == store_id"),
        tests=(f"{_MIRRORED}test_two_groups_of_a_store_do_not_share_a_group_in_kafka",),
        why="Two groups with one kafka_group would take each other's copies for a rewound database.",
    ),
    mutant(
        "another-start-of-the-reader",
        ("_OTHER_STARTS", '("startingTimestamp", "startingOffsetsByTimestamp")', '("startingOffsetsByTimestamp",)'),
        tests=("tests/unit/kafka/test_options.py::test_another_start_than_the_claims_and_an_end_are_refused_by_name",),
        why="Spark would begin at that time: above what is stored it would end in a gap, below it read for nothing.",
    ),
    mutant(
        "home-before-anybody-is-asked",
        ("_look_around", "identity.expect_home(schema)", ""),
        tests=(f"{_ADMIN}test_a_store_in_another_database_starts_no_job_before_somebody_says_why",),
        why="A clone's job would wait for, and terminate, what holds its locks, before it is told that it is a clone.",
    ),
    mutant(
        "grants-before-anybody-is-fenced",
        ("_look_around", "session.expect_grants()", ""),
        tests=(f"{_GRANTS}test_what_the_role_lacks_since_the_last_revision_is_named_before_anyone_is_fenced",),
        why="After a deploy without its grants the job that ran would be fenced, and the new one would fail later.",
    ),
    mutant(
        "home-under-the-lock",
        ("lock_whole", "identity.expect_home(schema)", ""),
        tests=(f"{_ADMIN}test_a_store_in_another_database_starts_no_job_before_somebody_says_why",),
        why="A connection that reaches the clone after the first look would claim there.",
    ),
    mutant(
        "copy-of-the-database-is-met",
        ("Mirror._end_at_later_claim", "not rows or any(...)", "rows is not None"),
        tests=(
            f"{_MIRRORED}test_a_running_job_that_meets_a_copy_of_its_database_goes_on_and_the_next_start_names_the_copy",
        ),
        why="The original would be told that it was taken over, and its next start that it was rewound.",
    ),
    mutant(
        "takeover-is-no-copy",
        ("Mirror._end_at_later_claim", "not rows or any(...)", "not rows"),
        tests=(f"{_MIRRORED}test_a_late_copy_of_an_earlier_claim_is_overwritten_and_one_of_a_later_claim_is_not",),
        why="Each takeover would be blamed on a copy of the database.",
    ),
    mutant(
        "copy-of-the-database-is-ignored",
        ("protocol:_RULES", "(_copied, ...)", "(...,)"),
        tests=(f"{_RESOLVED}test_a_copy_of_the_database_that_was_seen_under_the_job_is_ignored",),
        why='The original would be told that it was rewound; with on_rewound="kafka" it would skip records.',
    ),
    mutant(
        "copy-of-the-database-by-its-epoch",
        ("_copied", "facts.stamp.epoch <= facts.contested_epoch", "facts.stamp.epoch < facts.contested_epoch"),
        tests=(f"{_RESOLVED}test_a_copy_of_ours_that_no_later_claim_made_is_of_this_database",),
        why="A database that was restored under the job would start as if nothing were lost, without asking.",
    ),
    mutant(
        "copy-of-the-database-by-the-mark",
        (
            "_starts",
            "contested if row is None else row.pinned_epoch if row.contested else None",
            "contested and max((row.token.epoch for row in rows.values()), default=0)",
        ),
        tests=(f"{_MIRRORED}test_a_copy_that_was_met_is_named_whatever_the_group_s_token_is_by_then",),
        why='A reset of another partition would make the copy look like a restore; on_rewound="kafka" loses records.',
    ),
    mutant(
        "mark-at-a-claim",
        ("_is_unchanged", "row is None or new.pinned or new.contested", "row is None or new.pinned"),
        tests=(f"{_MIRRORED}test_a_copy_of_the_claim_that_came_after_a_contest_is_our_own",),
        why="A restored database would start as if nothing were lost, without asking.",
    ),
    mutant(
        "pin-of-an-ignored-copy",
        ("_PINS", "{..., Reason.COPY_STORED}", "{...}"),
        tests=(f"{_MIRRORED}test_what_the_copy_still_copies_after_that_counts_at_no_start",),
        why="A last commit of the copy's job would count at the original's next start.",
    ),
    mutant(
        "new-id-fences",
        ("NewStoreId.write", "write_token(session, group, token, by.who)", ""),
        tests=(f"{_ADMIN}test_a_copy_is_a_store_of_its_own_and_adopts_nothing_of_the_original_s_group_in_kafka",),
        why="A job that runs in the copy would go on to stamp its commits with the original's id.",
    ),
    mutant(
        "new-id-adopts-nothing",
        ("NewStoreId.write", "session.contest(group, token, rows)", ""),
        tests=(f"{_ADMIN}test_a_copy_is_a_store_of_its_own_and_adopts_nothing_of_the_original_s_group_in_kafka",),
        why="With a pinned row, a copy would overwrite the original's offsets in Kafka.",
    ),
    mutant(
        "marked-batch-planned-anew",
        ("spark:judge", "stored[tp] != offset", "False"),
        tests=(f"{_CONTINUITY}test_the_marked_batch_with_another_end_was_planned_anew_by_an_older_checkpoint",),
        why="Records that an older checkpoint adds to a batch of that number would be dropped with its rows.",
    ),
    mutant(
        "evidence-is-recorded",
        ("until_believed", "_record(store, request.group, evidence, proven(evidence.confirmed))", "pass"),
        tests=(f"{_LOGS}test_a_refused_start_is_remembered_when_the_log_has_grown_until_a_reset",),
        why="A truncated log that has grown past the stored offset by the next start would be read on from there.",
    ),
    mutant(
        "evidence-is-seen-twice",
        (
            "Evidence.confirmed",
            "{tp: what for tp, what in self._latest.items() if tp in self._former}",
            "{tp: what for tp, what in self._latest.items()}",
        ),
        tests=(f"{_LOGS}test_what_only_one_attempt_has_seen_is_no_evidence",),
        why="One answer of a lagging broker would stop all later starts until a reset.",
    ),
    mutant(
        "evidence-refuses",
        (
            "_starts",
            "row is not None and row.suspect is not None",
            "False",
        ),
        tests=(f"{_LOGS}test_a_refused_start_is_remembered_when_the_log_has_grown_until_a_reset",),
        why="What is recorded would be for the history alone.",
    ),
    mutant(
        "evidence-by-the-high-watermark",
        ("look", "log.high < row.next_offset", "log.end < row.next_offset"),
        tests=(f"{_LOGS}test_an_offset_beyond_the_last_stable_one_is_refused_and_not_recorded",),
        why="An open transaction below the stored offset would be taken for a truncated log.",
    ),
    mutant(
        "evidence-goes-along",
        ("_same_offset", "new._replace(pair=row.pair, suspect=row.suspect)", "new"),
        tests=(f"{_ADMIN}test_a_rename_and_a_copy_carry_the_evidence_and_the_pair",),
        why="A rename would make a truncated log startable.",
    ),
    mutant(
        "pair-through-a-reset",
        ("_decided_offset", "row.pair if row.suspect is None else None", "None"),
        tests=(f"{_LOGS}test_a_reset_accepts_no_truncation_that_its_plan_does_not_show",),
        why="A reset past a bad record would hide that the log was truncated below it, and has regrown.",
    ),
    mutant(
        "pair-of-a-smaller-offset",
        ("_decided_offset", "min(pair.offset, move.to_offset)", "pair.offset"),
        tests=(f"{_LOGS}test_a_truncation_above_where_a_reset_went_lost_nothing",),
        why="A job that was set back below what the log lost would be refused, although it lost nothing.",
    ),
    mutant(
        "pair-of-a-reset",
        ("_decided_offset", "move.log is not None", "False"),
        tests=(f"{_LOGS}test_an_offset_that_a_reset_found_in_the_log_is_evidence_when_the_log_ends_below_it",),
        why="What the log loses between a reset and the next start would be noticed by nobody, once it has regrown.",
    ),
    mutant(
        "evidence-before-a-reset",
        (
            "_is_as_reset",
            "bool(last) and last[0].to_offset == row.next_offset and (last[0].from_offset or 0) <= end",
            "bool(last) and last[0].to_offset == row.next_offset",
        ),
        tests=(f"{_LOGS}test_what_was_read_before_a_reset_is_evidence_also_where_no_pair_shows_it",),
        why="The command that skips a record would hide that the log had lost what was read before.",
    ),
    mutant(
        "evidence-above-a-reset",
        (
            "write_evidence",
            "tp not in ends or not _is_as_reset(session, group, tp, row, ends[tp])",
            "not _is_as_reset(session, group, tp, row, row.next_offset)",
        ),
        tests=(f"{_LOGS}test_a_log_that_ends_below_what_was_read_is_evidence_wherever_a_reset_went_since",),
        why="A reset would hide that the log had lost what was read before it.",
    ),
    mutant(
        "pair-is-checked-first",
        ("LogLook.pair", "new if self.checked.get(tp) == (known, new.leader_epoch) else known", "new"),
        tests=(f"{_LOGS}test_a_pair_is_checked_before_it_is_replaced",),
        why="A claim would put the new leader epoch in place of the one that shows the truncation.",
    ),
    mutant(
        "epoch-below-the-pair",
        ("look", "epoch < row.pair.leader_epoch", "epoch < 0"),
        tests=(f"{_LOGS}test_an_epoch_below_the_pair_s_is_a_truncated_log",),
        why="The broker knows no such epoch, and can't tell where it ended.",
    ),
    mutant(
        "truncated-is-refused",
        ("acquire:ask", "looked.truncated.items()", "()"),
        tests=(f"{_LOGS}test_a_log_that_was_truncated_and_has_regrown_is_refused_until_a_reset",),
        why="The records that took the lost ones' offsets would never be read.",
    ),
    mutant(
        "truncated-ends-the-batch",
        ("new_transaction", "claim.require_log()", ""),
        tests=(f"{_LOGS}test_a_log_that_is_truncated_while_the_job_runs_ends_its_next_batch",),
        why="A running job would go on in the other log, and its results would have a gap.",
    ),
    mutant(
        "pairs-wait-for-nobody",
        text("WRITE_PAIRS", "FOR UPDATE OF p SKIP LOCKED) AS free", "FOR UPDATE OF p) AS free"),
        tests=(
            "tests/contract/test_postgres.py::TestPostgresOffsetStore::test_pairs_are_written_beside_the_job_and_wait_for_no_lock",
        ),
        why="The mirror would wait for the job's transactions, and could deadlock with them: it locks in no order.",
    ),
    mutant(
        "new-partition-has-its-topic-s-id",
        ("known_ids", "{topic: next(iter(ids)) for topic, ids in of_topics.items() if len(ids) == 1}", "{}"),
        tests=(
            f"{_LOGS}test_a_new_partition_that_is_too_short_is_not_taken_for_a_new_topic",
            f"{_LOGS}test_a_new_partition_that_was_truncated_and_has_regrown_is_refused",
        ),
        why="A truncation in a partition that was added while the job ran could double the whole topic.",
    ),
    mutant(
        "locked-pair-is-tried-again",
        ("Mirror._write_pairs", "not self._write(write) or written < len(pairs)", "not self._write(write)"),
        tests=(f"{_LOGS}test_a_pair_whose_row_was_locked_is_written_at_the_next_turn",),
        why="A job whose transactions hold its rows most of the time would have no pairs for minutes.",
    ),
    mutant(
        "pairs-before-questions",
        ("Mirror._find_lost", "self._write_pairs(rows, logs, seen, rows.keys() - seen.lost.keys())", ""),
        tests=(f"{_LOGS}test_a_log_that_can_t_be_asked_about_leaves_the_others_guarded_and_is_told_once",),
        why="One log that can't be told would leave all others without a guard.",
    ),
    mutant(
        "logs-that-can-t-be-told-hide-no-other",
        ("look", "untold[tp] = at\ncontinue", "raise at"),
        tests=(f"{_LOGS}test_a_log_that_can_t_be_asked_about_hides_no_truncation_of_another",),
        why="After a rolling restart, one partition without a leader would hide the truncation of each other one.",
    ),
    mutant(
        "logs-that-can-t-be-told-start-no-job",
        ("acquire:ask", "looked.expect_told()", ""),
        tests=(f"{_LOGS}test_a_log_that_can_t_be_asked_about_hides_no_truncation_of_another",),
        why="A job would go on in a log that may have been truncated, if its broker did not answer in time.",
    ),
    mutant(
        "looks-of-a-mirror-that-seldom-copies",
        ("Mirror._wait", "min(self._copy_at - now, max(self._look_at - now, INTERVAL))", "self._copy_at - now"),
        tests=(f"{_LOGS}test_a_mirror_that_seldom_copies_looks_at_the_logs_as_often_as_any_other",),
        why="With a long mirror_every a job would go on for as long in a log that was truncated and has regrown.",
    ),
    mutant(
        "broken-attempt-refutes-nothing",
        ("Evidence.begin", "if self._has_looked: ...", "if True: ..."),
        tests=(f"{_LOGS}test_an_attempt_that_breaks_before_it_looks_refutes_nothing",),
        why="A lost connection in between would leave a truncated log unrecorded, and it would grow again.",
    ),
    mutant(
        "first-evidence-stays",
        text("WRITE_SUSPECTS", "CASE WHEN p.suspect IS NULL AND p.epoch", "CASE WHEN p.epoch"),
        tests=("tests/contract/test_postgres.py::TestPostgresOffsetStore::test_the_first_evidence_stays",),
        why="Each refused start would replace what was found first, and when, and write a line of history.",
    ),
    mutant(
        "short-log-is-believed-after-a-while",
        ("Mirror._find_lost", "tp in former and now - former[tp] >= LOOK_SECONDS", "tp in former"),
        tests=(f"{_LOGS}test_a_running_job_goes_on_until_its_mirror_has_seen_for_a_while_what_may_pass",),
        why="A new leader that tells a low end for seconds would end the job, until somebody resets it.",
    ),
    mutant(
        "short-log-at-the-end-of-the-job",
        ("Mirror._find_lost", "self._copies.is_stopping or ...", "..."),
        tests=(f"{_LOGS}test_a_job_that_ends_because_its_log_is_too_short_records_it",),
        why="A job that Spark has ended for that would leave nothing behind for when the log has grown again.",
    ),
    mutant(
        "lost-records-are-looked-for-again",
        ("Mirror._confirmed", "range(_LOOKS - 1)", "()"),
        tests=(f"{_LOGS}test_a_running_job_goes_on_if_the_mirror_sees_a_truncation_only_once",),
        why="One wrong answer of a broker would end the job, until somebody resets it.",
    ),
    mutant(
        "lost-records-of-the-same-topic",
        ("Mirror._confirmed", "ids[tp.topic] == (rows[tp].topic_id or known.get(tp.topic))", "known"),
        tests=(f"{_LOGS}test_a_topic_that_is_recreated_while_the_job_runs_is_no_log_that_lost_records",),
        why="A topic that was created anew would be told as a truncated log; no on_recreated= lifts that.",
    ),
    mutant(
        "truncated-ends-the-sink-s-batch",
        ("Runner._run", "self.claim.require_log()", ""),
        tests=("tests/unit/spark/test_sink.py::test_no_batch_begins_once_the_mirror_has_seen_that_a_log_lost_records",),
        why='With atomicity="partition" the tasks would go on in the other log: their transactions don\'t look.',
    ),
    mutant(
        "truncated-is-asked-twice",
        ("Broker.find_truncated", "range(2)", "range(1)"),
        tests=(f"{_BROKERS}test_leader_epochs_are_asked_about_in_parts_each_in_its_own_time",),
        why="A broker that lags behind its leader would refuse a start with one answer.",
    ),
    mutant(
        "truncated-within-the-log",
        ("Broker.find_truncated", "_holds(logs[tp], pairs[tp].offset)", "tp in logs"),
        tests=(f"{_BROKERS}test_a_log_that_lies_outside_of_the_offset_altogether_was_not_told_to_be_truncated",),
        why="Records that retention has removed would be told as a truncated log, and a short log at once.",
    ),
    mutant(
        "truncated-by-librdkafka-s-reset",
        ("truncation:_ask", "code == ck.KafkaError._AUTO_OFFSET_RESET", "code != ck.KafkaError._PARTITION_EOF"),
        tests=(f"{_BROKERS}test_only_librdkafkas_reset_tells_that_a_log_was_truncated",),
        why="A connection that breaks would be told as a truncated log.",
    ),
    mutant(
        "looks-have-a-client-of-their-own",
        ("Broker._look", "self._looks.ask(...)", "self._requests.ask(...)"),
        tests=(f"{_BROKERS}test_a_look_at_the_logs_delays_no_batch",),
        why="A batch would wait while the mirror looks at the logs.",
    ),
    mutant(
        "home-that-is-not-known",
        ("StoreIdentity.is_elsewhere", "self.is_compared and self.home != self.here", "self.home != self.here"),
        tests=(f"{_ADMIN}test_a_home_that_is_not_known_is_not_compared",),
        why="Where a provider does not let the role ask which database it is, no job would start.",
    ),
    mutant(
        "home-that-may-not-be-asked-for",
        (
            "PostgresSession.identity",
            "_, found = self.together(sql.LEAVE_IDENTITY, sql.IDENTITY_ALONE)",
            "[found] = self.together(sql.IDENTITY_ALONE)",
        ),
        tests=(f"{_GRANTS}test_a_role_that_may_not_read_which_database_it_is_migrates_and_starts_jobs_all_the_same",),
        why="The same: the refused question would have ended the transaction.",
    ),
    mutant(
        "home-before-a-dry-run",
        ("resolve_starting_offsets", "identity.expect_home(store.database.schema)", "pass"),
        tests=(f"{_ADMIN}test_a_store_in_another_database_starts_no_job_before_somebody_says_why",),
        why="A clone would be told where its job would start, although it would not.",
    ),
    mutant(
        "moved-although-that-is-not-known",
        ("MoveStore.plan", "before.here is None", "before.store_id is None"),
        tests=(f"{_GRANTS}test_a_role_that_may_not_read_which_database_it_is_migrates_and_starts_jobs_all_the_same",),
        why="It would be told as done, and nothing would be written.",
    ),
    mutant(
        "moved-reads-the-store-under-its-lock",
        ("MoveStore.locked", "lock_identity(people(session))", "session.identity()"),
        tests=(f"{_TOGETHER}test_whoever_says_what_a_store_is_knows_what_was_said_meanwhile",),
        why="A store moved that has waited for a new-id would write the id of the original back.",
    ),
    mutant(
        "new-id-reads-the-store-under-its-lock",
        ("NewStoreId.locked", "lock_identity(people(session))", "session.identity()"),
        tests=(f"{_TOGETHER}test_a_new_id_names_the_store_that_the_database_was_until_then",),
        why="The history would name another store than the one that the database was a copy of.",
    ),
    mutant(
        "name-in-a-line-of-the-log",
        ("StartingOffsets._ways_out", "unknown.isprintable() and earlier.isprintable()", "True"),
        tests=("tests/unit/store/test_first_claims.py::test_no_name_breaks_the_line_of_the_log",),
        why="A group's name could forge a line of the log.",
    ),
    mutant(
        "consumer-that-no-thread-ends",
        ("let_go", "if ended.done() and ended.exception() is not None: holder.clear()", ""),
        tests=("tests/unit/protocol/test_background.py::test_without_threads_a_consumer_is_let_go_all_the_same",),
        why="Where there can be no more threads, each claim would leave a consumer behind.",
    ),
    mutant(
        "copy-of-the-database-is-told",
        ("store:_attempt", "_warn_of_copy(request, acquired.starting)", ""),
        tests=(
            f"{_MIRRORED}test_a_running_job_that_meets_a_copy_of_its_database_goes_on_and_the_next_start_names_the_copy",
        ),
        why="Nobody would know why the original ignores what Kafka has, nor give the copy an id.",
    ),
    mutant(
        "marked-batch-of-a-store-that-was-set-back",
        ("spark:judge", "if at < offset: ...", "if at < offset and not is_marked: raise CheckpointAhead(ends)"),
        tests=(f"{_CONTINUITY}test_the_marked_batch_of_a_store_below_what_is_committed_is_ahead",),
        why="The error would tell to restore the checkpoint where the database was set back.",
    ),
    mutant(
        "another-end-of-the-reader",
        ("protocol:_ENDS", '(..., "endingTimestamp")', "(...,)"),
        tests=("tests/unit/kafka/test_options.py::test_another_start_than_the_claims_and_an_end_are_refused_by_name",),
        why="A query that is meant to end at that time would read on: Spark ignores the option.",
    ),
    mutant(
        "evidence-where-the-row-was-locked",
        (
            "Mirror._look_at_logs",
            "self._lost_is_recorded = self._write(...)",
            "self._lost_is_recorded = True\nself._write(...)",
        ),
        tests=(f"{_LOGS}test_evidence_is_recorded_at_a_later_turn_where_the_row_was_locked",),
        why="A job whose transaction held the row for a second would leave nothing behind for the next start.",
    ),
    mutant(
        "evidence-of-a-stale-look",
        text(
            "WRITE_SUSPECTS",
            "CASE WHEN p.suspect IS NULL AND p.epoch = :epoch AND p.claim_id = :claim_id THEN true END",
            "p.suspect IS NULL",
        ),
        tests=(
            "tests/contract/test_postgres.py::TestPostgresOffsetStore::test_evidence_is_of_the_rows_that_were_looked_at",
        ),
        why="What a late look has seen would stop the jobs of a newer claim, or come back after a reset.",
    ),
    mutant(
        "pairs-of-a-stale-claim",
        text("WRITE_PAIRS", "AND CASE WHEN p.epoch = :epoch AND p.claim_id = :claim_id THEN true END\n", ""),
        tests=(
            "tests/contract/test_postgres.py::TestPostgresOffsetStore::test_pairs_are_written_beside_the_job_and_wait_for_no_lock",
        ),
        why="A stale job's mirror would put its pair beside an offset that another one has stored.",
    ),
)
