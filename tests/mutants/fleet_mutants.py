"""Members of a fleet: what they may write, how they take partitions, what fences them. In memory where that will do."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant, text

_MEMORY: Final = "tests/contract/test_memory.py::TestInMemoryOffsetStore::"
_POSTGRES: Final = "tests/contract/test_postgres.py::TestPostgresOffsetStore::"
_MEMBERS: Final = "tests/integration/store/test_fleets.py::"
_DELIVERIES: Final = "tests/integration/consumer/test_deliveries.py::"
_ORDERS: Final = "tests/faults/interleavings/test_interleavings.py::"
_RECREATED: Final = f"{_MEMORY}test_a_recreated_topic_is_read_again_by_a_new_fleet_and_by_no_single_member"
_ANEW: Final = f"{_MEMORY}test_what_was_known_of_a_partition_is_read_anew_when_it_comes_back"
_GIVEN_BACK: Final = f"{_MEMORY}test_a_partition_that_was_given_back_is_not_written_to_although_its_row_has_the_token"
_OWN: Final = f"{_ORDERS}test_a_member_that_takes_its_own_partition_again_keeps_its_older_transactions_out_meanwhile"

_ROWS: Final = "database.unblocking(session, after=timeout, older_than=name_prefix(group))"
_SHARE: Final = 'database.unblocking(session, after=timeout, older_than=f"{name_prefix(group)}{member.fleet.epoch}:")'

_TURNS: Final = "test_members_take_turns_and_none_waits_for_another"
_TICKS: Final = (
    "tests/integration/consumer/test_members.py::test_a_tick_is_called_once_a_group_however_many_members_there_are"
)

WRITES: Final[tuple[Mutant, ...]] = (
    mutant(
        "turn-of-one-member",
        text(
            "TAKE_TURN",
            "clock_timestamp() - make_interval(secs => :every)\n",
            "clock_timestamp() + :every * interval '1 s'\n",
        ),
        tests=(f"{_POSTGRES}{_TURNS}",),
        why="Each member would call the tick.",
    ),
    mutant(
        "turn-that-waits",
        text(
            "TAKE_TURN",
            "pg_try_advisory_xact_lock(hashtextextended(:group || chr(10) || CAST(:name AS text), 0))",
            "true",
        ),
        tests=(f"{_POSTGRES}{_TURNS}",),
        why="A member would write nothing while another one's tick runs.",
    ),
    mutant(
        "turn-of-a-tick",
        ("Turn.begin", "not tx.take_turn(self.name, self.every)", "False"),
        tests=(_TICKS,),
        why="Each member would call the tick.",
    ),
    mutant(
        "ticks-of-a-fleet",
        ("Between._turn_of", "self._claim.is_member", "False"),
        tests=(_TICKS,),
        why="The same.",
    ),
    mutant(
        "pair-that-is-not-compared",
        ("Member.write_pairs", "looked.pair(...)", "logs[tp].pair(min(row.next_offset, logs[tp].end))"),
        tests=(f"{_MEMORY}test_a_pair_is_compared_with_the_log_before_one_of_another_epoch_takes_its_place",),
        why="The only evidence that a log lost stored records would be written over.",
    ),
    mutant(
        "pair-beyond-what-is-stored",
        ("Member.write_pairs", "min(row.next_offset, logs[tp].end)", "logs[tp].end"),
        tests=(f"{_MEMORY}test_a_log_that_was_truncated_and_has_regrown_is_told_by_what_a_member_read_last",),
        why="A log that lost only what was not stored would be refused until a reset.",
    ),
    mutant(
        "member-of-a-row",
        ("Transaction._locked_terms", "row.token != claim.token", "False"),
        ("Transaction._lock", "self._check_token(row.token if row else None, tp)", ""),
        text("ADVANCE", "AND p.epoch = :epoch AND p.claim_id = :claim_id ", ""),
        tests=(f"{_POSTGRES}test_a_member_that_lost_a_partition_writes_nothing_to_it_and_goes_on_with_the_rest",),
        why="A member that woke late would write beside the one that has its partition now.",
    ),
    mutant(
        "member-with-any-token-of-the-fleet",
        ("Transaction._locked_terms", "row.token != claim.token", "row.token.epoch != claim.token.epoch"),
        ("Transaction._lock", "self._check_token(row.token if row else None, tp)", ""),
        text("ADVANCE", "AND p.claim_id = :claim_id ", ""),
        tests=(f"{_POSTGRES}test_a_late_assignment_takes_the_partition_and_its_owner_takes_it_again",),
        why="All members have the fleet's epoch: their ids alone tell whose a partition is.",
    ),
    mutant(
        "member-that-makes-rows",
        ("Transaction._lock", "if unknown and self._claim.is_member: ...", ""),
        ("Transaction._locked_terms", "tp not in terms or ...", "False"),
        ("Transaction._locked_terms", "{tp: terms[tp] for tp in partitions}", "{tp: Term() for tp in partitions}"),
        tests=(f"{_MEMORY}test_a_member_writes_to_the_partitions_that_it_took_and_to_no_others",),
        why="A member would begin a partition that Kafka has given to another one.",
    ),
    mutant(
        "partition-that-was-given-back",
        ("Transaction._lock", "if unknown and self._claim.is_member: ...", ""),
        ("Transaction._locked_terms", "tp not in terms or ...", "False"),
        ("Transaction._locked_terms", "{tp: terms[tp] for tp in partitions}", "{tp: Term() for tp in partitions}"),
        tests=(_GIVEN_BACK,),
        why="What was read before a partition was given back would be written after its records are given out anew.",
    ),
    mutant(
        "records-of-an-earlier-term",
        ("Transaction._locked_terms", "planned.get(tp, terms[tp]) is not terms[tp]", "False"),
        tests=(
            f"{_MEMORY}test_records_that_were_read_in_an_earlier_term_are_not_written_in_the_next",
            f"{_MEMORY}test_units_are_of_the_terms_in_which_they_were_planned",
        ),
        why="With manual marking, records that were dropped with a partition would pass for processed, and be lost.",
    ),
    mutant(
        "plan-of-another-term",
        ("Plan.of", "{**claim.terms, **(terms or {})}", "claim.terms"),
        tests=(f"{_MEMORY}test_units_are_of_the_terms_in_which_they_were_planned",),
        why="The same, where the partition comes back before the records are planned.",
    ),
    mutant(
        "term-that-ends-with-the-partition",
        (
            "Transaction._tell_terms",
            "self._terms[tp].position = ...",
            "self._claim.terms[tp].position = Position(0, 0)",
        ),
        ("Transaction._base", "self._terms[tp].position", "getattr(self._claim.terms.get(tp), 'position', None)"),
        tests=(
            f"{_MEMORY}test_a_position_is_of_the_term_in_which_it_was_reached_whenever_the_partition_is_given_back",
        ),
        why="Records that were given out and not marked would pass for processed, and be lost.",
    ),
    mutant(
        "metadata-that-is-given-back",
        ("Transaction._stored_texts", "self._terms[tp].next", "getattr(self._claim.terms.get(tp), 'next', None)"),
        tests=(f"{_MEMORY}test_a_transaction_writes_the_metadata_of_its_partition_although_that_is_given_back",),
        why="An offset and the state of an earlier one would be stored together, and the next owner go on with both.",
    ),
    mutant(
        "letters-that-are-given-back",
        ("Transaction._settle_ahead", "self._terms", "{tp: self._claim.terms.get(tp) or Term() for tp in ranges}"),
        tests=(
            f"{_MEMORY}test_a_transaction_supersedes_the_letters_that_it_passes_although_their_partition_is_given_back",
        ),
        why="A record that is written would have an open letter, whose replay writes it twice.",
    ),
    mutant(
        "whole-fleet-for-a-partition",
        (
            "Transaction._locked_terms",
            "self._check_token(None if owner is None else owner.token, None)",
            "",
        ),
        tests=(f"{_MEMORY}test_a_job_that_takes_over_fences_the_whole_fleet",),
        why="A member of a fleet that was fenced would take its partitions again and again, and never end.",
    ),
)

TAKES: Final[tuple[Mutant, ...]] = (
    mutant(
        "assignment-of-a-fenced-fleet",
        ("_holding", "found = session.share_group(group)", "found = member.fleet"),
        tests=(f"{_MEMORY}test_a_job_that_takes_over_fences_the_whole_fleet",),
        why="A member of a fleet that was fenced would take partitions from the job that has fenced it.",
    ),
    mutant(
        "assignment-without-a-share",
        ("_holding", "session.share_group(group)", "session.group(group).token"),
        tests=(f"{_ORDERS}test_a_job_that_takes_over_fences_members_that_write_or_take_partitions",),
        why="The same, where the claim is under way: the token is read before it is replaced.",
    ),
    mutant(
        "assignment-that-ends-a-claim",
        ("_holding", _SHARE, _ROWS),
        tests=(f"{_MEMBERS}test_a_member_that_takes_partitions_does_not_end_the_claim_that_fences_it",),
        why="A fleet could hold off whoever takes the group over, by ending its transaction each time.",
    ),
    mutant(
        "assignment-that-waits-for-a-frozen-look-up",
        ("_holding", _SHARE, _SHARE.replace("after=timeout", "after=60.0")),
        ("sessions:_GRACE", "15.0", "1.0"),
        tests=(
            f"{_MEMBERS}test_a_member_that_is_frozen_while_it_looks_for_its_commit_is_ended_by_whoever_takes_partitions",
        ),
        why="One member that froze after a lost answer would keep all others from taking partitions.",
    ),
    mutant(
        "assignment-without-locks",
        ("_holding", "session.lock_partitions(group, sorted(partitions))", ""),
        tests=(f"{_MEMBERS}test_a_transaction_that_ends_in_time_is_waited_for",),
        why="It would start where the former owner's open transaction began, and write its records again.",
    ),
    mutant(
        "assignment-that-waits-for-a-frozen-member",
        ("_holding", _ROWS, _ROWS.replace("after=timeout", "after=60.0")),
        ("sessions:_GRACE", "15.0", "1.0"),
        tests=(f"{_MEMBERS}test_a_frozen_member_s_transaction_is_ended_and_its_partition_goes_on",),
        why="A member that is frozen in a transaction would hold its partitions for ever.",
    ),
    mutant(
        "late-assignment-that-is-frozen",
        ("Transaction.lock", "self._claim.unblock(self._partitions)", ""),
        tests=(f"{_MEMBERS}test_a_member_ends_a_late_assignment_that_is_frozen_on_its_rows_and_goes_on",),
        why="A frozen process that no longer has a partition would stop the one that has it.",
    ),
    mutant(
        "slow-transaction-that-is-ended",
        ("Member.unblock", 'f"{name_prefix(group)}assign"', "name_prefix(group)"),
        tests=(f"{_MEMBERS}test_a_slow_transaction_of_a_member_s_own_is_not_ended",),
        why="A replay that waits for a slow flush would end it, and the next one, and so on.",
    ),
    mutant(
        "row-that-two-members-make",
        ("_holding", "session.insert_partitions(group, member.token, dict(new))", "set[TopicPartition]()"),
        tests=(f"{_ORDERS}test_one_of_two_members_makes_the_row_of_a_new_partition_and_the_last_has_it",),
        why="The second of two members would put the offset back to the beginning, over what the first has stored.",
    ),
    mutant(
        "row-that-was-advanced-since-kafka-was-asked",
        ("_start_of", "row is not None and was_moved and ...", "False"),
        tests=(f"{_MEMORY}test_what_was_stored_after_kafka_was_asked_is_not_beyond_its_end",),
        why="The offset would be put back to where it was when Kafka was asked, over what the former owner has stored.",
    ),
    mutant(
        "evidence-at-first-sight",
        ("Member._proven", "now - self.doubts[tp] >= LOOK_SECONDS", "True"),
        tests=(f"{_MEMORY}test_a_log_that_ends_too_early_is_no_evidence_before_it_has_stayed_so",),
        why="A leader that knows a low end for a second would stop the partition until an operator resets it.",
    ),
    mutant(
        "evidence-that-is-never-written",
        ("Member._proven", "now - self.doubts[tp] >= LOOK_SECONDS", "False"),
        tests=(f"{_MEMORY}test_a_log_that_ends_too_early_is_no_evidence_before_it_has_stayed_so",),
        why="A truncated log that has grown past the offset would be read on from there.",
    ),
    mutant(
        "look-up-that-locks-the-group",
        (
            "unknown_commit:_look",
            "mark is not None or advanced.makes_rows",
            "mark is not None or None in advanced.before.values()",
        ),
        tests=(f"{_MEMBERS}test_a_lost_commit_of_a_partition_s_first_records_is_told_while_a_member_takes_partitions",),
        why="A look-up and another member's assignment would wait for each other until the time is up.",
    ),
    mutant(
        "unknown-commit-that-ends-a-member",
        ("Transaction._let_go", "not claim.is_member or owner != claim.group_token", "True"),
        tests=(f"{_DELIVERIES}test_a_commit_whose_outcome_is_unknown_ends_no_member_where_others_have_gone_on",),
        why="A member that was frozen at COMMIT would end, though other members have all that it had.",
    ),
    mutant(
        "unknown-commit-of-another-s-group",
        ("Transaction._let_go", "not claim.is_member or owner != claim.group_token", "not claim.is_member"),
        tests=(f"{_DELIVERIES}test_a_commit_stays_unknown_where_no_other_member_has_gone_on",),
        why="A member that has lost its group, and whose last transaction nobody knows, would tell of one partition.",
    ),
    mutant(
        "unknown-commit-of-what-the-member-has",
        ("Transaction._let_go", "kept.get(tp) is not self._terms[tp]", "True"),
        tests=(f"{_DELIVERIES}test_a_commit_stays_unknown_where_no_other_member_has_gone_on",),
        why="A transaction of the member's own may have moved the row on: its records are with nobody else.",
    ),
    mutant(
        "start-of-a-new-topic-by-its-first-partition",
        ("_enter", "{*request.topics}.difference(tp.topic for tp in asked.stored)", "set[str]()"),
        tests=(f"{_MEMORY}test_where_a_new_topic_starts_is_decided_for_all_of_its_partitions_by_whoever_brings_it",),
        why='With auto_offset_reset="latest" only one partition of a new topic would start at its end.',
    ),
    mutant(
        "join-that-every-partition-allows",
        (
            "_join",
            "ask(store, request, fleet_id, evidence, is_shared=is_shared)",
            "ask(store, request, fleet_id, evidence)",
        ),
        tests=(f"{_MEMORY}test_a_fleet_is_joined_although_a_partition_can_t_start",),
        why="One partition that can't start would take the healthy rest down, one process after the other.",
    ),
    mutant(
        "founding-without-a-look",
        ("_join", "if asked.passed_over is not None: ...", ""),
        tests=(f"{_MEMORY}test_what_a_fleet_could_pass_over_stops_the_foundation_of_another",),
        why="A truncated log would be read on by a fleet that is founded just when the last member leaves.",
    ),
    mutant(
        "caches-of-an-earlier-term",
        ("Recovery._know_terms", "if self._terms is not self._claim.terms: ...", ""),
        tests=(
            "tests/unit/processing/test_sequences.py::test_a_letter_that_another_member_has_written_keeps_later_records_of_its_key_waiting",
        ),
        why="Later records would overtake the letter, whose replay then puts an old value over a new one.",
    ),
    mutant(
        "replays-of-other-members",
        ("PutBack._next", "sorted(self._terms) if claim.is_member else None", "None"),
        tests=("tests/unit/processing/test_put_back.py::test_each_member_replays_the_letters_of_its_partitions",),
        why="One request would stop the replays of all members but one, each time.",
    ),
    mutant(
        "replay-of-an-earlier-term",
        (
            "PutBack._commit",
            "Unit(self._stored(letters), rows, [along], Ending.TOUCH, terms=self._terms)",
            "Unit(self._stored(letters), rows, [along], Ending.TOUCH)",
        ),
        tests=(
            "tests/unit/processing/test_put_back.py::test_a_replay_that_was_read_before_a_partition_came_back_writes_nothing",
        ),
        why="A replay would go by what it knew before others went on with the partition.",
    ),
    mutant(
        "row-that-was-just-made-is-no-start",
        ("_assign", "tp not in made", "tp is not None"),
        tests=(f"{_MEMORY}test_a_partition_that_was_added_starts_at_its_beginning",),
        why="Its offset would be nobody's decision, and the history would not have it.",
    ),
    mutant(
        "decision-by-a-member",
        ("_assign", "decided(starting)", "()"),
        tests=(_RECREATED,),
        why="A recreated topic would be restarted partition by partition, and those that had gone on be put back.",
    ),
    mutant(
        "decision-without-a-new-fleet",
        ("may_share", "found == fleet and is_live and not decides", "found == fleet and is_live"),
        ("_join", "if not decided(asked.starting): ...", "if asked.starting: ..."),
        tests=(
            _RECREATED,
            f"{_MEMORY}test_a_restored_database_is_told_by_an_assignment_and_decided_about_by_a_new_fleet",
        ),
        why="No process would ever carry out what the policy decides, and the group would never start again.",
    ),
    mutant(
        "known-of-an-earlier-term",
        ("Member.assign", "{**self.terms, **acquired.terms}", "{**acquired.terms, **self._former}"),
        (
            "Member.release",
            "with self._binding: ...",
            "self._former = {tp: self.terms[tp] for tp in given & self.terms.keys()}\nwith self._binding: ...",
        ),
        tests=(_ANEW,),
        why="A member would decide on what it knew before others went on with the partition.",
    ),
    mutant(
        "letters-of-others",
        ("store:begin", "sequences.get(tp, _NONE)", "_NONE"),
        tests=(_ANEW,),
        why="Records would not wait for a dead one of their key that another member has met.",
    ),
    mutant(
        "metadata-of-others",
        ("Transaction.metadata", "term is None and (is_cached or self._claim.is_member) and ...", "False"),
        ("Transaction.metadata", "self._claim.is_member and row.token != self._claim.token", "False"),
        ("Transaction.metadata", "self._check_token(row.token, tp)", ""),
        tests=(f"{_MEMORY}test_what_others_know_of_their_partitions_is_not_a_members",),
        why="A member would go by a note that is another one's.",
    ),
    mutant(
        "partitions-of-others",
        ("BrokerView.of", "number in numbers[topic]", "number >= 0"),
        tests=(f"{_MEMORY}test_an_assignment_starts_at_the_larger_of_what_is_stored_and_what_kafka_has",),
        why="A member would move the offsets of partitions that others have.",
    ),
    mutant(
        "evidence-of-one-member-alone",
        ("_record", "evidence.tokens[tp]", "next(iter(evidence.tokens.values()))"),
        tests=(f"{_MEMORY}test_a_log_that_lost_records_is_remembered_for_each_partition_whoever_has_it",),
        why="A truncated log that has grown past another member's offset would be read on from there.",
    ),
)

FENCES: Final[tuple[Mutant, ...]] = (
    mutant(
        "fleet-that-earlier-code-has-fenced",
        text("OWNER", "CASE WHEN g.fleet_id = g.claim_id THEN g.fleet END", "g.fleet"),
        tests=(f"{_POSTGRES}test_members_by_earlier_code_s_claim_are_fenced_although_it_knows_no_fleets",),
        why="A process would share the claim of a job, whose partitions it would then take.",
    ),
    mutant(
        "fleet-beside-a-job",
        ("_check_owner", "request.shared and owner.fleet is not None", "request.shared"),
        tests=(f"{_MEMORY}test_a_fleet_spares_a_job_that_is_live_unless_it_is_told_to_fence_it",),
        why="Whoever starts a consumer beside a running job by mistake would end the job.",
    ),
    mutant(
        "fleet-of-another-group-in-kafka",
        ("may_share", "found == fleet and is_live and not decides", "found is not None and is_live and not decides"),
        tests=(f"{_MEMORY}test_another_fleet_fences_the_earlier_one_whole_whether_it_lives_or_not",),
        why="Kafka deals out the same partitions twice: two fleets would take each from the other without end.",
    ),
    mutant(
        "fleet-of-another-cluster",
        ("fleet_name", "json.dumps([cluster_id, kafka_group])", "json.dumps([kafka_group])"),
        tests=(f"{_MEMORY}test_another_cluster_is_another_fleet",),
        why="The same, for two clusters.",
    ),
    mutant(
        "heartbeat-of-a-fenced-member",
        text(
            "BEAT_MEMBER",
            "AND g.epoch = :epoch AND g.claim_id = :claim_id AND m.fleet_id = g.claim_id",
            "AND :epoch > 0 AND CAST(:claim_id AS uuid) IS NOT NULL",
        ),
        tests=(f"{_MEMBERS}test_a_fenced_member_knows_it_by_its_heartbeat",),
        why="A member without records would never learn that it is fenced, and keep its partitions in Kafka.",
    ),
    mutant(
        "heartbeat-that-comes-late",
        ("Member._beat", "is_ours and not self.is_closed", "is_ours"),
        tests=(f"{_MEMORY}test_a_heartbeat_that_comes_late_does_not_bring_a_member_back",),
        why="A fleet that has left would seem live, and a job that is to spare it would not start.",
    ),
    mutant(
        "heartbeat-of-another-epoch",
        text("BEAT_MEMBER", "AND g.epoch = :epoch AND", "AND :epoch > 0 AND"),
        tests=(f"{_POSTGRES}test_a_heartbeat_is_of_one_epoch",),
        why="A member would not learn that its fleet was fenced and founded again.",
    ),
    mutant(
        "heartbeat-in-the-future",
        text("OWNER", "AND m.beat_at < clock_timestamp() + interval '15 seconds'", ""),
        tests=(f"{_MEMBERS}test_a_dead_member_s_heartbeat_in_the_future_does_not_hide_those_of_the_live_ones",),
        why="After a failover one dead member would hide all live ones, and a job that is to spare them fence them.",
    ),
    mutant(
        "fleet-of-nobody",
        ("may_share", "found == fleet and is_live and not decides", "found == fleet and not decides"),
        tests=(f"{_MEMORY}test_a_fleet_lives_as_long_as_one_of_its_members",),
        why="Processes of a copy of the database would have the fleet's epoch, and nothing tell the two apart.",
    ),
    mutant(
        "founder-with-the-store-s-former-id",
        (
            "_join",
            "found, starting, store_id = _found_fleet(store, request, fleet, evidence, **...)",
            "found, starting, _ = _found_fleet(store, request, fleet, evidence, **...)",
        ),
        tests=(f"{_MEMBERS}test_an_id_that_is_given_to_the_store_meanwhile_is_the_members",),
        why="A copy's members would mark Kafka's offsets as the original's.",
    ),
    mutant(
        "founder-that-is-frozen",
        ("_join", "with dropped(LockTimeout): ...", "with dropped(): ..."),
        tests=(f"{_MEMBERS}test_a_process_that_is_frozen_while_it_founds_is_ended_by_the_next_that_joins",),
        why="One process that froze at its start would keep all others from starting.",
    ),
    mutant(
        "pause-behind-a-frozen-member",
        ("_OfGroup.begin", "by.lock_timeout / 2", "60.0"),
        tests=(f"{_MEMBERS}test_a_pause_ends_a_member_that_is_frozen_while_it_takes_partitions",),
        why="A group could not be paused just when one of its members is frozen.",
    ),
    mutant(
        "heartbeat-of-the-founder",
        ("_found_fleet", "session.end_beat(fleet_id)", ""),
        tests=(f"{_MEMORY}test_a_job_may_spare_a_fleet_that_is_live",),
        why="Fifteen seconds after the first start a fleet would seem dead, however many members live.",
    ),
    mutant(
        "heartbeats-of-members",
        text("OWNER", "(SELECT max(m.beat_at)", "(SELECT max(m.beat_at) - interval '1 hour'"),
        tests=(f"{_POSTGRES}test_a_job_may_spare_a_fleet_that_is_live",),
        why="The same from the start: a job with takeover= would fence a fleet that it was to spare.",
    ),
    mutant(
        "join-that-waits-for-a-frozen-member",
        text("TRIM_MEMBERS", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
        tests=(f"{_MEMBERS}test_members_that_are_gone_are_forgotten_and_a_frozen_one_is_not_waited_for",),
        why="A member that froze in its heartbeat would keep all others from starting.",
    ),
)

FLEETS: Final = (*WRITES, *TAKES, *FENCES)
