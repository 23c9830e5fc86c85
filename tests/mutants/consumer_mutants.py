"""The consumer: what it hands over, and what it keeps out after a partition was lost."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_DELIVERIES: Final = "tests/integration/consumer/test_deliveries.py::"
_SHORT: Final = (
    "tests/integration/consumer/test_members.py::"
    "test_a_short_log_is_looked_at_again_and_one_whose_records_are_gone_ends_the_consumer"
)
_UNPINNED: Final = (
    "tests/integration/consumer/test_members.py::"
    "test_offsets_that_kafka_had_are_believed_again_once_the_stored_ones_are_committed"
)
_CHECK: Final = (
    'outputs.check_tables(claim, {name: pa.schema([*cast("Any", one), coordinates]) '
    "for name, one in outputs.schemas.items()})"
)
_CAME_BACK: Final = (
    "tests/unit/processing/test_put_back.py::test_a_replay_that_was_read_before_a_partition_came_back_writes_nothing"
)
_FILTERS: Final = "tests/unit/consumer/test_filters.py::"
_FILTER_MODEL: Final = (
    "tests/property/test_filters_model.py::"
    "test_each_record_is_delivered_or_dropped_once_and_no_offset_passes_one_that_waits"
)
_COMMITTED: Final = (
    "tests/integration/consumer/test_members.py::"
    "test_what_is_stored_is_committed_to_kafka_with_a_stamp_and_at_once_when_partitions_are_given_back"
)
_AGAIN: Final = "tests/integration/consumer/test_members.py::"
_AWAY: Final = "tests/unit/consumer/test_commits.py::"
_FEED: Final = "tests/unit/consumer/test_records.py::"
_FEED_MODEL: Final = (
    "tests/property/test_feed_model.py::test_a_flush_has_at_most_the_limit_and_one_record_and_none_is_left"
)
_FRAMES: Final = "tests/unit/protocol/test_frames.py::"
_POLLING: Final = "tests/unit/consumer/test_polling.py::"
_REGROWN: Final = (
    f"{_POLLING}test_a_log_that_was_truncated_and_has_regrown_ends_the_consumer_and_what_it_lost_is_not_written"
)

CONSUMER: Final[tuple[Mutant, ...]] = (
    mutant(
        "consumer-s-function-with-chance",
        ("Computation.repeats", "rows[one].equals(others[one])", "True"),
        tests=(
            (
                "tests/integration/consumer/test_deliveries.py::"
                "test_the_error_gives_the_command_that_skips_the_record_if_the_same_rows_are_made_each_time"
            ),
        ),
        why="A person would skip a record that is not to blame.",
    ),
    mutant(
        "member-whose-place-another-has-polls-on",
        ("Membership._told", "code == KafkaError._FATAL", "False"),
        tests=(f"{_FEED}test_a_client_that_can_not_go_on_ends_the_consumer",),
        why="It would be ready and consume nothing, for good, and its partitions have no owner once the other ends.",
    ),
    mutant(
        "pair-of-the-assignment",
        ("Membership._take", "self._member.write_pairs(pairs)", "pass"),
        tests=(_REGROWN,),
        why="A log that lost stored records, and has grown again, would be read on: what took their place is skipped.",
    ),
    mutant(
        "records-that-are-no-more",
        ("Membership._take_again", "self._member.find_lost(...)", "()"),
        tests=(_REGROWN,),
        why="Rows of records that Kafka has no longer would be written, and what took their place be skipped.",
    ),
    mutant(
        "pairs-that-are-not-kept",
        ("Commits._read", "is_last or time.monotonic() >= self._look_at", "False"),
        tests=(f"{_AWAY}test_how_far_each_log_was_read_is_kept_beside_the_stored_offset_and_at_the_end_without_kafka",),
        why="After a kill or a stop, a start would compare the log with what was read at the last assignment.",
    ),
    mutant(
        "commit-while-kafka-is-away",
        (
            "Commits._read",
            "self._broker.committed_offsets(self._kafka_group, [TopicPartition(member.topics[0], 0)])",
            "pass",
        ),
        tests=(f"{_AWAY}test_nothing_is_committed_while_kafka_is_away_and_health_tells_it",),
        why="Each commit would be kept for session.timeout.ms, and no outage of Kafka would be seen.",
    ),
    mutant(
        "outage-that-nobody-is-told-of",
        ("Commits._commit", "isinstance(error, BrokerError)", "False"),
        tests=(f"{_AWAY}test_nothing_is_committed_while_kafka_is_away_and_health_tells_it",),
        why="A consumer would be ready while Kafka is away.",
    ),
    mutant(
        "wrong-credentials-for-ever",
        ("Membership._on_error", "error.code() in WRONG_CREDENTIALS", "False"),
        tests=(f"{_AWAY}test_wrong_credentials_end_the_consumer",),
        why="After a password has changed, a consumer would try the old one for ever, and say nothing.",
    ),
    mutant(
        "end-that-waits-for-kafka",
        (
            "Membership._leave",
            'wait([(ended := meanwhile("offsetstore-kafka-end", close))], timeout=_LEAVING)',
            'wait([(ended := meanwhile("offsetstore-kafka-end", close))], timeout=None)',
        ),
        tests=(f"{_AWAY}test_the_end_does_not_wait_for_a_kafka_that_is_away",),
        why="While Kafka is away, a process would be killed at the end of its drain, with exit code 75.",
    ),
    mutant(
        "wait-for-a-job-that-has-an-end",
        ("Consumer._join", 'self.request.takeover != "wait"', "True"),
        tests=(f"{_AWAY}test_a_consumer_waits_for_a_job_as_long_as_it_lives_and_ends_when_it_is_stopped",),
        why="A consumer that waits for a job would end after 30 s, with an exit code that ends all others.",
    ),
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
            "isinstance(error, OffsetOutOfRange) and error.topic_partition not in self._member.doubts",
            "isinstance(error, OffsetOutOfRange)",
        ),
        tests=(f"{_SHORT}[perhaps a new leader]",),
        why="A leader that knows a low end for a second would end all consumers.",
    ),
    mutant(
        "log-that-begins-too-late",
        ("Membership._take", "error.topic_partition not in self._member.doubts", "not self._member.doubts"),
        tests=(f"{_SHORT}[records that are gone]",),
        why="A consumer whose records are gone would look for them again each second, and never say so.",
    ),
    mutant(
        "pause-that-kafkas-client-remembers",
        (
            "Membership._on_revoke",
            "self._hold(self._paused.difference(given))",
            "self._paused.difference_update(given)",
        ),
        tests=(f"{_AGAIN}test_a_partition_that_is_given_back_while_it_is_paused_is_read_when_it_comes_back",),
        why="A partition that comes back would not be read any more, by a process that is live and ready.",
    ),
    mutant(
        "records-that-kafkas-client-can-not-read",
        ("Membership._told", "code not in PASSING | MISSING and (code > 0 or tp is not None)", "False"),
        tests=(f"{_FEED}test_a_batch_that_kafkas_client_can_not_read_ends_the_consumer",),
        why="The client goes on with the next batch, so the stored offset would pass records that nobody has seen.",
    ),
    mutant(
        "partitions-taken-together",
        (
            "Membership._take_again",
            "sorted(apart, key=lambda tp: (self._refused[tp], self._untaken[tp]))[:1]",
            "due",
        ),
        tests=(f"{_AGAIN}test_one_partition_that_cant_be_taken_keeps_no_other_waiting[error0]",),
        why="One row that is locked would keep all partitions of the process waiting.",
    ),
    mutant(
        "settings-that-override-all-others",
        ("ClientSettings.__init__", '"default.topic.config" in given', "False"),
        tests=("tests/unit/kafka/test_broker.py::test_settings_that_cannot_be_right_are_refused_at_once",),
        why="auto.offset.reset in it would let the client jump to the end of a log, over what it has not read.",
    ),
    mutant(
        "records-that-are-not-the-member-s",
        ("Feed.add", "record.offset >= one.until", "True"),
        tests=(f"{_FEED}test_what_is_not_the_member_s_or_was_gathered_before_is_left_out",),
        why="A record that Kafka's client hands out again would be written again.",
    ),
    mutant(
        "end-of-a-log-before-its-records",
        ("Membership._poll", "ends[tp] = message.offset()", "self._feed.reach(tp, message.offset())"),
        tests=(f"{_POLLING}test_the_end_of_a_log_is_behind_its_records_wherever_the_client_tells_of_it",),
        why="Records that came in the same poll would be below what was read, and be passed over.",
    ),
    mutant(
        "records-behind-what-cant-be-read",
        ("Membership._poll", "self._told(error, tp)", "pass"),
        tests=(f"{_POLLING}test_nothing_is_written_that_comes_behind_what_cant_be_read",),
        why="The client goes on behind a batch that it can't read, whose records would be passed over.",
    ),
    mutant(
        "end-that-goes-back",
        ("Feed.reach", "one is not None and offset > one.until", "one is not None"),
        tests=(f"{_FEED}test_what_is_not_the_member_s_or_was_gathered_before_is_left_out",),
        why="Records that were gathered would be gathered again, and written twice.",
    ),
    mutant(
        "feed-without-a-limit",
        ("Feed.room", "(left := self._limits.bytes - self._bytes) <= 0", "(left := self._limits.bytes) <= 0"),
        tests=(f"{_FEED}test_a_feed_is_due_at_the_first_of_its_limits_and_has_no_room_then",),
        why="Memory would hold whatever Kafka has.",
    ),
    mutant(
        "flush-beyond-its-bytes",
        ("Feed.take", "self._bytes - self._deferred_bytes > self._limits.bytes", "False"),
        tests=(_FEED_MODEL,),
        why="One poll takes up to 10,000 records: Flush(bytes=1 MiB) would write 56 MB.",
    ),
    mutant(
        "same-partition-first",
        ("Feed.take", "one.passed_over + 1", "0"),
        tests=(_FEED_MODEL,),
        why="A partition with large records would take the limit each time, and another one would wait for ever.",
    ),
    mutant(
        "poll-whatever-the-size",
        ("Feed.room", "1 + int(left / max(1.0, self._mean))", "self._limits.rows"),
        tests=(f"{_FEED}test_a_feed_is_due_at_the_first_of_its_limits_and_has_no_room_then",),
        why="Of large records, memory would hold as many as of small ones.",
    ),
    mutant(
        "error-with-its-frames",
        ("without_frames", "one.__traceback__ = None", "pass"),
        tests=(f"{_FRAMES}test_a_kept_error_holds_no_frames_nor_do_those_it_follows_from_or_has",),
        why="A consumer would grow by what each failed flush had.",
    ),
    mutant(
        "tracebacks-in-frames",
        ("without_frames", "with_empty_frames(error)", "pass"),
        tests=(f"{_FRAMES}test_a_context_manager_that_an_error_has_passed_holds_nothing",),
        why="Refused rows would stay, since each has passed context managers.",
    ),
    mutant(
        "handled-error-without-its-trace",
        ("_own_chain", "id(trace.tb_frame) in running", "False"),
        tests=(f"{_FRAMES}test_what_a_caller_is_handling_stays_as_it_is",),
        why="The error that ends a job would not tell where it was raised.",
    ),
    mutant(
        "ended-coroutine",
        ("_may_go_on", "bool(frame.f_code.co_flags & _COROUTINE)", "False"),
        tests=(f"{_FRAMES}test_a_coroutine_s_frame_stays_also_while_it_runs",),
        why="A handler's other calls may wait in such frames, and would end without a word.",
    ),
    mutant(
        "ended-generator",
        ("_may_go_on", "frame.f_code.co_code[frame.f_lasti] == _YIELD", "False"),
        tests=(f"{_FRAMES}test_a_generator_that_has_caught_an_error_goes_on",),
        why="A transform's own generator, which is used again, would end without a word.",
    ),
    mutant(
        "future-in-its-own-frame",
        ("_answer", "del future, work", "pass"),
        tests=(f"{_FRAMES}test_a_future_whose_error_nobody_asks_for_holds_nothing",),
        why="While Kafka is away, each failed copy of offsets would leave a client with its threads.",
    ),
    mutant(
        "events-with-frames",
        ("Observers.on", "isinstance(error, BaseException) and not isinstance(event, BatchEnded)", "False"),
        tests=(f"{_FRAMES}test_observers_that_keep_an_error_keep_no_frames_but_of_one_that_is_raised_next",),
        why="An observer that keeps events would keep the records of each outage.",
    ),
    mutant(
        "uncomputable-record-in-its-error",
        ("Computation.tried", "without_frames(error)", "pass"),
        tests=(f"{_FRAMES}test_a_record_that_cant_be_computed_is_not_held_by_its_error",),
        why="A consumer would grow with each letter.",
    ),
    mutant(
        "refused-rows-in-their-error",
        ("KeptTrials._keep", "without_frames(refused)", "refused"),
        tests=(f"{_FRAMES}test_a_refusal_that_is_kept_of_a_trial_holds_nothing",),
        why="A consumer would grow with each refused row.",
    ),
    mutant(
        "handling-in-a-circle",
        ("Handling.close", "del self._caller", "pass"),
        tests=(f"{_FRAMES}test_a_call_that_is_repeated_after_an_outage_leaves_nothing",),
        why="A consumer would keep the records of each flush until garbage is collected, which is seldom.",
    ),
    mutant(
        "handled-anew",
        ("HandledRecords._numbers", "not all(...)", "True"),
        tests=(f"{_DELIVERIES}test_what_another_member_has_taken_during_the_calls_calls_no_handler_again",),
        why="A plan that is made again would make all calls again.",
    ),
    mutant(
        "handled-though-lost",
        ("HandledRecords._is_wanted", "self.claim.term(tp) is self.polled[tp].term", "True"),
        tests=(f"{_DELIVERIES}test_what_is_planned_again_calls_no_handler_again_and_lost_records_are_not_called",),
        why="Records would be called beside the calls of the partition's new owner.",
    ),
    mutant(
        "handled-after-the-claim",
        ("HandledRecords._is_wanted", "self.claim.is_lost", "False"),
        ("handled:handled", "claim.require_open()", ""),
        tests=(f"{_DELIVERIES}test_calls_end_with_the_claim",),
        why="A process that has lost the group, or has ended, would go on with its calls.",
    ),
    mutant(
        "handled-in-part",
        ("HandledRecords._numbers", "if lost:\n    raise PlanOutdated(...)", ""),
        ("HandledRecords._numbers", "n not in lost", "True"),
        tests=(f"{_DELIVERIES}test_what_is_planned_again_calls_no_handler_again_and_lost_records_are_not_called",),
        why="A delivery would be written without the records that were not called.",
    ),
    mutant(
        "handler-s-failure",
        ("HandledRecords.rows", "(why := self._kept.failed.get(number)) is not None", "False"),
        tests=(
            f"{_DELIVERIES}test_without_dead_letters_the_first_record_that_fails_is_named_and_none_is_called_again",
        ),
        why="A record for which the handler fails would be passed over without a word.",
    ),
    mutant(
        "handled-without-rows",
        ("ComputedPart.accepted", "... if self.is_handled else self.with_rows", "self.with_rows"),
        tests=(f"{_DELIVERIES}test_bad_records_among_many_for_which_a_handler_returns_nothing",),
        why="Where most records make no rows, some bad ones would end the consumer.",
    ),
    mutant(
        "tables-after-the-calls",
        ("handled:handled", "outputs.check_tables(...)", ""),
        (
            "handled:handled",
            "by_record, failed = _as_rows(...)",
            f"{_CHECK}\nby_record, failed = _as_rows(...)",
        ),
        tests=(f"{_DELIVERIES}test_tables_are_compared_before_any_call",),
        why="A wrong column would be found when all calls are made.",
    ),
    mutant(
        "replay-that-goes-on-at-the-end",
        ("handled:computed_letters", "is_running() and tp in terms and claim.term(tp) is terms[tp]", "True"),
        ("handled:computed_letters", "not is_running()", "False"),
        tests=(f"{_DELIVERIES}test_a_letter_is_replayed_by_the_member_that_has_its_partition",),
        why="A consumer that is being stopped would call a handler for all letters first, until it is killed.",
    ),
    mutant(
        "pause-that-holds-up-a-rebalance",
        (
            "Membership._is_held_by_a_pause",
            "self._runner.is_waiting and self.is_running()",
            "False",
        ),
        tests=(
            f"{_AGAIN}test_a_paused_group_is_polled_and_written_when_it_is_resumed_and_members_come_and_go_meanwhile",
        ),
        why="While a group is paused, each member that comes or goes would keep all others waiting for half a minute.",
    ),
    mutant(
        "letter-of-a-lost-partition",
        ("PutBack._replay", "(PlanOutdated, PartitionLost)", "PlanOutdated"),
        tests=(_CAME_BACK,),
        why="A request would end a member whose partition goes to another one at that moment.",
    ),
    mutant(
        "offset-beyond-a-deferred-record",
        ("_Partition.end", "self.until if first is None else first", "self.until"),
        tests=(f"{_FILTERS}test_deferred_records_hold_the_offset_and_count_for_memory_and_those_dropped_do_not",),
        why="The stored offset would pass records that wait in memory: a crash would lose them.",
    ),
    mutant(
        "deferred-records-in-order",
        ("Pending.decide", "self._waiting[number] + given", "given + self._waiting[number]"),
        tests=(_FILTER_MODEL,),
        why="Later records would come before those that a filter has deferred.",
    ),
    mutant(
        "filter-asked-too-soon",
        ("Pending.decide", "waiting and clock >= self._ask_at[number]", "waiting"),
        tests=(f"{_FILTERS}test_a_filter_of_ones_own_gets_the_records_the_time_and_the_offset_s_metadata",),
        why="A filter would be asked ten times a second, whatever it has said.",
    ),
    mutant(
        "dropped-records-in-memory",
        ("Feed.decide", "self._forget(dropped)", ""),
        tests=(f"{_FILTERS}test_deferred_records_hold_the_offset_and_count_for_memory_and_those_dropped_do_not",),
        why="Dropped records would count for the limits for ever, and the consumer would stop reading.",
    ),
    mutant(
        "one-partition-first",
        ("Feed.decide", "self._partitions[tp] = self._partitions.pop(tp)", "pass"),
        tests=(f"{_FILTERS}test_a_limit_for_all_partitions_goes_round",),
        why="With a Throttle, the first partition would take all of its limit.",
    ),
    mutant(
        "dropped-without-being-asked",
        ("consumer:_asked", "{*kept.dropped} <= {one.offset for one in records[: kept.prefix]}", "True"),
        tests=(f"{_FILTERS}test_what_is_no_decision_ends_the_consumer_with_the_filter_s_name",),
        why="A filter that names wrong offsets would seem to work.",
    ),
    mutant(
        "throttle-without-a-limit",
        ("Throttle.apply", "self._count += prefix", ""),
        tests=(f"{_FILTERS}test_a_throttle_lets_so_many_through_in_any_period",),
        why="The limit would hold for each call, and not for a period.",
    ),
    mutant(
        "commit-before-a-partition-is-given-back",
        ("Membership._on_revoke", "self._commits.last(self._kafka, given)", "pass"),
        tests=(_COMMITTED,),
        why="Whoever takes the group over in Kafka would begin up to five seconds earlier.",
    ),
    mutant(
        "commits-that-leave-pins",
        ("Commits.answered", "self._unpin |= self._pinned & copied.keys()", ""),
        tests=(_UNPINNED,),
        why="After a reset, what another application commits for the group would never be adopted again.",
    ),
    mutant(
        "polls-between-short-deliveries",
        ("Membership._turn", "time.monotonic() - self._polled_at > _BRIEF", "False"),
        tests=(f"{_POLLING}test_kafka_is_polled_between_many_short_deliveries_of_what_was_polled_at_once",),
        why="With a small Flush(bytes=) and large records, Kafka would take the member for dead.",
    ),
)
