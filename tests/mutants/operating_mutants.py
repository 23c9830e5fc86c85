"""What operators decide, and who counts as alive: they need PostgreSQL and nothing else."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant, text

_CONTRACT: Final = "tests/contract/test_postgres.py::TestPostgresOffsetStore::"
_PRUNES: Final = f"{_CONTRACT}test_a_prune_waits_for_another_one_at_the_letters_and_never_for_a_jobs_work"
_WAITING: Final = f"{_CONTRACT}test_what_changes_while_a_decision_waits_for_its_locks_is_shown_first"
_SHOWN: Final = f"{_CONTRACT}test_what_has_changed_since_the_plan_was_shown_is_shown_first"
_MEANWHILE: Final = "tests/integration/cli/test_reset_meanwhile.py::"
_RESETS: Final = "tests/integration/operations/test_resets.py::"
_BEATS: Final = "tests/integration/store/test_heartbeat.py::"
_COMMANDS: Final = "tests/integration/commands/test_plans.py::"
_ON_A_PAGE: Final = "tests/integration/pages/test_actions.py::test_what_changes_right_before_the_lock_is_shown_first"
_REVISIONS: Final = "tests/integration/postgres/test_schema_check.py::"
_IDS: Final = (
    "tests/integration/postgres/test_history_ids.py::"
    "test_claims_resets_and_new_partitions_go_on_where_the_ids_lag_behind_the_rows"
)

_DECISIONS: Final = (
    *("pause", "resume", "replay", "discard", "erase", "reset", "copy", "rename", "delete", "delete-topic"),
    *("outbox-retry", "outbox-discard", "moved", "new-id"),
)
_UNSEEN: Final = "[plan for plan in operation.locked(session)]"

OPERATING: Final[tuple[Mutant, ...]] = (
    mutant(
        "owner-as-it-was-met",
        ("Fencing.locked", "replace(self, met=plan.owner).plan(session)", "self.plan(session)"),
        tests=(
            f"{_RESETS}test_a_job_that_ends_while_its_transaction_is_waited_for_is_still_the_one_that_was_shown[reset]",
        ),
        why="A job's transaction would be terminated, and then the decision refused, since its owner is gone.",
    ),
    mutant(
        "reset-under-the-lock",
        (
            "Fencing.locked",
            (
                "for name in self.names: session.lock_group_partitions(name)\n"
                "yield replace(self, met=plan.owner).plan(session)"
            ),
            "",
        ),
        tests=(
            f"{_MEANWHILE}test_what_a_job_stores_between_the_plan_and_the_fence_is_what_is_moved_printed_and_recorded",
        ),
        why="A job that advances between plan and fence is moved from elsewhere than what is printed and recorded.",
    ),
    mutant(
        "live-under-the-lock",
        ("carry_out", "[_compared(operation, plan, if_plan) for plan in operation.locked(session)]", _UNSEEN),
        tests=(f"{_MEANWHILE}test_a_job_that_claims_between_the_look_and_the_fence_is_not_fenced_unless_it_is_forced",),
        why="A job that starts while the operator types would be fenced without --force.",
    ),
    mutant(
        "plan-under-the-lock",
        ("carry_out", "[_compared(operation, plan, if_plan) for plan in operation.locked(session)]", _UNSEEN),
        tests=(
            *(f"{_WAITING}[{name}]" for name in _DECISIONS),
            _PRUNES,
        ),
        why="Each decision would do what nobody was shown, if that changes while it waits for its locks.",
    ),
    mutant(
        "prune-of-letters-that-it-has-not-locked",
        (
            "PruneLetters.write",
            "plan.keys",
            "people(session).lock_prunable(self.group, self.states, plan.before, limit=plan.count)",
        ),
        tests=(f"{_CONTRACT}test_a_prune_deletes_the_letters_that_it_has_locked_and_no_other",),
        why="A letter that nobody counted would be deleted instead of one that was.",
    ),
    mutant(
        "prune-that-waits-for-a-job",
        ("PruneLetters.locked", "session.share_group(self.group)", "session.lock_group(self.group)"),
        tests=(_PRUNES,),
        why="Idle work or a replay of ten seconds would end a prune in a LockTimeout.",
    ),
    mutant(
        "plan-before-the-lock",
        ("carry_out", "_compared(operation, read(database, operation.plan), if_plan)", "pass"),
        tests=(
            f"{_CONTRACT}test_a_plan_that_is_gone_ends_no_transaction_of_a_newer_job",
            f"{_CONTRACT}test_a_reset_that_is_to_refuse_neither_waits_for_a_live_job_nor_ends_its_transaction",
        ),
        why="A decision that will be refused would first wait for a newer job's transaction, and then terminate it.",
    ),
    mutant(
        "plan-before-the-rows",
        (
            "Fencing.locked",
            (
                "yield (plan := self.plan(session))\nfor name in self.names: session.lock_group_partitions(name)\n"
                "yield replace(self, met=plan.owner).plan(session)"
            ),
            "for name in self.names: session.lock_group_partitions(name)\nyield self.plan(session)",
        ),
        tests=(f"{_CONTRACT}test_a_job_that_claims_while_a_decision_waits_loses_no_transaction",),
        why="A decision that will be refused would terminate the transaction of a job that has claimed since.",
    ),
    mutant(
        "plan-of-letters-as-they-were",
        ("_Letters._plan", "chosen.items()", "chosen"),
        tests=(f"{_SHOWN}[discard]",),
        why="A letter that has failed again since it was shown, perhaps with another error, would be given up.",
    ),
    mutant(
        "plan-of-a-token",
        ("held_by", "[owner.token.epoch, str(owner.token.claim_id)]", "[]"),
        tests=(f"{_SHOWN}[reset]",),
        why="A reset would fence another job than the one that it has shown.",
    ),
    mutant(
        "plan-of-letters-that-were-overtaken",
        ("ReplayLetters.counts_overtaken", "self.forced", "False"),
        tests=(f"{_CONTRACT}test_a_letter_that_was_overtaken_since_is_in_the_new_plan_of_a_forced_replay",),
        why="A forced replay would replace rows that were written after its plan was shown.",
    ),
    mutant(
        "plan-of-a-loss",
        ("ResetOffsets.plan", "[one.suspect for one in moves]", "list[object]()"),
        tests=(f"{_CONTRACT}test_evidence_that_came_after_the_plan_is_not_cleared_unseen",),
        why="A reset would clear evidence of loss that nobody has seen.",
    ),
    mutant(
        "plan-goes-one-way",
        ("ResetOffsets.plan", "(..., one.shift < 0)", "(..., False)"),
        tests=(f"{_CONTRACT}test_a_reset_forwards_is_another_once_the_job_has_passed_its_offset",),
        why="A reset that was to pass over records would go back, and double what the job has stored since.",
    ),
    mutant(
        "pair-of-an-offset-that-stays",
        ("_decided_offset", "row.pair if row.suspect is None else None", "None"),
        tests=(f"{_CONTRACT}test_a_reset_to_where_it_is_keeps_what_tells_a_truncated_log_unless_it_accepts_the_loss",),
        why="A reset that only pins would make a truncated log startable that no start has seen yet.",
    ),
    mutant(
        "plan-in-any-zone",
        ("operations:_plain", "value.timestamp()", "float(value.hour)"),
        tests=(
            "tests/unit/operations/test_plans.py::test_a_time_is_the_same_in_all_zones_and_another_microsecond_is_another",
        ),
        why="A plan that one role has shown could never be carried out by another whose TimeZone differs.",
    ),
    mutant(
        "plan-of-a-page",
        ("_execute", 'given["premise"] or None', "None"),
        tests=("tests/integration/pages/test_actions.py::test_what_changes_right_before_the_lock_is_shown_first",),
        why="What someone agrees to on a page would no longer be what is done.",
    ),
    mutant(
        "plan-of-replayed-letters",
        ("ResetOffsets.plan", "digest_of(..., replayed, losses)", "digest_of(..., losses)"),
        tests=(f"{_CONTRACT}test_letters_that_were_replayed_since_are_in_the_new_plan_of_a_reset",),
        why="A reset would write rows twice that its plan has not counted.",
    ),
    mutant(
        "plan-of-a-delete-s-letters",
        ("DeleteGroup.plan", "digest_of(..., sorted(letters.items()), ...)", "digest_of(..., ...)"),
        tests=(f"{_SHOWN}[delete]",),
        why="Dead letters would be deleted that nobody has seen.",
    ),
    *(
        mutant(
            f"plan-of-a-store-s-{event}",
            (
                f"OffsetStore.{function}",
                "self._decide(..., **..., if_plan=if_plan)",
                "self._decide(..., **..., if_plan=None)",
            ),
            tests=(f"{_CONTRACT}{test}",),
            why="Another store than the one that was shown would be taken for moved, or copied.",
        )
        for event, function, test in (
            (
                "moved",
                "moved",
                "test_a_store_in_another_database_starts_no_job_before_somebody_says_why",
            ),
            (
                "new-id",
                "new_id",
                "test_a_copy_is_a_store_of_its_own_and_adopts_nothing_of_the_original_s_group_in_kafka",
            ),
        )
    ),
    mutant(
        "plan-of-a-delete-s-losses",
        ("DeleteGroup.plan", "digest_of(..., sorted(losses.items()))", "digest_of(...)"),
        tests=(f"{_SHOWN}[delete]",),
        why="Evidence of loss would be deleted that nobody has seen.",
    ),
    mutant(
        "plan-of-a-pause-that-was-made-anew",
        ("_identity", "[pause.at, pause.until]", "[pause.until]"),
        tests=(f"{_CONTRACT}test_a_pause_that_was_made_anew_is_another_one",),
        why="A resume would end a pause that someone has made since for another reason.",
    ),
    mutant(
        "plan-of-what-is-stored",
        ("held_by", '["not live", token, sorted(offsets.items())]', '["not live", token, sorted(offsets)]'),
        tests=(f"{_SHOWN}[copy]",),
        why="A copy would begin at other offsets than it has shown.",
    ),
    mutant(
        "plan-while-a-job-stores",
        ("held_by", "sorted(offsets)", "sorted(offsets.items())"),
        tests=(f"{_CONTRACT}test_what_a_live_job_stores_and_how_the_log_grows_change_no_reset",),
        why="No plan about a job that runs could ever be carried out.",
    ),
    mutant(
        "plan-of-a-command",
        (
            "decide_options",
            "How(**..., if_plan=given.pop('if_plan'))",
            "How(**..., if_plan=given.pop('if_plan') and None)",
        ),
        tests=tuple(
            f"{_COMMANDS}test_another_plan_is_printed_and_fails_like_a_check[{name}]"
            for name in (
                "reset",
                "replay",
                "discard",
                "copy",
                "rename",
                "delete",
                "prune",
                "new-id",
                "pause",
                "resume",
            )
        ),
        why="The command would do whatever there is to do by then, and say nothing.",
    ),
    mutant(
        "plan-that-has-changed-is-shown",
        ("Decide.carry_out", "show(changed.plan)", ""),
        tests=(f"{_COMMANDS}test_another_plan_is_printed_and_fails_like_a_check[reset]",),
        why="Nobody could see what has changed, nor agree to it.",
    ),
    mutant(
        "plan-that-has-changed-fails-like-a-check",
        ("_EXIT_CODES", "(..., PlanChanged)", "(...,)"),
        tests=(f"{_COMMANDS}test_another_plan_is_printed_and_fails_like_a_check[reset]",),
        why="A script could not tell a plan that has changed from a command that is broken.",
    ),
    mutant(
        "plan-without-execute",
        (
            "decide_options",
            "value is not None and context.params[flag] is at_once",
            "value is None and at_once is None",
        ),
        tests=(
            f"{_COMMANDS}test_a_condition_without_execute_is_wrong_usage[reset]",
            f"{_COMMANDS}test_a_condition_of_a_dry_run_is_wrong_usage[pause]",
        ),
        why="Who forgets --execute would take the plan for what was done.",
    ),
    mutant(
        "plan-of-a-forced-replay-on-a-page",
        ("premise", "... and not decision.forced", "..."),
        tests=(_ON_A_PAGE,),
        why="Letters would be replayed with force that nobody was shown.",
    ),
    mutant(
        "live-before-a-decision",
        ("Fencing.expect", "self.takeover == 'refuse'", "False"),
        tests=(
            f"{_CONTRACT}test_a_rename_that_may_not_fence_refuses_a_live_job",
            f"{_CONTRACT}test_a_delete_that_may_not_fence_refuses_a_live_job",
        ),
        why="A decision without --force would fence the job.",
    ),
    mutant(
        "tombstone-of-a-deleted-group",
        ("DeleteGroup.write", "write_token(session, self.group, token, by.who)", ""),
        tests=(f"{_CONTRACT}test_a_job_that_still_runs_is_fenced_by_a_delete_and_brings_nothing_back",),
        why="A job that still runs would write new partitions' rows under the deleted name.",
    ),
    mutant(
        "copies-of-a-deleted-group",
        ("protocol:resolve", "if deleted: ...", "if False: ..."),
        tests=(
            f"{_CONTRACT}test_a_job_of_a_deleted_name_begins_by_its_policy_whatever_was_copied_to_kafka",
            f"{_CONTRACT}test_what_another_application_has_committed_counts_after_a_delete_as_for_any_new_group",
        ),
        why="A new job of a deleted name would be told of a rewound database, or go on at the deleted offset.",
    ),
    mutant(
        "copies-of-after-a-delete",
        ("_without_deleted", "stamp.epoch > max(of_group, deleted.get(tp.topic, 0))", "False"),
        tests=(f"{_CONTRACT}test_a_database_that_is_older_than_a_copy_of_after_the_delete_is_still_noticed",),
        why="Once a group was deleted, no restored database would be noticed again: records would be lost or doubled.",
    ),
    *(
        mutant(
            f"copies-of-{name}",
            ("_without_deleted", "max(of_group, deleted.get(tp.topic, 0))", counted),
            tests=(f"{_CONTRACT}test_a_topic_that_was_deleted_is_a_new_one_and_the_others_go_on",),
            why=why,
        )
        for name, counted, why in (
            ("a-deleted-topic", "of_group", "A job that reads the topic again would be told of a rewound database."),
            ("other-topics", "max(deleted.values())", "A restored database would not be noticed in the other topics."),
        )
    ),
    mutant(
        "log-reaches-to-the-row",
        ("ResetOffsets._move", "max(log.end, row.next_offset)", "log.end"),
        tests=(f"{_RESETS}test_offsets_that_a_job_has_advanced_over_since_kafka_was_asked_are_in_the_log",),
        why="--to-latest would move a job back by what it has written since Kafka was asked: it would be there twice.",
    ),
    mutant(
        "live-lower-bound",
        ("is_live", "-LIVE < silence < LIVE", "silence < LIVE"),
        tests=("tests/integration/store/test_claims_takeover.py::test_an_owner_that_died_is_no_owner",),
        why='After the clock has stepped back, takeover="wait" would wait for a dead job until it has caught up.',
    ),
    mutant(
        "ended-query-is-silent",
        ("Heartbeat._beat", "self._has_ended()", "False"),
        tests=(f"{_BEATS}test_it_skips_its_beats_while_the_bound_query_has_ended_and_beats_again_once_it_runs",),
        why='takeover="wait" would wait for a query that has failed as long as its driver runs others.',
    ),
    mutant(
        "query-that-cannot-be-asked",
        ("Heartbeat._check_query", "is_active = True", "is_active = False"),
        tests=(f"{_BEATS}test_a_query_that_can_t_be_asked_or_does_not_answer_counts_as_running",),
        why="A JVM that fails to answer would take the heartbeats from a query that runs.",
    ),
    mutant(
        "history-ids-are-new",
        text("APPEND_HISTORY", "count(*) FILTER (WHERE appended.id > before.last)", "count(appended.id)"),
        tests=(_IDS,),
        why="After a failover, decisions would be put into gaps of the past, and read in the wrong order.",
    ),
    mutant(
        "history-ids-are-taken",
        ("PostgresSession.append_history", "self.run(sql.TAKE_HISTORY_IDS, no_claim=_NO_CLAIM, count=count)", ""),
        tests=(_IDS,),
        why="After a failover of logical replication no claim could be made.",
    ),
    mutant(
        "contracted-tables",
        ("runs_on", "series == found_series and number <= found", "number <= found"),
        tests=(f"{_REVISIONS}test_a_later_revision_that_contracts_asks_for_a_later_package",),
        why="A job would write to tables that no longer have what its guarantee rests on.",
    ),
)
