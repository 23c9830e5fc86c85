"""How a transaction ends, what is found out about it afterwards, and into which tables its rows get.

What a forked child leaves alone is here too.

PostgreSQL alone.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant, text

_CONTRACT: Final = "tests/contract/test_postgres.py::TestPostgresOffsetStore::"
_STORE: Final = "tests/integration/store/"
_ORM: Final = f"{_STORE}test_transaction_orm.py::"
_GOES_ON: Final = f"{_ORM}test_a_function_that_goes_on_after_a_rollback_is_refused_and_sees_its_own_error"
_USED_AFTER: Final = f"{_ORM}test_a_session_that_is_used_after_its_failed_flush_shows_no_row"
_TRIED_SESSION: Final = (
    "tests/integration/processing/test_discovery.py::test_a_function_whose_session_rolls_back_can_be_tried[True]"
)
_TARGETS: Final = "tests/integration/writers/test_targets.py::"

ENDS: Final[tuple[Mutant, ...]] = (
    mutant(
        "another-connection-that-is-lost",
        (
            "PostgresSession.may_have_raised",
            "inner.sqlstate is not None and (self._has_failed or self._is_failed())",
            "inner.sqlstate is None or self._has_failed or self._is_failed()",
        ),
        tests=(
            f"{_STORE}test_transaction_own_sql.py::test_a_connection_of_the_functions_own_that_fails_is_its_own_error",
        ),
        why="While another database is down, a function would be called eight times, and the error tell of this one.",
    ),
    mutant(
        "another-transaction-that-fails",
        ("Transaction.__exit__", "if is_of_session: ...", "if True: ..."),
        tests=(
            f"{_STORE}test_transaction_own_sql.py::test_an_error_of_another_transaction_of_the_functions_is_its_own",
        ),
        why="A function that must not be repeated would be called eight times for a deadlock in another database.",
    ),
    mutant(
        "transaction-that-a-savepoint-has-saved",
        ("PostgresSession._note_failed", "self._has_failed = ...", "pass"),
        tests=(f"{_STORE}test_transaction_own_sql.py::test_an_outage_in_a_savepoint_is_the_transactions",),
        why="A deadlock would end the query, and not be repeated, if the function has used a savepoint.",
    ),
    mutant(
        "rollback-after-an-error",
        (
            "Transaction.__exit__",
            "session.rollback()\nif is_of_session:\n    ...",
            "session.commit()\nif is_of_session:\n    ...",
        ),
        tests=(f"{_CONTRACT}test_an_exception_leaves_results_and_offset_as_they_were",),
        why="What was written before an error would stay.",
    ),
    mutant(
        "refusal-that-was-swallowed",
        ("Transaction.lock", "self._lock_error = error", ""),
        tests=(f"{_CONTRACT}test_a_refusal_of_lock_can_not_be_swallowed",),
        why="Code that catches what lock raises could go on and commit what came before.",
    ),
    mutant(
        "end-behind-our-back",
        ("Transaction._check_complete", "self._check_whole(is_whole=session.is_whole())", "session.is_whole()"),
        tests=(f"{_STORE}test_transaction_statements.py::test_an_end_after_the_advance_is_noticed_too",),
        why="A COMMIT or ROLLBACK among the job's SQL would tear results and offset apart.",
    ),
    mutant(
        "end-behind-our-back-at-the-finish",
        ("Transaction._move_all", "self._check_whole(is_whole=is_whole)", "self._check_whole(is_whole=True)"),
        tests=(
            (
                f"{_STORE}test_transaction_statements.py::"
                "test_an_end_behind_our_back_is_noticed_and_the_offset_stays[finish-COMMIT AND CHAIN]"
            ),
        ),
        why="The same in a batch of the sink, whose last round trip asks before COMMIT.",
    ),
    mutant(
        "commit-that-rolls-back",
        (
            "PostgresSession.commit",
            "self._number and is_over",
            "False",
        ),
        tests=(
            (
                f"{_STORE}test_transaction_statements.py::"
                "test_a_transaction_that_ends_or_fails_after_it_was_finished_is_no_success[SELECT 1/0]"
            ),
        ),
        why="The server answers COMMIT of a failed transaction with ROLLBACK, which is no error: it would look stored.",
    ),
    mutant(
        "end-that-was-refused",
        ("PostgresSession._expect_not_ended", "self._was_ended", "False"),
        ("PostgresSession.commit", "self._number and is_over", "False"),
        tests=(
            "tests/contract/test_postgres.py::TestPostgresOffsetStore::test_an_end_whose_refusal_was_swallowed_is_noticed[advance-rollback]",
        ),
        why="SQLAlchemy forgets a transaction whose end was refused, and then sends no COMMIT: it would look stored.",
    ),
    mutant(
        "error-for-which-a-session-rolls-back",
        ("PostgresSession._refuse_rollback", "self._ended_for is None", "True"),
        tests=(f"{_ORM}test_an_outage_for_which_a_session_rolls_back_is_repeated[run-cancel]",),
        why="The refusal of the ROLLBACK would hide the error: an outage would not be repeated, no record named.",
    ),
    mutant(
        "rollback-without-an-error",
        ("PostgresSession._refuse_rollback", "if self._ended_for is None: ...", ""),
        tests=(f"{_ORM}test_an_end_without_an_error_is_refused_with_the_way_to_do_it[run-roll_back_and_go_on]",),
        why="It would be told at the end, without the line that has called it.",
    ),
    mutant(
        "begin-after-a-rollback",
        ("PostgresSession._refuse_more", "self._expect_not_ended()", "pass"),
        tests=(
            f"{_GOES_ON}[run-begin_after_an_error-IntegrityError]",
            f"{_GOES_ON}[run-go_on_after_a_statement-IntegrityError]",
        ),
        why="A function that goes on would meet the failed transaction, and not see which error it has handled.",
    ),
    mutant(
        "advance-after-a-rollback",
        ("PostgresSession._send", "self._expect_not_ended()", ""),
        tests=(f"{_GOES_ON}[run-return_after_an_error-IntegrityError]",),
        why="The same, where it returns at once.",
    ),
    mutant(
        "finish-after-a-rollback",
        ("PostgresSession.finish", "self._expect_not_ended()", ""),
        tests=(f"{_GOES_ON}[splittable-return_after_an_error-IntegrityError]",),
        why="The same in the sink.",
    ),
    mutant(
        "rollback-that-the-server-gets",
        ("PostgresSession._refuse_rollback", "self._is_tried and not connection.invalidated", "False"),
        tests=(_TRIED_SESSION,),
        why="The search for a bad record would lose its savepoints, with what it has accepted.",
    ),
    mutant(
        "search-after-a-rollback",
        ("PostgresSession.rollback_to", "if self._was_ended: ...", ""),
        tests=(_TRIED_SESSION,),
        why="After the first bad record no other could be tried.",
    ),
    mutant(
        "rows-after-a-rollback",
        ("PostgresSession.rollback", "self._psycopg.rollback()", "pass"),
        tests=(f"{_ORM}test_what_follows_a_rollback_is_not_left_open_where_the_pool_resets_nothing",),
        why="With a pool that resets nothing, the connection would keep its transaction, and be lost to the pool.",
    ),
    mutant(
        "outage-for-which-a-session-rolls-back",
        ("PostgresSession._refuse_rollback", "self._note_failed()", ""),
        tests=(f"{_ORM}test_an_outage_for_which_a_session_rolls_back_is_repeated[run-cancel]",),
        why="The transaction no longer looks failed, so that the outage would be taken for one of another database.",
    ),
    mutant(
        "session-after-a-failed-flush",
        ("refusals", "(psycopg.Error, StatementError, PendingRollbackError)", "(psycopg.Error, StatementError)"),
        tests=(f"{_USED_AFTER}[True-False]",),
        why="SQLAlchemy's own error quotes the row.",
    ),
    mutant(
        "session-after-a-failed-flush-as-a-cause",
        ("stripped", "isinstance(error, PendingRollbackError)", "False"),
        tests=(f"{_USED_AFTER}[False-False]",),
        why="The same where the function raises its own error from it.",
    ),
    mutant(
        "rows-moved-at-the-finish",
        ("Transaction._move_all", "self._check_moved(moved, wanted)", "self._advanced |= wanted.keys()"),
        tests=(
            f"{_STORE}test_transaction_statements.py::test_a_row_that_the_transactions_own_sql_moved_is_not_finished",
        ),
        why="Results would be committed without their offset.",
    ),
    mutant(
        "advance-in-a-savepoint",
        (
            "PostgresSession._is_whole",
            "(row.transaction_number, row.moved) == (self._number, str(self._moved))",
            "row.transaction_number == self._number",
        ),
        tests=(f"{_CONTRACT}test_an_advance_that_a_savepoint_took_back_is_noticed",),
        why="ROLLBACK TO takes the advance back; the results before the savepoint would be committed without it.",
    ),
    mutant(
        "lock-in-a-savepoint",
        ("Transaction.lock", "session.in_savepoint()", "session.in_savepoint() is None"),
        tests=(f"{_CONTRACT}test_lock_inside_a_savepoint_is_refused",),
        why="ROLLBACK TO drops the locks that were taken after the savepoint, and nobody would notice.",
    ),
    mutant(
        "commit-on-disk",
        text("SETTINGS", "THEN 'on' ELSE", "THEN current_setting('synchronous_commit') ELSE"),
        tests=(f"{_STORE}test_transaction_statements.py::test_a_commit_that_was_answered_is_on_disk",),
        why="A crash of the server would take back what was reported, and mirrored to Kafka, as committed.",
    ),
    mutant(
        "row-known-before-its-commit",
        (
            "Transaction._lock",
            "if unknown or not ranges: ...",
            "if unknown or not ranges:\n    ...\n    self._claim.new_terms(unknown)[unknown[0]].has_row = True",
        ),
        tests=(f"{_CONTRACT}test_a_new_row_that_is_rolled_back_is_made_again",),
        why="After a rollback the row is gone, and the claim would take itself for stale.",
    ),
    mutant(
        "batch-mark",
        text("MARK_BATCH", "WHERE m.batch_id < excluded.batch_id\n", ""),
        tests=(f"{_CONTRACT}test_a_batch_without_ranges_is_written_once",),
        why="A window that fires without data moves no offset: only the mark tells that it was written.",
    ),
    mutant(
        "look-up-replaced-by-a-retry",
        (
            "Transaction._commit",
            "self._settle(advanced, error)",
            'raise TransactionLost("the connection was lost at COMMIT") from error',
        ),
        tests=(f"{_STORE}test_unknown_commit.py::test_transaction_ends_well_where_only_the_answer_was_lost",),
        why="A COMMIT whose answer was lost would be repeated blindly: what has no offset to tell is written twice.",
    ),
    mutant(
        "look-up-replaced-by-hope",
        ("Transaction._commit", "self._settle(advanced, error)", "pass"),
        tests=(f"{_STORE}test_unknown_commit.py::test_run_neither_duplicates_nor_loses",),
        why="A COMMIT that never reached the server would be reported as done.",
    ),
    mutant(
        "look-up-by-the-group-s-lock",
        ("_look", "session.lock_group(advanced.group)", "session.group(advanced.group)"),
        tests=(f"{_STORE}test_transaction_new_row_lost.py",),
        why="Nobody sees a row that the lost transaction has made: it would be called lost while it still runs.",
    ),
    mutant(
        "look-up-of-the-own-id-alone",
        ("store:settle", "ids.get(tp) == before", "tp in ids"),
        tests=(f"{_STORE}test_unknown_commit.py::test_rows_that_a_new_owner_has_moved_on_cant_tell",),
        why="Where a new owner has moved the rows on, the transaction may have happened: it must not be called lost.",
    ),
)

TARGETS: Final[tuple[Mutant, ...]] = (
    mutant(
        "target-unlogged",
        text("writers:_COLUMNS", " OR relpersistence = 'u' AND relkind <> 'p'", ""),
        tests=(f"{_TARGETS}test_an_unlogged_table_is_refused_by_name_until_it_is_logged",),
        why="After a crash of the database the table is empty, and the offsets say that its records were written.",
    ),
    mutant(
        "target-temporary",
        text("writers:_COLUMNS", " OR relpersistence = 't'", ""),
        tests=(f"{_TARGETS}test_a_temporary_table_is_refused_also_where_it_hides_the_target",),
        why="Rows would go to a table that ends with its connection.",
    ),
    mutant(
        "target-foreign",
        text("writers:_COLUMNS", "FROM tree WHERE relkind = 'f' OR ", "FROM tree WHERE "),
        tests=(f"{_TARGETS}test_a_partition_on_another_server_is_refused",),
        why="Another server commits apart: rows without their offset, or an offset without its rows.",
    ),
    mutant(
        "target-partitions",
        text("writers:_COLUMNS", "tree.relkind = 'p'", "tree.relkind = ''"),
        tests=(f"{_TARGETS}test_partitions_are_looked_at_down_to_the_last",),
        why="Rows are in the partitions, and not in the table that the sink names.",
    ),
    mutant(
        "target-partitions-below-partitions",
        text("writers:_COLUMNS", "tree.oid AND tree.relkind = 'p'", "tree.oid AND tree.part = 'table'"),
        tests=(f"{_TARGETS}test_partitions_are_looked_at_down_to_the_last",),
        why="A partition may be partitioned itself.",
    ),
    mutant(
        "target-partitions-of-the-moment",
        ("locked_target", "if target.is_partitioned: ...", "if target is None: ..."),
        tests=(f"{_TARGETS}test_a_partition_that_is_attached_while_rows_are_on_their_way_is_met",),
        why="A partition can be attached between the look and the rows: they would be committed into it.",
    ),
    mutant(
        "target-found-once",
        ("locate", "table if row is None else TableName(*row)", "table"),
        tests=(f"{_TARGETS}test_a_table_that_was_found_once_is_kept_to",),
        why="A search_path or a temporary table of a connection would lead the rows to another table.",
    ),
    mutant(
        "session-after-execute",
        (
            "PostgresSession._close",
            "self._connection.get_execution_options().get(_DISCARD)",
            "self._connection.get_execution_options() is None",
        ),
        tests=(
            "tests/integration/postgres/test_session_state.py::test_nothing_of_the_session_comes_to_the_next_transaction",
        ),
        why="What an Execute has set would come to the next batch, or to another group's, by way of the pool.",
    ),
)

_FORKS: Final = "tests/integration/postgres/test_forks.py::"
_CLOSED: Final = "tests/unit/store/test_closed_claim.py::"
_LEFT_ALONE: Final = f"{_FORKS}test_a_forked_child_leaves_the_parent_s_transaction_alone"

FORKS: Final[tuple[Mutant, ...]] = (
    mutant(
        "sockets-in-a-child",
        ("_take_sockets", "os.dup2(_nowhere[0].fileno(), connection.fileno(), inheritable=False)", "pass"),
        tests=(_LEFT_ALONE,),
        why="SQL of a child, or a pool's finalizer in it, would end the parent's transaction.",
    ),
    mutant(
        "sockets-of-connections-in-use",
        ("_prepared", "keep_from_children(driver)", ""),
        tests=(_LEFT_ALONE,),
        why="A child that closes the connection would end the parent's session.",
    ),
    mutant(
        "transactions-in-a-child",
        ("Transaction._require_session", "expect_own(self._pid)", ""),
        tests=("tests/unit/store/test_forks.py",),
        why="A child could believe that it has advanced.",
    ),
    mutant(
        "transactions-of-a-child",
        ("Transaction.is_open", "self._session is not None and is_own(self._pid)", "self._session is not None"),
        tests=(f"{_FORKS}test_a_child_may_have_a_store_of_its_own",),
        why="A child with a store of its own could not use it.",
    ),
    mutant(
        "claims-in-a-child",
        ("Claim.close", "if not is_own(self._pid): return", ""),
        tests=(f"{_FORKS}test_a_child_that_exits_inside_the_block_ends_quietly_with_all_exit_handlers",),
        why="A child that exits would write what the parent's sink keeps, and warn of what it can't end.",
    ),
    mutant(
        "exit-of-a-child",
        ("Transaction.__exit__", "is_own(self._pid)", "self._pid"),
        tests=(_LEFT_ALONE,),
        why="sys.exit in a child, as a pool does it, would end in an error of ours.",
    ),
    mutant(
        "connections-of-a-child",
        ("PostgresDatabase._connect", "expect_own(self._pid)", ""),
        tests=(_LEFT_ALONE,),
        why="A child would take connections from its parent's pool.",
    ),
    mutant(
        "sockets-for-a-child-that-may-open-none",
        ("keep_from_children", "if not _nowhere: ...", "if not connection: ..."),
        tests=("tests/unit/store/test_forks.py::test_a_child_that_may_open_no_more_files_still_loses_the_sockets",),
        why="Where a process has as many files open as it may, its children would keep its connections.",
    ),
    mutant(
        "metadata-from-a-child",
        ("Claim.store_metadata", "expect_own(self._pid, ...)", "expect_own(os.getpid(), ...)"),
        tests=(f"{_CLOSED}test_metadata_for_the_next_advance_is_not_taken_from_a_forked_child",),
        why="What a child notes would be lost with it, in silence.",
    ),
    mutant(
        "error-of-a-close-is-told-once",
        ("OffsetStore.close", "with not_hiding(claim.close_error): ...", "if True: ..."),
        tests=(f"{_CLOSED}test_what_the_claim_s_close_has_raised_is_not_raised_again_by_the_store_s",),
        why="The store's close would raise it once more, in place of what the program has made of it.",
    ),
    mutant(
        "error-of-a-close-is-told",
        ("OffsetStore.close", "not_hiding(claim.close_error)", "not_hiding(Exception())"),
        tests=(f"{_CLOSED}test_what_no_close_has_raised_yet_is_raised_by_the_store_s",),
        why="Nobody would know that the last rows were not written.",
    ),
)

END: Final = (*ENDS, *TARGETS, *FORKS)
