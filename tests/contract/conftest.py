"""Which cases of the contract are run where."""

from __future__ import annotations

from typing import Final

import pytest

from tests.contract.admin import AdminContract
from tests.contract.fence import FenceContract
from tests.contract.fleets import FleetContract, PeopleFleetContract
from tests.contract.letters import LetterContract, PeopleLetterContract
from tests.contract.locks import LockContract
from tests.contract.logs import LogContract
from tests.contract.marking import MarkingContract
from tests.contract.marks import MarkContract
from tests.contract.metadata import MetadataContract
from tests.contract.outbox import OutboxContract
from tests.contract.pauses import PeoplePauseContract
from tests.contract.plans import PlanContract
from tests.contract.replays import ReplayContract
from tests.contract.runs import RunContract
from tests.contract.samples import SampleContract
from tests.contract.test_pooled import TestPooledOffsetStore
from tests.contract.together import TogetherContract

WHOLE: Final = (LockContract, ReplayContract, MarkContract, OutboxContract)
"""What is about transactions, connections and locks."""

SENDERS: Final = (
    AdminContract.test_a_delete_leaves_the_name_and_a_history_that_has_the_offsets,
    AdminContract.test_a_home_that_is_not_known_is_not_compared,
    AdminContract.test_a_rename_moves_all_of_a_group_and_is_known_under_both_names,
    AdminContract.test_a_reset_ends_a_transaction_that_does_not_end,
    AdminContract.test_the_store_tells_what_it_is_like,
    FleetContract.test_a_job_that_takes_over_fences_the_whole_fleet,
    FleetContract.test_a_late_assignment_takes_the_partition_and_its_owner_takes_it_again,
    FleetContract.test_a_log_that_was_truncated_and_has_regrown_is_told_by_what_a_member_read_last,
    FleetContract.test_a_member_that_was_silent_for_so_long_that_it_is_forgotten_is_back_once_it_wakes,
    FleetContract.test_a_transaction_supersedes_the_letters_that_it_passes_although_their_partition_is_given_back,
    FleetContract.test_members_take_turns_and_none_waits_for_another,
    FenceContract.test_equal_epochs_of_a_restored_backup_are_told_apart,
    FenceContract.test_the_second_of_two_claims_wins_whatever_the_first_one_touches,
    LetterContract.test_a_topic_s_id_that_becomes_known_becomes_the_letter_s,
    LetterContract.test_failed_attempts_survive_a_restart_and_go_when_their_records_are_passed,
    LetterContract.test_open_letters_are_overtaken_by_what_is_written_above_them,
    LogContract.test_a_log_that_was_truncated_and_has_regrown_is_refused_until_a_reset,
    MarkingContract.test_metadata_goes_with_the_mark_and_not_with_a_block_without_one,
    MetadataContract.test_a_megabyte_with_unicode_and_quotes_comes_back,
    PeopleLetterContract.test_a_letter_can_be_read_without_its_contents_and_one_that_is_not_there_is_told,
    PeopleLetterContract.test_a_list_is_filtered_also_where_it_looks_at_some_letters_at_a_time,
    PeopleLetterContract.test_a_record_that_fails_again_reopens_its_letter,
    PeopleLetterContract.test_a_request_marks_letters_and_the_history_has_one_line,
    PeopleLetterContract.test_a_wait_for_a_letter_goes_on_when_its_topic_s_id_becomes_known,
    PeopleLetterContract.test_letters_are_grouped_by_their_errors_which_is_a_filter_and_counts_can_be_bounded,
    PeopleLetterContract.test_only_what_was_settled_long_enough_ago_is_pruned,
    PeoplePauseContract.test_a_pause_that_has_ended_by_itself_is_in_the_history_of_a_group_that_goes,
    PlanContract.test_a_letter_that_was_overtaken_since_is_in_the_new_plan_of_a_forced_replay,
    PeopleFleetContract.test_a_decision_that_fences_says_whom_and_the_fenced_is_told_which_and_by_whom,
    RunContract.test_an_error_that_no_batch_has_met_ends_the_run_as_failed,
    SampleContract.test_any_number_of_processes_may_record_at_once,
    SampleContract.test_the_finest_ring_that_covers_the_span_is_read_and_nothing_before_it,
    TogetherContract.test_a_generator_that_another_thread_closes_leaves_the_first_thread_usable,
    TogetherContract.test_results_and_offset_are_committed_together,
)
"""Of all else, those that send each statement once: a test of a new statement comes here, too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Behind a pooler each statement is sent, by one case of a test: what varies are values and the order."""
    chosen = {test.__name__ for test in SENDERS}
    seen = set[str]()
    for item in [*items]:
        if isinstance(item, pytest.Function) and item.cls is TestPooledOffsetStore:
            name = item.originalname
            is_whole = any(name in vars(contract) for contract in WHOLE)
            if name in seen or not (is_whole or name in chosen):
                items.remove(item)
            seen.add(name)
