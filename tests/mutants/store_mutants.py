"""The transaction: its locks, its tokens, its comparison. They need PostgreSQL and nothing else."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant, text

_CONTRACT: Final = "tests/contract/test_postgres.py::TestPostgresOffsetStore::"
_STORE: Final = "tests/integration/store/"
_ORDER: Final = f"{_STORE}test_transaction_order.py::"
_LOCKS: Final = f"{_STORE}test_transaction_locks.py::"
_OWN_SQL: Final = f"{_STORE}test_transaction_own_sql.py::"
_ROW_CHANGED: Final = f"{_OWN_SQL}test_a_row_that_was_changed_under_its_own_lock_takes_results_and_offsets_with_it"

_MEETS_A_CLAIM: Final = (
    f"{_STORE}test_claims_together.py::test_a_job_that_meets_an_unknown_partition_during_a_claim_is_stale_afterwards"
)


LOCKS: Final[tuple[Mutant, ...]] = (
    mutant(
        "for-update",
        text("LOCK_PARTITIONS", "FOR UPDATE OF p\n", ""),
        tests=(f"{_CONTRACT}test_a_row_that_is_locked_elsewhere_ends_in_lock_timeout",),
        why="Two jobs would decide on the same stored offset; only the comparison in the UPDATE would be left.",
    ),
    mutant(
        "lock-order",
        text("LOCK_PARTITIONS", "ORDER BY p.topic, p.partition\n", ""),
        tests=(f"{_LOCKS}test_the_plan_locks_what_comes_out_of_the_sort",),
        why="PostgreSQL would lock in whatever order its plan comes upon the rows, and jobs would deadlock.",
    ),
    mutant(
        "lock-order-as-asked",
        text("LOCK_PARTITIONS", "ORDER BY p.topic, p.partition\n", ""),
        ("Transaction._lock", "sorted(ranges)", "list(ranges)"),
        tests=(f"{_ORDER}test_rows_are_locked_in_order_also_by_a_plan_that_comes_upon_them_in_another",),
        why="The same, seen in the locks. A plan may keep the order of what was asked, which is sorted: both go.",
    ),
    mutant(
        "insert-order",
        text("INSERT_PARTITIONS", 'ORDER BY n.topic COLLATE "C", n.partition\nON', "ON"),
        (
            "Transaction._lock",
            "sorted(tp for tp in ranges if tp not in known or not known[tp].has_row)",
            "list(tp for tp in ranges if tp not in known or not known[tp].has_row)",
        ),
        tests=(f"{_ORDER}test_rows_are_made_in_order_whatever_was_asked",),
        why="The same for partitions that are new. It is sorted in Python too, so that either alone would do: both go.",
    ),
    mutant(
        "partition-before-group",
        (
            "Transaction._lock",
            "for tp in unknown: ...",
            "for tp in unknown: ...\nsession.lock_partitions(self._claim.group, self._partitions)",
        ),
        tests=(f"{_ORDER}test_the_group_s_row_is_had_before_any_partition_s",),
        why="A claim takes the group's row first; a job that comes from the other side deadlocks with it.",
    ),
    mutant(
        "group-share",
        text("SHARE_GROUP", "WHERE consumer_group = :group FOR SHARE", "WHERE consumer_group = :group"),
        tests=(_MEETS_A_CLAIM,),
        why="A claim under way would not see the row that a stale job makes meanwhile, and could not fence it there.",
    ),
    mutant(
        "group-key-share",
        text("SHARE_GROUP", "WHERE consumer_group = :group FOR SHARE", "WHERE consumer_group = :group FOR KEY SHARE"),
        text(
            "LOCK_GROUP", "WHERE consumer_group = :group FOR UPDATE", "WHERE consumer_group = :group FOR NO KEY UPDATE"
        ),
        tests=(_MEETS_A_CLAIM,),
        why="Each one step weaker, and neither waits for the other: the epoch is read as it was before the claim. "
        "A claim's FOR UPDATE holds off FOR KEY SHARE too, so that weaker shares alone change nothing.",
    ),
    mutant(
        "claim-locks-group",
        text("LOCK_GROUP", "WHERE consumer_group = :group FOR UPDATE", "WHERE consumer_group = :group"),
        tests=(f"{_STORE}test_claims_together.py::test_of_claims_at_once_the_last_owns_the_group_and_every_row",),
        why="Two claims at once would take the same epoch, and each would believe that it is the last.",
    ),
    mutant(
        "claim-locks-rows",
        ("lock_whole", "session.lock_group_partitions(group)", "session.read_partitions(group)"),
        tests=(
            f"{_STORE}test_claims_takeover.py::test_a_claim_waits_for_the_stale_jobs_open_transaction_then_fences_it",
        ),
        why="The new job would start where the stale one's open transaction began, and write its records again.",
    ),
)

FENCE: Final[tuple[Mutant, ...]] = (
    mutant(
        "token-of-the-row",
        ("Transaction._lock", "self._check_token(row.token if row else None, tp)", ""),
        tests=(f"{_CONTRACT}test_a_stale_job_is_fenced_in_a_range_that_it_could_skip",),
        why="A stale job would go on as if nothing was, until it has something to write; then only the UPDATE refuses.",
    ),
    mutant(
        "token-in-the-advance",
        text("ADVANCE", "AND p.epoch = :epoch AND p.claim_id = :claim_id ", ""),
        tests=(_ROW_CHANGED,),
        why="Under the lock only the job's own SQL can change a token; this is what sees it.",
    ),
    mutant(
        "token-of-the-row-and-in-the-advance",
        ("Transaction._lock", "self._check_token(row.token if row else None, tp)", ""),
        text("ADVANCE", "AND p.epoch = :epoch AND p.claim_id = :claim_id ", ""),
        tests=(f"{_CONTRACT}test_the_second_of_two_claims_wins_whatever_the_first_one_touches",),
        why="Each of the two refuses a stale job alone. With both gone it writes beside the new one.",
    ),
    mutant(
        "token-of-the-group",
        ("Transaction._lock", "self._check_token(..., None)", "..."),
        tests=(
            f"{_CONTRACT}test_a_stale_job_can_not_create_a_row",
            f"{_CONTRACT}test_the_second_of_two_claims_wins_whatever_the_first_one_touches[none]",
        ),
        why="A stale job would make the row of a partition that it is the first to see, with its own token in it.",
    ),
    mutant(
        "token-in-some-rows",
        text("WRITE_TOKENS", "WHERE consumer_group = :group\n", "WHERE consumer_group = :group AND partition = 0\n"),
        tests=(f"{_CONTRACT}test_the_second_of_two_claims_wins_whatever_the_first_one_touches",),
        why="A stale job would be fenced in some of its partitions, and go on in the others.",
    ),
    mutant(
        "token-without-the-claim-id",
        (
            "Transaction._check_token",
            "token != expected",
            "token is None or token.epoch != expected.epoch",
        ),
        text("ADVANCE", "AND p.claim_id = :claim_id ", ""),
        tests=(f"{_CONTRACT}test_equal_epochs_of_a_restored_backup_are_told_apart",),
        why="A restored backup counts its epochs again: two jobs would hold the same one.",
    ),
    mutant(
        "second-query",
        ("Claim.bind", "self._query_id != query_id", "not query_id"),
        tests=(f"{_STORE}test_claims.py::test_a_second_query_on_one_claim_is_refused",),
        why="Two queries on one claim skip what the other has written.",
    ),
)

ADVANCE: Final[tuple[Mutant, ...]] = (
    mutant(
        "comparison-in-python",
        ("Transaction._check_remaining", "range_ != decision.remaining", "not range_"),
        tests=(f"{_CONTRACT}test_advance_takes_the_range_that_lock_returned",),
        why="An end that is not the range's would pass: the UPDATE compares where a range begins alone.",
    ),
    mutant(
        "comparison-in-sql",
        text("ADVANCE", "CASE WHEN p.next_offset = n.from_offset AND p.epoch", "CASE WHEN p.epoch"),
        tests=(_ROW_CHANGED,),
        why="Under the lock only the job's own SQL can move an offset; this is what sees it.",
    ),
    mutant(
        "comparison-in-both",
        ("Transaction._check_remaining", "range_ != decision.remaining", "not range_"),
        text("ADVANCE", "CASE WHEN p.next_offset = n.from_offset AND p.epoch", "CASE WHEN p.epoch"),
        tests=(f"{_CONTRACT}test_advance_takes_the_range_that_lock_returned",),
        why="A blind UPDATE: an offset could be moved from anywhere to anywhere.",
    ),
    mutant(
        "count-of-rows-moved",
        ("Transaction._check_moved", "moved != len(wanted)", "moved > len(wanted)"),
        tests=(_ROW_CHANGED,),
        why="Where the UPDATE finds no row as it was locked, results would be committed without their offset.",
    ),
    mutant(
        "gap",
        ("Transaction._lock", "decision.outcome is Outcome.GAP", "decision.outcome is None"),
        ("Decision.remaining", "self.outcome is Outcome.GAP", "self.outcome is None"),
        tests=(f"{_CONTRACT}test_a_range_above_the_stored_offset_is_a_gap_and_writes_nothing",),
        why="Records between the stored offset and the range would be lost in silence. A gap has no rest to write "
        "either, see the next one, so that both go.",
    ),
    mutant(
        "gap-has-a-rest",
        ("Decision.remaining", "self.outcome is Outcome.GAP", "self.outcome is None"),
        tests=(
            "tests/property/test_replay_model.py::test_what_remains_is_the_part_of_the_range_above_the_stored_offset",
        ),
        why="Whoever decides without a lock, as the sink's plan does, could go on over a gap.",
    ),
    mutant(
        "rest-from-the-range",
        ("Decision.remaining", "OffsetRange(self.stored, ...)", "OffsetRange(min(self.stored, self.range.from_), ...)"),
        tests=(
            "tests/property/test_replay_model.py::test_what_remains_is_the_part_of_the_range_above_the_stored_offset",
        ),
        why="A cropped range would keep the records that are in the results already.",
    ),
    mutant(
        "unadvanced",
        (
            "Transaction._check_complete",
            "decision.outcome is not Outcome.SKIP and tp not in self._advanced",
            "decision.outcome is Outcome.GAP",
        ),
        tests=(f"{_CONTRACT}test_a_locked_partition_left_unadvanced_is_refused",),
        why="Results would be committed without their offset, and written again by the next batch.",
    ),
)

_MEMORY: Final = "tests/contract/test_memory.py::TestInMemoryOffsetStore::"

METADATA: Final[tuple[Mutant, ...]] = (
    mutant(
        "cached-read-of-a-stale-claim",
        ("Claim.metadata", "if self.is_lost: ...", "if self.is_closed: ..."),
        tests=(f"{_MEMORY}test_a_job_whose_transaction_was_refused_knows_that_it_is_stale",),
        why="A stale job would go on with a note that the next owner has replaced.",
    ),
    mutant(
        "uncached-read-of-a-stale-claim",
        ("read_own", "row.token != token", "row.token is None"),
        tests=(f"{_MEMORY}test_a_stale_job_reads_no_metadata_of_others",),
        why="A stale job would read the next owner's note.",
    ),
    mutant(
        "stored-metadata-forgotten-too-early",
        (
            "Transaction._stored_texts",
            "self._used_metadata |= stored",
            "[self._terms[tp].forget(one) for tp, one in stored.items()]",
        ),
        tests=(f"{_MEMORY}test_stored_metadata_is_kept_until_a_commit",),
        why="After a rollback the next attempt would write none.",
    ),
    mutant(
        "stored-metadata-never-forgotten",
        ("Term.forget", "self.next = None", "pass"),
        tests=(f"{_MEMORY}test_stored_metadata_is_for_the_next_advance_alone",),
        why="Each later batch would write the old note again.",
    ),
    mutant(
        "stored-meanwhile",
        ("Term.forget", "self.next is used", "self.next"),
        tests=(f"{_MEMORY}test_stored_metadata_is_kept_until_a_commit",),
        why="A value that is stored while an advance commits would be lost.",
    ),
    mutant(
        "metadata-of-what-is-not-locked",
        ("Transaction.write_metadata", "tp not in decisions", "tp is None"),
        (
            "Transaction.write_metadata",
            "if decisions[tp].is_stored: ...",
            "if tp in decisions and decisions[tp].is_stored: ...",
        ),
        tests=(f"{_MEMORY}test_metadata_is_written_only_to_what_is_locked",),
        why="A note would change under another transaction.",
    ),
)


MARKING: Final[tuple[Mutant, ...]] = (
    mutant(
        "mark-backwards",
        ("check_mark", "next_offset <= above", "next_offset < 0"),
        tests=(f"{_MEMORY}test_marking_backwards_is_refused[stored]",),
        why="Records would be processed again, without a reset and its line in the history.",
    ),
    mutant(
        "mark-beyond-what-was-delivered",
        ("check_mark", "next_offset > delivered", "next_offset > delivered + 1"),
        tests=(f"{_MEMORY}test_a_mark_beyond_what_was_delivered_is_refused",),
        why="Records that the job was never given would be lost.",
    ),
    mutant(
        "position-of-another-offset",
        ("base", "position.stored != stored", "position.stored > stored"),
        tests=(f"{_MEMORY}test_what_else_moves_the_offset_is_noticed",),
        why="Where something else has stored results, the job would go on as if they were its own.",
    ),
    mutant(
        "delivered-instead-of-stored",
        ("Transaction._base", "... if self._is_manual else stored", "base(tp, stored, None)"),
        tests=(f"{_MEMORY}test_the_stored_offset_moves_to_the_mark_and_the_next_batch_is_no_gap",),
        why="What was delivered and not marked would be delivered again, or be a gap.",
    ),
    mutant(
        "mark-that-was-rolled-back",
        ("Transaction.mark", "session.count_mark()", ""),
        tests=(f"{_CONTRACT}test_a_mark_in_a_savepoint_counts_and_one_that_was_rolled_back_is_noticed",),
        why="ROLLBACK TO drops the results, and the mark would stay: they would be lost.",
    ),
    mutant(
        "mark-that-a-later-one-hides",
        text("COUNT_MARK", "CAST(1 +", "CAST(2 +"),
        tests=(f"{_CONTRACT}test_a_mark_in_a_savepoint_counts_and_one_that_was_rolled_back_is_noticed",),
        why="What is counted has to be what is expected, or one mark would stand in for another.",
    ),
    mutant(
        "metadata-of-an-earlier-mark",
        ("Transaction.mark", "self._mark_metadata.pop(tp, None)", "pass"),
        tests=(f"{_MEMORY}test_metadata_goes_with_the_mark_and_not_with_a_block_without_one",),
        why="The note would be older than its offset.",
    ),
    mutant(
        "metadata-without-a-mark",
        ("Transaction._store_marks", "self._stored_texts(self._marks)", "self._stored_texts(ranges)"),
        tests=(f"{_MEMORY}test_metadata_goes_with_the_mark_and_not_with_a_block_without_one",),
        why="The note would be newer than its offset.",
    ),
)

STORE: Final = (*LOCKS, *FENCE, *ADVANCE, *METADATA, *MARKING)
