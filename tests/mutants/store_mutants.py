"""The transaction: its locks, its tokens, its comparison. They need PostgreSQL and nothing else."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_SQL: Final = "offsetstore/postgres/statements.py"
_REPLAY: Final = "offsetstore/protocol/replay.py"
_TX: Final = "offsetstore/store/transaction.py"
_CLAIM: Final = "offsetstore/store/claim.py"

_CONTRACT: Final = "tests/contract/test_postgres.py::TestPostgresOffsetStore::"
_STORE: Final = "tests/integration/store/"
_ORDER: Final = f"{_STORE}test_transaction_order.py::"
_LOCKS: Final = f"{_STORE}test_transaction_locks.py::"
_OWN_SQL: Final = f"{_STORE}test_transaction_own_sql.py::"
_ROW_CHANGED: Final = f"{_OWN_SQL}test_a_row_that_was_changed_under_its_own_lock_takes_results_and_offsets_with_it"

_MEETS_A_CLAIM: Final = (
    f"{_STORE}test_claims_together.py::test_a_job_that_meets_an_unknown_partition_during_a_claim_is_stale_afterwards"
)

_LOCK: Final = """\
WHERE p.consumer_group = (SELECT :group)
ORDER BY p.topic, p.partition
FOR UPDATE OF p
"""
_CHECK_ROW: Final = """\
            self._check_token(row.token if row else None, tp)
