"""The resolver against a second one, written down from the design's table and sharing nothing with it."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offsetstore.errors import StartError
from offsetstore.offsets import (
    BrokerView,
    CommittedOffset,
    StoredOffset,
    Token,
    TopicLog,
    TopicPartition,
    Watermarks,
)
from offsetstore.protocol.resolver import resolve
from offsetstore.protocol.starting import OnDataLoss, OnRewound, Prefer, Reason, StartPolicy
from offsetstore.protocol.store_facts import Stamp, digest

P0 = TopicPartition("payments", 0)
US, THEM = UUID(int=7), UUID(int=8)
OURS, OTHERS = digest("billing"), digest("invoicing")
END = 6
CLAIMED = 3
"""The epoch of the row's token, which decides nothing."""

numbers = st.integers(0, END + 1)
# Offset, pinned, the epoch of the pin or contest, contested; offset, and whose copy of which epoch it is.
rows = st.none() | st.tuples(numbers, st.booleans(), st.integers(0, 3), st.booleans())
copies = st.none() | st.tuples(
    numbers,
    st.sampled_from([
        None, (US, 1, OURS), (US, 2, OURS), (US, 3, OURS), (US, 2, None), (US, 2, OTHERS), (THEM, 2, OURS)
    ]),
)  # fmt: skip


def expected(  # noqa: C901, PLR0911, PLR0912 - the table as it stands, row after row
    row: tuple[int, bool, int, bool] | None,
    committed: tuple[int, tuple[UUID, int, str | None] | None] | None,
    adopted: int | None,
    beginning: int,
    policy: StartPolicy,
) -> tuple[int, Reason] | str:
    """An offset and why, or the name of the error."""
    stored = row[0] if row else None
    in_kafka, stamp = committed or (None, None)
    others = None if stamp is None else "ForeignStore" if stamp[0] == THEM else None
    if stamp is not None and others is None and stamp[2] == OTHERS:
        others = "KafkaGroupShared"
    if row is not None and row[3] and in_kafka is not None and (stamp is None or others):
        if others or policy.prefer != "stored":
            return others or "KafkaGroupContested"
        start, why = row[0], Reason.CONTEST_STORED
    elif row is not None and row[3] and stamp is not None and not others and stamp[1] > row[2]:
        start, why = row[0], Reason.COPY_STORED
    elif row is not None and row[1]:
        start, why = row[0], Reason.PINNED
    elif others:
        return others
    elif stamp is not None and in_kafka is not None and row is not None and (in_kafka <= row[0] or stamp[1] < row[2]):
        start, why = row[0], Reason.STORED
    elif stamp is not None and in_kafka is not None:
        if policy.on_rewound == "fail":
            return "StoreRewound"
        if policy.on_rewound == "kafka":
            start, why = in_kafka, Reason.REWOUND_KAFKA
        else:
            if stored is None and adopted is not None:
                return "StoreRewound"
            start, why = beginning if stored is None else stored, Reason.REWOUND_STORED
    elif stored is None and adopted is not None:
        start, why = adopted, Reason.CHECKPOINT
    elif stored is not None and in_kafka is not None:
        if policy.prefer == "agree" and stored != in_kafka:
            return "OffsetsDisagree"
        is_larger = policy.prefer == "larger" and in_kafka > stored
        start, why = (in_kafka, Reason.COMMITTED_IS_LARGER) if is_larger else (stored, Reason.STORED)
    elif stored is not None:
        start, why = stored, Reason.ONLY_STORED
    elif in_kafka is not None:
        start, why = in_kafka, Reason.ONLY_COMMITTED
    else:
        start, why = beginning, Reason.EARLIEST
    if start > END:
        # The row's topic id is that of the log.
        is_foreign = why in {Reason.COMMITTED_IS_LARGER, Reason.ONLY_COMMITTED}
        return "OffsetOutOfRange" if is_foreign or row is not None else "TopicRecreated"
    if start < beginning:
        return (beginning, Reason.DATA_LOSS_ACCEPTED) if policy.on_data_loss == "earliest" else "OffsetOutOfRange"
    return start, why


@pytest.mark.behaviour(
    "START-1",
    "START-2",
    "START-3",
    "START-4",
    "START-6",
    "START-9",
    "START-18",
    "START-20",
    "START-21",
    "START-24",
    "START-27",
    "MIRROR-7",
)
@given(
    rows,
    copies,
    st.none() | numbers,
    st.integers(0, END),
    st.sampled_from(["larger", "stored", "agree"]),
    st.sampled_from(["fail", "earliest"]),
    st.sampled_from(["fail", "stored", "kafka"]),
)
@example((4, False, 2, False), (6, (US, 1, OURS)), None, 0, "larger", "fail", "fail")  # a copy of before a reset
@example((4, False, 2, False), (6, (US, 2, OURS)), None, 0, "larger", "fail", "fail")  # a rewound row
@example((4, False, 2, True), (6, (US, 3, OURS)), None, 0, "larger", "fail", "kafka")  # a copy of the database
@example(None, (6, (US, 2, OURS)), 3, 0, "larger", "fail", "fail")  # a lost row, although there is a checkpoint
def test_it_starts_where_the_table_says(  # noqa: PLR0917 - hypothesis fills them in
    row: tuple[int, bool, int, bool] | None,
    committed: tuple[int, tuple[UUID, int, str | None] | None] | None,
    adopted: int | None,
    beginning: int,
    prefer: Prefer,
    on_data_loss: OnDataLoss,
    on_rewound: OnRewound,
) -> None:
    policy = StartPolicy(prefer, on_data_loss=on_data_loss, on_rewound=on_rewound)
    stored = (
        {
            P0: StoredOffset(
                row[0], Token(CLAIMED, US), topic_id="id", pinned=row[1], pinned_epoch=row[2], contested=row[3]
            )
        }
        if row
        else {}
    )
    in_kafka: dict[TopicPartition, CommittedOffset] = {}
    if committed is not None:
        stamp = Stamp(*committed[1]).text("more") if committed[1] else "another tool's"
        in_kafka[P0] = CommittedOffset(committed[0], stamp)
    view = BrokerView("cluster", {"payments": TopicLog("id", {0: Watermarks(beginning, END)})}, in_kafka)

    found: tuple[int, Reason] | str
    try:
        checkpoint = {} if adopted is None else {P0: adopted}
        start = resolve(stored, view, policy, store_id=US, group="billing", adopted=checkpoint).starts[P0]
        found = start.offset, start.reason
    except StartError as error:
        found = type(error).__name__

    assert found == expected(row, committed, adopted, beginning, policy)
