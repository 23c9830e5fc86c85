"""What each refusal of the resolver says, word for word: it is all that an operator has when a job does not start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from offsetstore.errors import OffsetStoreError
from offsetstore.protocol.resolver import resolve
from offsetstore.protocol.starting import StartPolicy
from offsetstore.protocol.store_facts import digest
from tests.unit.protocol.test_resolver import P0, P1, THEM, US, copy, kafka, row

LOG = kafka({0: (10, 100)})
SAME_TOPIC = (
    "With isolation.level=read_committed the log ends at its first open transaction: start again once that has ended "
    "(kafka-transactions.sh find-hanging shows one that does not end). If the log was truncated (an unclean leader "
    "election), or a reset went too far, run offsetstore reset to an offset that the log holds."
)


CONTESTED = "another application used the group in Kafka while the job ran, so its offset there may not be this job's"
REWOUND = "the database is older than our own copy in Kafka: it was restored, lost rows, or a copy of it runs"
BEYOND = "lies beyond the end of the log, and the topic is the same"
OF_CHECKPOINT = "the database was restored or lost, so it may lack results of the checkpoint to adopt"
OR_REMOVE = (
    "If the checkpoint's results are in this database, delete the group's offsets in Kafka, and start without "
    "on_rewound=. Otherwise remove its results, and start without adopt_checkpoint=."
)
OF_KAFKA = (
    "Correct the group's offset in Kafka (kafka-consumer-groups --reset-offsets), or start with "
    'StartPolicy(prefer="stored").'
)

Given: TypeAlias = dict[str, Any]
"""What `resolve` is given; ``tp``, if the refusal is of another partition than the first, and the next step, if it is
not that of its class.
"""
CASES: list[tuple[str, str, str, str | None, Given]] = [
    (
        *("WrongCluster", "the stored offset belongs to another Kafka cluster", "here", "there"),
        {"stored": {P0: row(40, cluster_id="there")}},
    ),
    (
        *("TopicRecreated", "the topic was deleted and created again since offset 40 was stored"),
        *("topic id this", "topic id another", {"stored": {P0: row(40, topic_id="another")}}),
    ),
    (
        *("TopicRecreated", "Kafka no longer has this partition, and offset 1 is stored for it"),
        *("1 partitions", None, {"stored": {P1: row(1)}, "tp": P1}),
    ),
    (
        *("TopicRecreated", "Kafka no longer has this partition, and offset 1 is to be adopted for it"),
        *("1 partitions", None, {"adopted": {P1: 1}, "tp": P1}),
    ),
    (
        *("NoStartingOffset", "neither the store nor Kafka has an offset", 'auto_offset_reset="none"', None),
        {"policy": StartPolicy(auto_offset_reset="none")},
    ),
    (
        "ForeignStore",
        "another offsetstore copied its offsets to this group in Kafka, or this one was lost and made anew",
        *(f"store {THEM}, epoch 3", f"store {US}", {"view": copy(LOG, 60, 3, store_id=THEM)}),
    ),
    (
        *("KafkaGroupShared", "another group of this store copied its offsets to this group in Kafka"),
        f"store {US}, epoch 3 of group {digest('invoicing')}",
        *(f"group {digest('billing')}, by SHA-256", {"view": copy(LOG, 60, 3, group="invoicing")}),
    ),
    (
        *("KafkaGroupContested", CONTESTED, "60 committed, 40 stored", "a dedicated group"),
        {"stored": {P0: replace(row(40), contested=True)}, "view": kafka({0: (10, 100)}, {0: 60})},
    ),
    (
        *("KafkaGroupContested", CONTESTED, "60 committed, no stored offset", "a dedicated group"),
        {"stored": {P1: replace(row(0), contested=True)}, "view": kafka({0: (10, 100), 1: (0, 9)}, {0: 60})},
    ),
    (
        *("StoreRewound", REWOUND, "offset 40 stored", f"at least 60, copied by store {US}, epoch 3"),
        {"stored": {P0: row(40)}, "view": copy(LOG, 60, 3)},
    ),
    (
        *("StoreRewound", REWOUND, "no stored offset", f"at least 60, copied by store {US}, epoch 3"),
        {"view": copy(LOG, 60, 3)},
    ),
    (
        *("StoreRewound", OF_CHECKPOINT, "no stored offset, and 40 to adopt"),
        f"at least 60, copied by store {US}, epoch 3",
        {
            "view": copy(LOG, 60, 3),
            "policy": StartPolicy(on_rewound="stored"),
            "adopted": {P0: 40},
            "next_step": OR_REMOVE,
        },
    ),
    (
        *("OffsetsDisagree", 'the store and Kafka differ, and prefer is "agree"', "40 stored, 60 committed"),
        "the same offset",
        {"stored": {P0: row(40)}, "view": kafka({0: (10, 100)}, {0: 60}), "policy": StartPolicy(prefer="agree")},
    ),
    (
        *("OffsetOutOfRange", "offset 120, which another tool committed in Kafka, lies beyond the end of the log"),
        *("end 100", "at least 120"),
        {"stored": {P0: row(40)}, "view": kafka({0: (10, 100)}, {0: 120}), "next_step": OF_KAFKA},
    ),
    (
        "OffsetOutOfRange",
        f"offset 120 (stored, pinned by an operator's decision) {BEYOND}",
        *("end 100", "at least 120", {"stored": {P0: replace(row(120), pinned=True)}, "next_step": SAME_TOPIC}),
    ),
    (
        "OffsetOutOfRange",
        f"offset 120 (stored; nothing is committed in Kafka) {BEYOND}",
        *("end 100", "at least 120", {"stored": {P0: row(120)}, "next_step": SAME_TOPIC}),
    ),
    (  # Its partition was added while a job ran: its row has no topic id, and that of the others counts.
        "OffsetOutOfRange",
        f"offset 40 (stored; nothing is committed in Kafka) {BEYOND}",
        *("end 30", "at least 40"),
        {
            "stored": {P0: row(10), P1: row(40, topic_id=None)},
            "view": kafka({0: (0, 100), 1: (0, 30)}),
            "tp": P1,
            "next_step": SAME_TOPIC,
        },
    ),
    (
        *("TopicRecreated", "offset 120 (stored; nothing is committed in Kafka) lies beyond the end of the log"),
        *("end 100", "at least 120", {"stored": {P0: row(120, topic_id=None)}}),
    ),
    (
        *("OffsetOutOfRange", "the records [7, 10) are no longer in the log", "beginning 10", "at most 7"),
        {"stored": {P0: row(7)}},
    ),
]


@pytest.mark.behaviour("START-3", "START-5", "START-6", "START-7", "START-8", "START-9", "START-24")
@pytest.mark.parametrize(("name", "what", "found", "expected", "given"), CASES)
def test_a_refusal_says_what_was_found_what_was_expected_and_of_which_partition(
    name: str, what: str, found: str, expected: str | None, given: Given
) -> None:
    given = {"stored": {}, "view": LOG, **given}
    tp, next_step = given.pop("tp", P0), given.pop("next_step", None)
    with pytest.raises(OffsetStoreError) as caught:
        resolve(**given, store_id=US, group="billing")

    error = caught.value
    assert (type(error).__name__, error.what, error.topic_partition) == (name, what, tp)
    assert (error.found, error.expected) == (found, expected)
    assert error.next_step == (type(error).default_next_step if next_step is None else next_step)