"""
_CHECK_GROUP: Final = "self._check_token(session.share_group(self._claim.group), None)"
_TOKEN_IN_SQL: Final = " AND p.epoch = :epoch AND p.claim_id = :claim_id THEN true END\nRETURNING 1)"
_NO_TOKEN_IN_SQL: Final = " THEN true END\nRETURNING 1)"
_OFFSET_IN_SQL: Final = "CASE WHEN p.next_offset = n.from_offset AND p.epoch"
_OFFSET_IN_PYTHON: Final = "        if range_ != decision.remaining:\n"

LOCKS: Final[tuple[Mutant, ...]] = (
    mutant(
        "for-update",
        (_SQL, _LOCK, _LOCK.replace("FOR UPDATE OF p\n", "")),
        tests=(f"{_CONTRACT}test_a_row_that_is_locked_elsewhere_ends_in_lock_timeout",),
        why="Two jobs would decide on the same stored offset; only the comparison in the UPDATE would be left.",
    ),
    mutant(
        "lock-order",
        (_SQL, _LOCK, _LOCK.replace("ORDER BY p.topic, p.partition\n", "")),
        tests=(f"{_LOCKS}test_the_plan_locks_what_comes_out_of_the_sort",),
        why="PostgreSQL would lock in whatever order its plan comes upon the rows, and jobs would deadlock.",
    ),
    mutant(
        "lock-order-as-asked",
        (_SQL, _LOCK, _LOCK.replace("ORDER BY p.topic, p.partition\n", "")),
        (_TX, "        self._partitions = sorted(ranges)\n", "        self._partitions = list(ranges)\n"),
        tests=(f"{_ORDER}test_rows_are_locked_in_order_also_by_a_plan_that_comes_upon_them_in_another",),
        why="The same, seen in the locks. A plan may keep the order of what was asked, which is sorted: both go.",
    ),
    mutant(
        "insert-order",
        (
            _SQL,
            '     AS n (topic, partition, next_offset)\nORDER BY n.topic COLLATE "C", n.partition\n',
            "     AS n (topic, partition, next_offset)\n",
        ),
        (_TX, "unknown = sorted(tp for tp in ranges if", "unknown = list(tp for tp in ranges if"),
        tests=(f"{_ORDER}test_rows_are_made_in_order_whatever_was_asked",),
        why="The same for partitions that are new. It is sorted in Python too, so that either alone would do: both go.",
    ),
    mutant(
        "partition-before-group",
        (
            _TX,
            "        if unknown or not ranges:\n",
            "        session.lock_partitions(self._claim.group, self._partitions)\n        if unknown or not ranges:\n",
        ),
        tests=(f"{_ORDER}test_the_group_s_row_is_had_before_any_partition_s",),
        why="A claim takes the group's row first; a job that comes from the other side deadlocks with it.",
    ),
    mutant(
        "group-share",
        (_SQL, 'WHERE consumer_group = :group FOR SHARE"', 'WHERE consumer_group = :group"'),
        tests=(_MEETS_A_CLAIM,),
        why="A claim under way would not see the row that a stale job makes meanwhile, and could not fence it there.",
    ),
    mutant(
        "group-key-share",
        (_SQL, 'WHERE consumer_group = :group FOR SHARE"', 'WHERE consumer_group = :group FOR KEY SHARE"'),
        (_SQL, 'WHERE consumer_group = :group FOR UPDATE"', 'WHERE consumer_group = :group FOR NO KEY UPDATE"'),
        tests=(_MEETS_A_CLAIM,),
        why="Each one step weaker, and neither waits for the other: the epoch is read as it was before the claim. "
        "A claim's FOR UPDATE holds off FOR KEY SHARE too, so that weaker shares alone change nothing.",
    ),
    mutant(
        "claim-locks-group",
        (_SQL, 'WHERE consumer_group = :group FOR UPDATE"', 'WHERE consumer_group = :group"'),
        tests=(f"{_STORE}test_claims_together.py::test_of_claims_at_once_the_last_owns_the_group_and_every_row",),
        why="Two claims at once would take the same epoch, and each would believe that it is the last.",
    ),
    mutant(
        "claim-locks-rows",
        (
            "offsetstore/store/acquire.py",
            "rows = session.lock_group_partitions(group)",
            "rows = session.read_partitions(group)",
        ),
        tests=(
            f"{_STORE}test_claims_takeover.py::test_a_claim_waits_for_the_stale_jobs_open_transaction_then_fences_it",
        ),
        why="The new job would start where the stale one's open transaction began, and write its records again.",
    ),
)

FENCE: Final[tuple[Mutant, ...]] = (
    mutant(
        "token-of-the-row",
        (_TX, _CHECK_ROW, ""),
        tests=(f"{_CONTRACT}test_a_stale_job_is_fenced_in_a_range_that_it_could_skip",),
        why="A stale job would go on as if nothing was, until it has something to write; then only the UPDATE refuses.",
    ),
    mutant(
        "token-in-the-advance",
        (_SQL, _TOKEN_IN_SQL, _NO_TOKEN_IN_SQL),
        tests=(_ROW_CHANGED,),
        why="Under the lock only the job's own SQL can change a token; this is what sees it.",
    ),
    mutant(
        "token-of-the-row-and-in-the-advance",
        (_TX, _CHECK_ROW, ""),
        (_SQL, _TOKEN_IN_SQL, _NO_TOKEN_IN_SQL),
        tests=(f"{_CONTRACT}test_the_second_of_two_claims_wins_whatever_the_first_one_touches",),
        why="Each of the two refuses a stale job alone. With both gone it writes beside the new one.",
    ),
    mutant(
        "token-of-the-group",
        (_TX, _CHECK_GROUP, "session.share_group(self._claim.group)"),
        tests=(
            f"{_CONTRACT}test_a_stale_job_can_not_create_a_row",
            f"{_CONTRACT}test_the_second_of_two_claims_wins_whatever_the_first_one_touches[none]",
        ),
        why="A stale job would make the row of a partition that it is the first to see, with its own token in it.",
    ),
    mutant(
        "token-in-some-rows",
        (
            _SQL,
            "SET epoch = :epoch, claim_id = :claim_id WHERE consumer_group = :group\n",
            "SET epoch = :epoch, claim_id = :claim_id WHERE consumer_group = :group AND partition = 0\n",
        ),
        tests=(f"{_CONTRACT}test_the_second_of_two_claims_wins_whatever_the_first_one_touches",),
        why="A stale job would be fenced in some of its partitions, and go on in the others.",
    ),
    mutant(
        "token-without-the-claim-id",
        (_TX, "if token != self._claim.token:", "if token is None or token.epoch != self._claim.token.epoch:"),
        (_SQL, _TOKEN_IN_SQL, _TOKEN_IN_SQL.replace(" AND p.claim_id = :claim_id", "")),
        tests=(f"{_CONTRACT}test_equal_epochs_of_a_restored_backup_are_told_apart",),
        why="A restored backup counts its epochs again: two jobs would hold the same one.",
    ),
    mutant(
        "second-query",
        ("offsetstore/store/claim.py", "        if self._query_id != query_id:\n", "        if not query_id:\n"),
        tests=(f"{_STORE}test_claims.py::test_a_second_query_on_one_claim_is_refused",),
        why="Two queries on one claim skip what the other has written.",
    ),
)

ADVANCE: Final[tuple[Mutant, ...]] = (
    mutant(
        "comparison-in-python",
        (_TX, _OFFSET_IN_PYTHON, "        if not range_:\n"),
        tests=(f"{_CONTRACT}test_advance_takes_the_range_that_lock_returned",),
        why="An end that is not the range's would pass: the UPDATE compares where a range begins alone.",
    ),
    mutant(
        "comparison-in-sql",
        (_SQL, _OFFSET_IN_SQL, "CASE WHEN p.epoch"),
        tests=(_ROW_CHANGED,),
        why="Under the lock only the job's own SQL can move an offset; this is what sees it.",
    ),
    mutant(
        "comparison-in-both",
        (_TX, _OFFSET_IN_PYTHON, "        if not range_:\n"),
        (_SQL, _OFFSET_IN_SQL, "CASE WHEN p.epoch"),
        tests=(f"{_CONTRACT}test_advance_takes_the_range_that_lock_returned",),
        why="A blind UPDATE: an offset could be moved from anywhere to anywhere.",
    ),
    mutant(
        "count-of-rows-moved",
        (_TX, "        if moved != len(wanted):\n", "        if moved > len(wanted):\n"),
        tests=(_ROW_CHANGED,),
        why="Where the UPDATE finds no row as it was locked, results would be committed without their offset.",
    ),
    mutant(
        "gap",
        (_TX, "            if decision.outcome is Outcome.GAP:\n", "            if decision.outcome is None:\n"),
        (
            _REPLAY,
            "        if self.outcome is Outcome.GAP:\n",
            "        if self.outcome is None:\n",
        ),
        tests=(f"{_CONTRACT}test_a_range_above_the_stored_offset_is_a_gap_and_writes_nothing",),
        why="Records between the stored offset and the range would be lost in silence. A gap has no rest to write "
        "either, see the next one, so that both go.",
    ),
    mutant(
        "gap-has-a-rest",
        (
            _REPLAY,
            "        if self.outcome is Outcome.GAP:\n",
            "        if self.outcome is None:\n",
        ),
        tests=(
            "tests/property/test_replay_model.py::test_what_remains_is_the_part_of_the_range_above_the_stored_offset",
        ),
        why="Whoever decides without a lock, as the sink's plan does, could go on over a gap.",
    ),
    mutant(
        "rest-from-the-range",
        (
            _REPLAY,
            "OffsetRange(self.stored, max(self.stored, self.range.until))",
            "OffsetRange(min(self.stored, self.range.from_), max(self.stored, self.range.until))",
        ),
        tests=(
            "tests/property/test_replay_model.py::test_what_remains_is_the_part_of_the_range_above_the_stored_offset",
        ),
        why="A cropped range would keep the records that are in the results already.",
    ),
    mutant(
        "unadvanced",
        (
            _TX,
            "            if decision.outcome is not Outcome.SKIP and tp not in self._advanced:\n",
            "            if decision.outcome is Outcome.GAP:\n",
        ),
        tests=(f"{_CONTRACT}test_a_locked_partition_left_unadvanced_is_refused",),
        why="Results would be committed without their offset, and written again by the next batch.",
    ),
)

_NOTES: Final = "offsetstore/store/claim_metadata.py"
_MEMORY: Final = "tests/contract/test_memory.py::TestInMemoryOffsetStore::"

METADATA: Final[tuple[Mutant, ...]] = (
    mutant(
        "cached-read-of-a-stale-claim",
        (_CLAIM, "            if self.is_lost:\n", "            if self.is_closed:\n"),
        tests=(f"{_MEMORY}test_a_job_whose_transaction_was_refused_knows_that_it_is_stale",),
        why="A stale job would go on with a note that the next owner has replaced.",
    ),
    mutant(
        "uncached-read-of-a-stale-claim",
        (_NOTES, "row.token != token), None)\n", "row.token is None), None)\n"),
        tests=(f"{_MEMORY}test_a_stale_job_reads_no_metadata_of_others",),
        why="A stale job would read the next owner's note.",
    ),
    mutant(
        "stored-metadata-forgotten-too-early",
        (_TX, "        self._used_metadata |= stored\n", "        self._claim.claim_metadata.forget(stored)\n"),
        tests=(f"{_MEMORY}test_stored_metadata_is_kept_until_a_commit",),
        why="After a rollback the next attempt would write none.",
    ),
    mutant(
        "stored-metadata-never-forgotten",
        (_NOTES, "                    del self._next[tp]\n", "                    pass\n"),
        tests=(f"{_MEMORY}test_stored_metadata_is_for_the_next_advance_alone",),
        why="Each later batch would write the old note again.",
    ),
    mutant(
        "stored-meanwhile",
        (
            _NOTES,
            "                if tp in self._next and self._next[tp].number == stored.number:\n",
            "                if tp in self._next:\n",
        ),
        tests=(f"{_MEMORY}test_stored_metadata_is_kept_until_a_commit",),
        why="A value that is stored while an advance commits would be lost.",
    ),
    mutant(
        "metadata-of-what-is-not-locked",
        (
            _TX,
            '        if tp not in decisions:\n            raise AdvanceMismatch(\n                "tx.write',
            '        if tp is None:\n            raise AdvanceMismatch(\n                "tx.write',
        ),
        (_TX, "        if decisions[tp].is_stored:\n", "        if tp in decisions and decisions[tp].is_stored:\n"),
        tests=(f"{_MEMORY}test_metadata_is_written_only_to_what_is_locked",),
        why="A note would change under another transaction.",
    ),
)

_MARKING: Final = "offsetstore/protocol/marking.py"

MARKING: Final[tuple[Mutant, ...]] = (
    mutant(
        "mark-backwards",
        (_MARKING, "    if next_offset <= above:\n", "    if next_offset < 0:\n"),
        tests=(f"{_MEMORY}test_marking_backwards_is_refused[stored]",),
        why="Records would be processed again, without a reset and its line in the history.",
    ),
    mutant(
        "mark-beyond-what-was-delivered",
        (_MARKING, "    if next_offset > delivered:\n", "    if next_offset > delivered + 1:\n"),
        tests=(f"{_MEMORY}test_a_mark_beyond_what_was_delivered_is_refused",),
        why="Records that the job was never given would be lost.",
    ),
    mutant(
        "position-of-another-offset",
        (_MARKING, "    if position.stored != stored:\n", "    if position.stored > stored:\n"),
        tests=(f"{_MEMORY}test_what_else_moves_the_offset_is_noticed",),
        why="Where something else has stored results, the job would go on as if they were its own.",
    ),
    mutant(
        "delivered-instead-of-stored",
        (_TX, "self._claim.positions.get(tp)) if self._is_manual else stored", "None)"),
        tests=(f"{_MEMORY}test_the_stored_offset_moves_to_the_mark_and_the_next_batch_is_no_gap",),
        why="What was delivered and not marked would be delivered again, or be a gap.",
    ),
    mutant(
        "mark-that-was-rolled-back",
        (_TX, "        session.count_mark()\n", ""),
        tests=(f"{_CONTRACT}test_a_mark_in_a_savepoint_counts_and_one_that_was_rolled_back_is_noticed",),
        why="ROLLBACK TO drops the results, and the mark would stay: they would be lost.",
    ),
    mutant(
        "mark-that-a-later-one-hides",
        (
            "offsetstore/postgres/statements.py",
            "SELECT set_config('offsetstore.moved', CAST(1 + CAST(",
            "SELECT set_config('offsetstore.moved', CAST(2 + CAST(",
        ),
        tests=(f"{_CONTRACT}test_a_mark_in_a_savepoint_counts_and_one_that_was_rolled_back_is_noticed",),
        why="What is counted has to be what is expected, or one mark would stand in for another.",
    ),
    mutant(
        "metadata-of-an-earlier-mark",
        (_TX, "            self._mark_metadata.pop(tp, None)", "            pass"),
        tests=(f"{_MEMORY}test_metadata_goes_with_the_mark_and_not_with_a_block_without_one",),
        why="The note would be older than its offset.",
    ),
    mutant(
        "metadata-without-a-mark",
        (_TX, "{**self._stored_texts(self._marks), ", "{**self._stored_texts(ranges), "),
        tests=(f"{_MEMORY}test_metadata_goes_with_the_mark_and_not_with_a_block_without_one",),
        why="The note would be newer than its offset.",
    ),
)

STORE: Final = (*LOCKS, *FENCE, *ADVANCE, *METADATA, *MARKING)
