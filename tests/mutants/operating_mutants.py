"""What operators decide, and who counts as alive: they need PostgreSQL and nothing else."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_ADMIN: Final = "offsetstore/store/admin.py"
_LETTERS: Final = "offsetstore/store/letters.py"
_NAMES: Final = "offsetstore/store/names.py"
_HEARTBEAT: Final = "offsetstore/store/heartbeat.py"
_AREA: Final = "offsetstore/writers/staging_schema.py"
_SQL: Final = "offsetstore/postgres/statements.py"

_CONTRACT: Final = "tests/contract/test_postgres.py::TestPostgresOffsetStore::"
_WAITING: Final = f"{_CONTRACT}test_what_changes_while_a_decision_waits_for_its_locks_is_shown_first"
_SHOWN: Final = f"{_CONTRACT}test_what_has_changed_since_the_plan_was_shown_is_shown_first"
_MEANWHILE: Final = "tests/integration/cli/test_reset_meanwhile.py::"
_RESETS: Final = "tests/integration/store/test_resets.py::"
_BEATS: Final = "tests/integration/store/test_heartbeat.py::"
_COMMANDS: Final = "tests/unit/cli/test_plans.py::"
_ON_A_PAGE: Final = (
    "tests/unit/monitoring/dashboard/test_actions.py::test_what_changes_right_before_the_lock_is_shown_first"
)
_THEN: Final = "            ),\n            "
_REVISIONS: Final = "tests/integration/postgres/test_schema_check.py::"
_ABANDONED: Final = "tests/integration/writers/test_abandoned_staging.py::"
_IDS: Final = (
    "tests/integration/postgres/test_history_ids.py::"
    "test_claims_resets_and_new_partitions_go_on_where_the_ids_lag_behind_the_rows"
)

_TABLES: Final = "        names = [name for (name,) in driver.execute(_TABLES, (STAGING_SCHEMA,))]\n"
_RESET_LOOKS: Final = (
    "        request.expect(request.look(session, request.plan(session.read_partitions(group), view, seen), owner))\n"
)
_CLAIMS: Final = "        current = {_mark(claim_id) for claim_id in current_claims()}\n"

OPERATING: Final[tuple[Mutant, ...]] = (
    mutant(
        "reset-under-the-lock",
        (
            _ADMIN,
            "        done = request.look(session, request.plan(rows, view, seen), owner)\n",
            "        done = planned\n",
        ),
        tests=(
            f"{_MEANWHILE}test_what_a_job_stores_between_the_plan_and_the_fence_is_what_is_moved_printed_and_recorded",
        ),
        why="A job that advances between plan and fence is moved from elsewhere than what is printed and recorded.",
    ),
    mutant(
        "live-under-the-lock",
        (_ADMIN, _RESET_LOOKS, ""),
        (_ADMIN, "        request.expect(done)\n", "        expect_plan(done, request.if_plan)\n"),
        tests=(f"{_MEANWHILE}test_a_job_that_claims_between_the_look_and_the_fence_is_not_fenced_unless_it_is_forced",),
        why="A job that starts while the operator types would be fenced without --force.",
    ),
    mutant(
        "plan-of-a-reset-under-the-lock",
        (_ADMIN, "        request.expect(done)\n", "        refuse_live(group, request.takeover, owner)\n"),
        tests=(f"{_WAITING}[reset]",),
        why="A reset would move other offsets than it has shown, if they change while it waits for the rows.",
    ),
    mutant(
        "plan-of-a-reset-before-the-lock",
        (_ADMIN, "    request.expect(planned)\n", "    refuse_live(group, request.takeover, owner)\n"),
        tests=(f"{_CONTRACT}test_a_plan_that_is_gone_ends_no_transaction_of_a_newer_job",),
        why="A reset that will be refused would first wait for a newer job's transaction, and then terminate it.",
    ),
    mutant(
        "plan-of-a-reset-before-the-rows",
        (_ADMIN, _RESET_LOOKS, ""),
        tests=(f"{_CONTRACT}test_a_job_that_claims_while_a_decision_waits_loses_no_transaction",),
        why="A reset that will be refused would terminate the transaction of a job that has claimed since.",
    ),
    mutant(
        "live-before-the-lock",
        (_ADMIN, "    request.expect(planned)\n", "    expect_plan(planned, request.if_plan)\n"),
        tests=(f"{_CONTRACT}test_a_reset_that_is_to_refuse_neither_waits_for_a_live_job_nor_ends_its_transaction",),
        why="A reset that will be refused would first wait for the live job's transaction, and then terminate it.",
    ),
    mutant(
        "plan-of-a-pause",
        (_ADMIN, "        expect_plan(done, if_plan)\n        end_pause(", "        end_pause("),
        tests=(f"{_WAITING}[pause]",),
        why="A pause with an end would replace one without, which someone has set while the plan was read.",
    ),
    mutant(
        "plan-of-a-resume",
        (_ADMIN, "        expect_plan(done, if_plan)\n        if done.before", "        if done.before"),
        tests=(f"{_WAITING}[resume]",),
        why="A resume would end another pause than the one that it has shown.",
    ),
    mutant(
        "plan-of-letters",
        (_LETTERS, "            expect_plan(decided, self.if_plan)\n", ""),
        tests=(f"{_WAITING}[discard]", f"{_WAITING}[erase]", f"{_WAITING}[replay]"),
        why="Letters would be discarded, erased or replayed with force that nobody was shown.",
    ),
    mutant(
        "plan-of-letters-as-they-were",
        (_LETTERS, "self.by.group, [*chosen.items()])", "self.by.group, [*chosen])"),
        tests=(f"{_SHOWN}[discard]",),
        why="A letter that has failed again since it was shown, perhaps with another error, would be given up.",
    ),
    mutant(
        "plan-of-a-copy",
        (_NAMES, "        expect_plan(done, naming.if_plan)\n", ""),
        tests=(f"{_WAITING}[copy]",),
        why="A copy would begin at other offsets than it has shown.",
    ),
    mutant(
        "plan-of-a-rename-and-a-delete",
        (_NAMES, "        naming.expect(done, takeover)\n", ""),
        (_NAMES, "        deletion.expect(found, takeover)\n", ""),
        tests=(f"{_WAITING}[rename]", f"{_WAITING}[delete]"),
        why="Offsets that were stored after the plan was shown would be renamed or deleted unseen.",
    ),
    mutant(
        "plan-of-a-token",
        ("offsetstore/store/plans.py", "[owner.token.epoch, str(owner.token.claim_id)]", "[]"),
        tests=(f"{_SHOWN}[reset]",),
        why="A reset would fence another job than the one that it has shown.",
    ),
    mutant(
        "plan-of-letters-that-were-overtaken",
        (_LETTERS, "_expect_replayable, write, overtaken=forced)", "_expect_replayable, write)"),
        tests=(f"{_CONTRACT}test_a_letter_that_was_overtaken_since_is_in_the_new_plan_of_a_forced_replay",),
        why="A forced replay would replace rows that were written after its plan was shown.",
    ),
    mutant(
        "plan-of-a-loss",
        (_ADMIN, "losses = [one.suspect for one in moves]", "losses = list[object]()"),
        tests=(f"{_CONTRACT}test_evidence_that_came_after_the_plan_is_not_cleared_unseen",),
        why="A reset would clear evidence of loss that nobody has seen.",
    ),
    mutant(
        "plan-goes-one-way",
        (_ADMIN, "self._place(one, is_live=is_live), one.shift < 0)", "self._place(one, is_live=is_live), False)"),
        tests=(f"{_CONTRACT}test_a_reset_forwards_is_another_once_the_job_has_passed_its_offset",),
        why="A reset that was to pass over records would go back, and double what the job has stored since.",
    ),
    mutant(
        "pair-of-an-offset-that-stays",
        (_ADMIN, "pair = row.pair if row.suspect is None else None", "pair = None"),
        tests=(f"{_CONTRACT}test_a_reset_to_where_it_is_keeps_what_tells_a_truncated_log_unless_it_accepts_the_loss",),
        why="A reset that only pins would make a truncated log startable that no start has seen yet.",
    ),
    mutant(
        "plan-in-any-zone",
        ("offsetstore/store/plans.py", "value.timestamp()", "float(value.hour)"),
        tests=(
            "tests/unit/store/test_plans.py::test_a_time_is_the_same_in_all_zones_and_another_microsecond_is_another",
        ),
        why="A plan that one role has shown could never be carried out by another whose TimeZone differs.",
    ),
    mutant(
        "plan-of-a-page",
        (
            "offsetstore/monitoring/dashboard/views/actions.py",
            '            given["premise"] or None,\n',
            "            None,\n",
        ),
        tests=(
            "tests/unit/monitoring/dashboard/test_actions.py::test_what_changes_right_before_the_lock_is_shown_first",
        ),
        why="What someone agrees to on a page would no longer be what is done.",
    ),
    mutant(
        "plan-of-a-rename-before-the-lock",
        (_NAMES, "    naming.expect(planned, takeover)\n", "    refuse_live(group, takeover, planned.owner)\n"),
        tests=(f"{_CONTRACT}test_a_plan_that_is_gone_ends_no_transaction_of_a_newer_job",),
        why="A rename that will be refused would first wait for a newer job's transaction, and then terminate it.",
    ),
    mutant(
        "plan-of-a-delete-before-the-lock",
        (_NAMES, "    deletion.expect(planned, takeover)\n", "    refuse_live(group, takeover, planned.owner)\n"),
        tests=(f"{_CONTRACT}test_a_plan_that_is_gone_ends_no_transaction_of_a_newer_job",),
        why="The same for a delete.",
    ),
    mutant(
        "plan-of-a-rename-before-the-rows",
        (_NAMES, "        naming.expect(naming.plan(session), takeover)\n", ""),
        tests=(f"{_CONTRACT}test_a_job_that_claims_while_a_decision_waits_loses_no_transaction",),
        why="A rename that will be refused would terminate the transaction of a job that has claimed since.",
    ),
    mutant(
        "plan-of-a-delete-before-the-rows",
        (_NAMES, "        deletion.expect(deletion.look(session), takeover)\n", ""),
        tests=(f"{_CONTRACT}test_a_job_that_claims_while_a_decision_waits_loses_no_transaction",),
        why="The same for a delete.",
    ),
    mutant(
        "plan-of-replayed-letters",
        (_ADMIN, "held, to, replayed, losses)", "held, to, losses)"),
        tests=(f"{_CONTRACT}test_letters_that_were_replayed_since_are_in_the_new_plan_of_a_reset",),
        why="A reset would write rows twice that its plan has not counted.",
    ),
    mutant(
        "plan-of-a-delete-s-letters",
        (_NAMES, "contested, sorted(letters.items()), ", "contested, "),
        tests=(f"{_SHOWN}[delete]",),
        why="Dead letters would be deleted that nobody has seen.",
    ),
    *(
        mutant(
            f"plan-of-a-store-s-{event}",
            (
                "offsetstore/store/home.py",
                f'expect_plan(_plan("{event}", {facts}), if_plan)',
                f'_plan("{event}", {facts})',
            ),
            tests=(f"{_CONTRACT}{test}",),
            why="Another store than the one that was shown would be taken for moved, or copied.",
        )
        for event, facts, test in (
            (
                "moved",
                "identity, groups, names",
                "test_a_store_in_another_database_starts_no_job_before_somebody_says_why",
            ),
            (
                "new-id",
                "identity, groups, owners",
                "test_a_copy_is_a_store_of_its_own_and_adopts_nothing_of_the_original_s_group_in_kafka",
            ),
        )
    ),
    mutant(
        "plan-of-a-delete-s-losses",
        (_NAMES, ", sorted(losses.items()))", ")"),
        tests=(f"{_SHOWN}[delete]",),
        why="Evidence of loss would be deleted that nobody has seen.",
    ),
    mutant(
        "plan-of-a-pause-that-was-made-anew",
        (_ADMIN, "[pause.at, pause.until]", "[pause.until]"),
        tests=(f"{_CONTRACT}test_a_pause_that_was_made_anew_is_another_one",),
        why="A resume would end a pause that someone has made since for another reason.",
    ),
    mutant(
        "plan-of-what-is-stored",
        (
            "offsetstore/store/plans.py",
            '["not live", token, sorted(offsets.items())]',
            '["not live", token, sorted(offsets)]',
        ),
        tests=(f"{_SHOWN}[copy]",),
        why="A copy would begin at other offsets than it has shown.",
    ),
    mutant(
        "plan-while-a-job-stores",
        ("offsetstore/store/plans.py", '["live", token, sorted(offsets)]', '["live", token, sorted(offsets.items())]'),
        tests=(f"{_CONTRACT}test_what_a_live_job_stores_and_how_the_log_grows_change_no_reset",),
        why="No plan about a job that runs could ever be carried out.",
    ),
    *(
        mutant(
            f"plan-of-a-{name}-command",
            (f"offsetstore/cli/{file}.py", old, old.replace("if_plan=if_plan", "if_plan=None")),
            tests=(f"{_COMMANDS}test_another_plan_is_printed_and_fails_like_a_check[{name}]",),
            why="The command would do whatever there is to do by then, and say nothing.",
        )
        for name, file, old in (
            ("reset", "reset", "if_plan=if_plan"),
            ("pause", "pause", "store.pause(group, until=until, reason=reason, dry_run=dry_run, if_plan=if_plan)"),
            ("resume", "pause", "store.resume(group, reason=reason, dry_run=dry_run, if_plan=if_plan)"),
            ("replay", "dead_letters", "forced=force, limit=limit, dry_run=not execute, if_plan=if_plan"),
            ("discard", "dead_letters", "erase=erase, limit=limit, dry_run=not execute, if_plan=if_plan"),
            ("copy", "groups", "store.copy_group(group, new, reason=reason, dry_run=not execute, if_plan=if_plan)"),
            ("rename", "groups", f'if_plan=if_plan,\n{_THEN}lambda done: _print(done, format_, "renamed"'),
            ("delete", "groups", f"if_plan=if_plan,\n{_THEN}show,\n"),
            ("new-id", "store", "opened.new_id(reason=reason, dry_run=not execute, if_plan=if_plan)"),
        )
    ),
    mutant(
        "plan-that-has-changed-is-shown",
        ("offsetstore/cli/exits.py", "        show(changed.plan)\n", ""),
        tests=(f"{_COMMANDS}test_another_plan_is_printed_and_fails_like_a_check[reset]",),
        why="Nobody could see what has changed, nor agree to it.",
    ),
    mutant(
        "plan-that-has-changed-fails-like-a-check",
        ("offsetstore/errors.py", "DeadLetterError, PlanChanged)", "DeadLetterError)"),
        tests=(f"{_COMMANDS}test_another_plan_is_printed_and_fails_like_a_check[reset]",),
        why="A script could not tell a plan that has changed from a command that is broken.",
    ),
    mutant(
        "plan-without-execute",
        (
            "offsetstore/cli/options.py",
            "if value is not None and context.params[flag] is not needs:",
            "if value is None and needs is None:",
        ),
        tests=(
            f"{_COMMANDS}test_a_condition_without_execute_is_wrong_usage[reset]",
            f"{_COMMANDS}test_a_condition_of_a_dry_run_is_wrong_usage[pause]",
        ),
        why="Who forgets --execute would take the plan for what was done.",
    ),
    *(
        mutant(
            f"plan-of-a-{name}-on-a-page",
            ("offsetstore/monitoring/dashboard/decisions.py", old, old.replace("if_plan=by.if_plan", "if_plan=None")),
            tests=(_ON_A_PAGE,),
            why="What someone agrees to on a page would no longer be what is done.",
        )
        for name, old in (
            ("reset", "            if_plan=by.if_plan,\n"),
            ("pause", "until=self.until, reason=by.reason, actor=by.actor, if_plan=by.if_plan"),
            ("resume", "store.resume(on.name, reason=by.reason, actor=by.actor, if_plan=by.if_plan"),
            ("replay", "forced=self.forced, if_plan=by.if_plan"),
            ("discard", "erase=self.erase, if_plan=by.if_plan"),
        )
    ),
    mutant(
        "plan-of-a-forced-replay-on-a-page",
        (
            "offsetstore/monitoring/dashboard/decisions.py",
            '"" if isinstance(decision, ReplayLetters) and not decision.forced else',
            '"" if isinstance(decision, ReplayLetters) else',
        ),
        tests=(_ON_A_PAGE,),
        why="Letters would be replayed with force that nobody was shown.",
    ),
    mutant(
        "live-before-a-rename",
        (
            _NAMES,
            "        refuse_live(self.group, takeover, plan.owner)\n\n\ndef copy_group(",
            "        pass\n\n\ndef copy_group(",
        ),
        tests=(f"{_CONTRACT}test_a_rename_that_may_not_fence_refuses_a_live_job",),
        why="A rename without --force would fence the job.",
    ),
    mutant(
        "live-before-a-delete",
        (
            _NAMES,
            "        refuse_live(self.group, takeover, plan.owner)\n\n\ndef delete_group(",
            "        pass\n\n\ndef delete_group(",
        ),
        tests=(f"{_CONTRACT}test_a_delete_that_may_not_fence_refuses_a_live_job",),
        why="A delete without --force would fence the job.",
    ),
    mutant(
        "tombstone-of-a-deleted-group",
        (
            "offsetstore/store/names.py",
            "        session.write_pause(group, None)\n        write_token(session, group, token, who)\n        le",
            "        session.write_pause(group, None)\n        le",
        ),
        tests=(f"{_CONTRACT}test_a_job_that_still_runs_is_fenced_by_a_delete_and_brings_nothing_back",),
        why="A job that still runs would write new partitions' rows under the deleted name.",
    ),
    mutant(
        "copies-of-a-deleted-group",
        ("offsetstore/protocol/resolver.py", "    if deleted:\n", "    if False:\n"),
        tests=(
            f"{_CONTRACT}test_a_job_of_a_deleted_name_begins_by_its_policy_whatever_was_copied_to_kafka",
            f"{_CONTRACT}test_what_another_application_has_committed_counts_after_a_delete_as_for_any_new_group",
        ),
        why="A new job of a deleted name would be told of a rewound database, or go on at the deleted offset.",
    ),
    mutant(
        "copies-of-after-a-delete",
        ("offsetstore/protocol/resolver.py", "or stamp.epoch > deleted\n", "or False\n"),
        tests=(f"{_CONTRACT}test_a_database_that_is_older_than_a_copy_of_after_the_delete_is_still_noticed",),
        why="Once a group was deleted, no restored database would be noticed again: records would be lost or doubled.",
    ),
    mutant(
        "log-reaches-to-the-row",
        (_ADMIN, "max(log.end, row.next_offset)", "log.end"),
        tests=(f"{_RESETS}test_offsets_that_a_job_has_advanced_over_since_kafka_was_asked_are_in_the_log",),
        why="--to-latest would move a job back by what it has written since Kafka was asked: it would be there twice.",
    ),
    mutant(
        "live-lower-bound",
        ("offsetstore/protocol/liveness.py", "-LIVE < silence < LIVE", "silence < LIVE"),
        tests=("tests/integration/store/test_claims_takeover.py::test_an_owner_that_died_is_no_owner",),
        why='After the clock has stepped back, takeover="wait" would wait for a dead job until it has caught up.',
    ),
    mutant(
        "ended-query-is-silent",
        (_HEARTBEAT, "has_ended = self._has_ended()", "has_ended = False"),
        tests=(f"{_BEATS}test_it_skips_its_beats_while_the_bound_query_has_ended_and_beats_again_once_it_runs",),
        why='takeover="wait" would wait for a query that has failed as long as its driver runs others.',
    ),
    mutant(
        "query-that-cannot-be-asked",
        (_HEARTBEAT, "            is_active = True\n", "            is_active = False\n"),
        tests=(f"{_BEATS}test_a_query_that_can_t_be_asked_or_does_not_answer_counts_as_running",),
        why="A JVM that fails to answer would take the heartbeats from a query that runs.",
    ),
    mutant(
        "staging-of-live-claims",
        (_AREA, "found[1] not in current", "found[1] != self.claim"),
        tests=(f"{_ABANDONED}test_tables_of_renamed_reset_deleted_and_claimed_groups_are_dropped_and_no_others",),
        why="Each job's start would drop what the other jobs of the store have staged.",
    ),
    mutant(
        "staging-tables-first",
        (_AREA, _TABLES + _CLAIMS, _CLAIMS + _TABLES),
        tests=(f"{_ABANDONED}test_a_claim_that_is_made_while_tables_are_looked_for_keeps_its_own",),
        why="The tables of a claim that is made between the two looks would be dropped.",
    ),
    mutant(
        "history-ids-are-new",
        (_SQL, "count(*) FILTER (WHERE appended.id > before.last) AS appended", "count(appended.id) AS appended"),
        tests=(_IDS,),
        why="After a failover, decisions would be put into gaps of the past, and read in the wrong order.",
    ),
    mutant(
        "history-ids-are-taken",
        (
            "offsetstore/postgres/session.py",
            "                self._run(sql.TAKE_HISTORY_IDS, no_claim=_NO_CLAIM, count=count)\n",
            "",
        ),
        tests=(_IDS,),
        why="After a failover of logical replication no claim could be made.",
    ),
    mutant(
        "contracted-tables",
        (
            "offsetstore/protocol/store_facts.py",
            "    return series == found_series and number <= found\n",
            "    return number <= found\n",
        ),
        tests=(f"{_REVISIONS}test_a_later_revision_that_contracts_asks_for_a_later_package",),
        why="A job would write to tables that no longer have what its guarantee rests on.",
    ),
)
