"""The outbox: what makes each of its rows one record in Kafka."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant, text

_MODEL: Final = (
    "tests/property/test_outbox_model.py::test_one_relay_stands_still_or_ends_at_any_step_and_another_comes_at_any_step"
)
_COPIES: Final = (
    "tests/property/test_outbox_model.py::"
    "test_a_copy_of_the_database_and_the_original_never_take_one_another_s_batches_for_their_own"
)
_UNIT: Final = "tests/unit/protocol/test_outbox.py::"
_RELAY: Final = "tests/integration/kafka/test_relay.py::"
_CONTRACT: Final = "tests/contract/test_postgres.py::TestPostgresOffsetStore::"

OUTBOX: Final[tuple[Mutant, ...]] = (
    mutant(
        "outbox-after-the-lock",
        ("Transaction._write_outbox", "self._require_lock(...)", "(self._require_session(), None)"),
        tests=(f"{_CONTRACT}test_it_takes_records_between_lock_and_finish",),
        why="A stale job could produce.",
    ),
    mutant(
        "outbox-in-order",
        text("WRITE_OUTBOX", "ORDER BY n.number", "ORDER BY n.number DESC"),
        tests=(f"{_CONTRACT}test_records_results_and_offset_are_committed_together",),
        why="The records of one transaction would be produced in another order.",
    ),
    mutant(
        "relay-fenced-before-it-asks",
        (
            "_fenced",
            "yield Fence()",
            "None",
        ),
        tests=(_MODEL,),
        why="The earlier relay could still commit the batch, which would then be sent again.",
    ),
    mutant(
        "relay-blames-a-transaction-for-an-outage",
        ("read_with", "unstable is None", "True"),
        tests=("tests/unit/kafka/test_committed.py::test_a_transaction_is_blamed_only_if_kafka_tells_what_was_committed_before",),
        why="A broker that does not answer would send people to look for a transaction.",
    ),
    mutant(
        "relay-reads-last",
        (
            "_fenced",
            "position: Position = yield Ask()\nstanding: Standing = yield Read()",
            "standing: Standing = yield Read()\nposition: Position = yield Ask()",
        ),
        tests=(f"{_UNIT}test_the_database_is_taken_and_kafka_fenced_before_either_is_read",),
        why="Another relay could have sent and recorded more in between.",
    ),
    mutant(
        "relay-takes-no-turns",
        ("relaying", "Check()", "Take()"),
        tests=(f"{_UNIT}test_the_database_is_taken_and_kafka_fenced_before_either_is_read",),
        why="Two relays would fence each other forever.",
    ),
    mutant(
        "relay-reads-its-own-row",
        ("Relay._read", "row is None or row.token != self._token", "row is None"),
        tests=(f"{_RELAY}test_a_relay_that_another_one_has_replaced_reads_and_records_nothing",),
        why="A relay that another one has replaced would take the outbox back.",
    ),
    mutant(
        "relay-records-its-own-row",
        text("relay:RECORD", " AND token = :token", ""),
        tests=(f"{_RELAY}test_a_relay_that_another_one_has_replaced_reads_and_records_nothing",),
        why="A relay that stood still would delete rows, or replace the batch that another one sends.",
    ),
    mutant(
        "relay-sends-what-kafka-lacks",
        ("_is_open", "bool(standing.ids)", "False"),
        tests=(f"{_UNIT}test_a_batch_that_kafka_does_not_have_is_sent_and_deleted",),
        why="A batch that was recorded before a crash would never be sent.",
    ),
    mutant(
        "relay-deletes-what-kafka-has",
        (
            "_is_sent",
            "_has(standing, position, standing.number, standing.word)",
            "_has(standing, position, standing.number, standing.word) or _is_open(standing, position)",
        ),
        tests=(_MODEL,),
        why="A batch that was recorded, but not sent, would be deleted.",
    ),
    mutant(
        "relay-compares-words",
        ("_has", "(position.number, position.word) == (number, word)", "position.number == number"),
        tests=(f"{_UNIT}test_marks_that_do_not_fit_are_left_to_a_person", _COPIES),
        why="Rows would be lost instead of which a copy of the database has sent other ones.",
    ),
    mutant(
        "relay-draws-a-word-for-fewer-rows",
        ("relaying", "mark = mark._replace(word=word())", "None"),
        tests=(_COPIES,),
        why="A replica that lags would take the batch with fewer rows for the one that it has, and delete the others.",
    ),
    mutant(
        "relay-that-can-t-work-ends-nobody",
        ("relaying", "yield from _before_taking(on_uncertain)", "None"),
        tests=(f"{_RELAY}test_a_second_relay_that_can_t_work_does_not_end_the_first",),
        why="A second relay with a wrong address would end the first one, and then itself.",
    ),
    mutant(
        "relay-that-is-busy-is-not-ended",
        (
            "_before_taking",
            "later != standing and _is_between(standing, position, later)",
            "later != standing",
        ),
        tests=(f"{_UNIT}test_a_start_with_another_anchor_or_cluster_does_not_end_a_relay_that_is_busy",),
        why="A second relay with a wrong anchor would end one that sends all the time, and then itself.",
    ),
    mutant(
        "relay-waits-for-its-own-commit",
        ("Relay._check", 'f"{READ} FOR UPDATE"', "READ"),
        tests=(f"{_RELAY}test_a_record_of_its_own_whose_outcome_is_not_known_is_waited_for",),
        why="A COMMIT of its own that becomes visible later would change what it is sending.",
    ),
    mutant(
        "relay-commits-what-is-recorded",
        ("Outlet.send", "before_commit()", "None"),
        tests=(f"{_RELAY}test_a_batch_is_produced_while_it_is_recorded_and_committed_only_after_that",),
        why="Kafka would have a batch of which the database knows nothing, and get its rows again.",
    ),
    mutant(
        "relay-looks-past-what-it-deletes",
        ("Relay._look_ahead", "_ranges(self._deleting, sent)", "_ranges(sent)"),
        tests=(f"{_RELAY}test_rows_that_are_still_being_deleted_are_not_looked_for_again",),
        why="Rows that are still being deleted would be sent again.",
    ),
    mutant(
        "relay-deletes-what-it-has-sent",
        ("relay:_ranges", "other - one != 1", "False"),
        tests=(f"{_RELAY}test_a_row_that_is_committed_between_those_that_were_sent_is_not_deleted_with_them",),
        why="A row that was committed later, with an id between others', would be deleted and never sent.",
    ),
    mutant(
        "relay-records-one-after-the-other",
        ("Relay._follow", "not isinstance(step, Send)", "False"),
        tests=(f"{_RELAY}test_what_is_recorded_instead_of_a_refused_batch_waits_for_that_batch_s_record",),
        why="Of two records at once, the one that counts would be whichever is committed last.",
    ),
    mutant(
        "relay-waits-for-a-topic-when-it-has-deleted",
        ("Relay._refused_topics", "self._expect_recorded()", "None"),
        tests=(f"{_RELAY}test_a_topic_that_is_missing_hides_no_trouble_and_sees_no_row_that_is_sent",),
        why="Rows that were sent would count as held up, and a relay that is replaced would not end.",
    ),
    mutant(
        "relay-begins-anew-when-nothing-is-recorded",
        ("Relay._end_recording", "self._recording.exception()", "None"),
        tests=(f"{_RELAY}test_what_is_being_recorded_is_waited_for_before_it_begins_anew",),
        why="A record that is committed later would change what the new start has read.",
    ),
    mutant(
        "relay-looks-whether-rows-are-gone",
        ("_expect_gone", "left.rows", "False"),
        tests=(f"{_RELAY}test_rows_that_something_in_the_database_keeps_end_it_and_are_not_sent_again",),
        why="Rows that a trigger keeps would be sent again and again.",
    ),
    mutant(
        "relay-asks-a-broker-that-starts-once",
        ("_seems_lost", "position.number is None or position.number < standing.number - bool(standing.ids)", "False"),
        tests=(f"{_UNIT}test_kafka_is_asked_again_if_it_seems_to_have_lost_something",),
        why="What a broker does not know yet would count as lost, and a person be asked to repeat or skip a batch.",
    ),
    mutant(
        "relay-uncertain",
        ("outbox:_settled", 'on_uncertain == "fail"', "on_uncertain is None"),
        tests=(f"{_UNIT}test_marks_that_do_not_fit_are_left_to_a_person",),
        why="What Kafka may have would be sent again, and nobody would be told.",
    ),
    mutant(
        "relay-asks-which-cluster",
        ("_has", "None in {number, word} or standing.cluster_id != position.cluster_id", "None in {number, word}"),
        tests=(f"{_UNIT}test_another_cluster_is_told_although_the_marks_fit",),
        why="The number of another cluster's group would count.",
    ),
    mutant(
        "relay-floor",
        ("outbox:_settled", "max(number, standing.number or 0) + 1", "number"),
        tests=(f"{_UNIT}test_a_person_s_decision_gives_both_sides_a_mark_that_neither_had",),
        why="The numbers in errors would not tell which batch is the later one.",
    ),
    mutant(
        "relay-first-number",
        ("outbox:_settled", "yield Send(mark)", "None"),
        tests=(f"{_UNIT}test_the_first_start_gives_kafka_a_number_before_the_database_has_one",),
        why="Kafka's number would be lost before it was ever set.",
    ),
    mutant(
        "relay-tries-alone",
        ("Trials.failed", "[row.id for row in rows] != [self._row]", "False"),
        tests=(f"{_UNIT}test_of_suspects_the_first_is_tried_alone_after_those_before_it",),
        why="Rows that Kafka takes would be set aside together with one that it refuses.",
    ),
    mutant(
        "relay-tries-twice",
        ("_tried", "failed > 1 and trials.may_refuse()", "failed and trials.may_refuse()"),
        tests=(f"{_UNIT}test_a_row_is_set_aside_when_two_trials_of_it_have_failed",),
        why="A row would be set aside because Kafka has ended the producer's transaction.",
    ),
    mutant(
        "relay-does-not-empty-the-outbox",
        ("_tried", "failed > 1 and trials.may_refuse()", "failed > 1"),
        tests=(f"{_UNIT}test_if_kafka_refuses_one_row_after_the_other_none_is_set_aside_any_more",),
        why="A setting that no broker takes would move the whole outbox aside, row by row.",
    ),
    mutant(
        "relay-counts-what-the-client-refuses",
        (
            "outbox:_tried",
            "{id_: why for id_, why in refusal.by_client.items() if trials.may_refuse()}",
            "refusal.by_client",
        ),
        tests=(
            f"{_UNIT}test_what_the_client_refuses_is_set_aside_at_once_but_not_a_hundred_in_a_row",
        ),
        why="With a limit that is set too low, the relay would move the whole outbox aside.",
    ),
    mutant(
        "relay-counts-over-errors",
        ("outbox:relaying", "trials or Trials()", "Trials()"),
        tests=(f"{_UNIT}test_what_is_refused_in_a_row_adds_up_over_errors",),
        why="Each outage would let a hundred more rows be set aside that are not to blame.",
    ),
    mutant(
        "relay-tries-with-its-token",
        (
            "_tried",
            "standing, position = yield from _fenced()",
            "yield Fence()\nposition: Position = yield Ask()\nstanding: Standing = yield Peek()",
        ),
        tests=(_MODEL,),
        why="A relay that was replaced would set Kafka's mark back.",
    ),
    mutant(
        "relay-tries-something-else",
        ("_tried", "yield Send(kafka)", "None"),
        tests=(f"{_UNIT}test_a_row_is_set_aside_when_two_trials_of_it_have_failed",),
        why="A row would be set aside because of Kafka's state, or a missing right on the group.",
    ),
    mutant(
        "relay-waits-for-a-topic",
        ("Relay._refused_topics", "now - since >= _PATIENCE", "True"),
        tests=(f"{_RELAY}test_a_topic_that_is_created_a_little_later_than_its_first_rows_gets_them",),
        why="Rows of a topic that is created a moment later would be set aside, and their order lost.",
    ),
    mutant(
        "relay-nothing-overtakes",
        ("_tried", "rows[:max(1, first)]", "[row for row in rows if row.id not in refusal.suspected]"),
        tests=(_MODEL,),
        why="Later rows of its key would overtake one that Kafka takes.",
    ),
    mutant(
        "relay-gives-an-empty-batch-up",
        ("_instead", "Record(kafka, refused=refused)", "Record(mark, refused=refused, before=kafka.word)"),
        tests=(_MODEL,),
        why="A batch of which all is set aside would leave a number that Kafka never gets.",
    ),
    mutant(
        "relay-commits-its-number",
        ("Outlet.send", "self._mark(producer, offset)", ""),
        tests=(f"{_RELAY}test_a_kill_between_any_two_steps_leaves_each_row_once_and_in_order",),
        why="Kafka would not say which batch it has.",
    ),
    mutant(
        "relay-refused-is-kept",
        text("relay:SET_ASIDE", "ORDER BY g.id", "LIMIT 0"),
        tests=(f"{_RELAY}test_what_kafka_refuses_is_set_aside_with_its_error_and_the_rest_goes_on",),
        why="A row that Kafka refuses would be lost.",
    ),
)  # fmt: skip
