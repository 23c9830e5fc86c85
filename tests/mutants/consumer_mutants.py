"""The consumer: what it hands over, and what it keeps out after a partition was lost."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_DELIVERIES: Final = "tests/integration/consumer/test_deliveries.py::"
_SHORT: Final = (
    "tests/integration/consumer/test_members.py::"
    "test_a_short_log_is_looked_at_again_and_one_whose_records_are_gone_ends_the_consumer"
)
_FEED: Final = "tests/unit/consumer/test_records.py::"

CONSUMER: Final[tuple[Mutant, ...]] = (
    mutant(
        "delivery-of-an-earlier-assignment",
        ("PolledRecords.ranges", "terms.get(tp) is one.term and one.range.size", "tp in terms and one.range.size"),
        tests=(f"{_DELIVERIES}test_what_was_polled_before_a_partition_came_back_is_left_out",),
        why="Records that the assignment gives out anew would be written from what was polled before it.",
    ),
    mutant(
        "delivery-with-a-lost-partition",
        ("with_replanning", "(PlanOutdated, PartitionLost)", "PlanOutdated"),
        tests=(f"{_DELIVERIES}test_what_another_member_has_taken_is_left_out_and_the_rest_is_written",),
        why="A member that has lost one partition would end, and leave all others to nobody.",
    ),
    mutant(
        "log-that-a-new-leader-does-not-know",
        (
            "Membership._take",
            "isinstance(error, OffsetOutOfRange) and not self._member.doubts",
            "isinstance(error, OffsetOutOfRange)",
        ),
        tests=(f"{_SHORT}[mock-perhaps a new leader]",),
        why="A leader that knows a low end for a second would end all consumers.",
    ),
    mutant(
        "log-that-begins-too-late",
        ("Membership._take", "isinstance(error, OffsetOutOfRange) and not self._member.doubts", "False"),
        tests=(f"{_SHORT}[mock-records that are gone]",),
        why="A consumer whose records are gone would look for them again each second, and never say so.",
    ),
    mutant(
        "records-that-are-not-the-member-s",
        ("Feed.add", "one is None or record.offset < one.until", "one is None"),
        tests=(f"{_FEED}test_what_is_not_the_member_s_or_was_gathered_before_is_left_out",),
        why="A record that Kafka's client hands out again would be written again.",
    ),
    mutant(
        "end-that-goes-back",
        ("Feed.reach", "one is not None and offset > one.until", "one is not None"),
        tests=(f"{_FEED}test_what_is_not_the_member_s_or_was_gathered_before_is_left_out",),
        why="Records that were gathered would be gathered again, and written twice.",
    ),
    mutant(
        "feed-without-a-limit",
        ("Feed.room", "self._bytes < self._limits.bytes", "True"),
        tests=(f"{_FEED}test_a_feed_is_due_at_the_first_of_its_limits_and_has_no_room_then",),
        why="Memory would hold whatever Kafka has.",
    ),
)
