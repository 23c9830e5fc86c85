"""What a job's start may do where the safe answer is to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, get_args

from offsetstore.errors import ConfigurationError, UnsupportedQuery

Prefer = Literal["larger", "stored", "agree"]
AutoOffsetReset = Literal["earliest", "latest", "none"]
OnDataLoss = Literal["fail", "earliest"]
OnRecreated = Literal["fail", "restart"]
OnRewound = Literal["fail", "stored", "kafka"]
OnUncertain = Literal["fail", "replay", "skip"]
OnMembers = Literal["warn", "refuse"]


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """How a job's start is resolved.

    The defaults skip nothing, with one exception: if another tool committed an offset in Kafka beyond the stored one
    while no job ran, the job starts there, and the skip is recorded.

    ``prefer``: if the store and Kafka both have an offset, use the ``"larger"`` (a foreign commit is adopted, and the
    skipped range recorded), the ``"stored"`` one, or ``"agree"``, which raises if they differ. None of them adopts a
    commit that another application made while the job ran: then only ``"stored"`` starts, pinned and recorded.

    ``auto_offset_reset``: if neither has one: ``"earliest"``, ``"latest"``, ``"none"`` (raise), or a time: the first
    record at or after it. A new partition of a topic that the group already knows starts at its beginning unless this
    is ``"none"``: its records came after the group's start.

    ``on_data_loss``: if the next record is no longer in the log: ``"fail"``, or continue at the ``"earliest"`` record.

    ``on_recreated``: if the log is not the one that was read before: ``"fail"``, or ``"restart"`` the whole topic from
    its beginning.

    ``on_rewound``: if Kafka holds a copy of ours beyond the stored offset, because the database was restored or lost:
    ``"fail"``, start at the ``"stored"`` offset (if there is none, at the beginning of the log or the time of
    ``auto_offset_reset``), or at the copy in ``"kafka"``. Either start is pinned and recorded.

    ``on_uncertain``: if the checkpoint to adopt ends in a batch that may or may not have been written: ``"fail"``,
    ``"replay"`` the batch, or ``"skip"`` it. The choice is recorded.

    ``on_members``: if the group in Kafka has members, so another application uses it: ``"warn"`` and copy no offsets
    there, or ``"refuse"`` the start. Checked only if the claim copies its offsets to Kafka.
    """

    prefer: Prefer = "larger"
    auto_offset_reset: AutoOffsetReset | datetime = "earliest"
    on_data_loss: OnDataLoss = "fail"
    on_recreated: OnRecreated = "fail"
    on_rewound: OnRewound = "fail"
    on_uncertain: OnUncertain = "fail"
    on_members: OnMembers = "warn"

    def __post_init__(self) -> None:
        _one_of("prefer", self.prefer, get_args(Prefer))
        _one_of("on_data_loss", self.on_data_loss, get_args(OnDataLoss))
        _one_of("on_recreated", self.on_recreated, get_args(OnRecreated))
        _one_of("on_rewound", self.on_rewound, get_args(OnRewound))
        _one_of("on_uncertain", self.on_uncertain, get_args(OnUncertain))
        _one_of("on_members", self.on_members, get_args(OnMembers))
        if isinstance(self.auto_offset_reset, datetime):
            if self.auto_offset_reset.tzinfo is None:
                raise ConfigurationError(
                    "auto_offset_reset has no time zone",
                    found=self.auto_offset_reset.isoformat(),
                    expected="a datetime with tzinfo, such as UTC",
                )
        else:
            _one_of("auto_offset_reset", self.auto_offset_reset, get_args(AutoOffsetReset), "a datetime")

    @property
    def timestamp_ms(self) -> int | None:
        """The time of ``auto_offset_reset`` in milliseconds since 1970 UTC, ``None`` if it is not a time."""
        if isinstance(self.auto_offset_reset, datetime):
            return int(self.auto_offset_reset.timestamp() * 1000)
        return None


# Spark prefers each of these to ``startingOffsets``, and reads ``startingOffsetsByTimestampStrategy`` for these alone.
_OTHER_STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp")
# A streaming query ends at none of these: Spark refuses two of them, and ignores the third.
_ENDS: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


def check_reader(option: Callable[[str], str | None]) -> None:
    """Check the options of Spark's Kafka source that decide where a query begins, and what it may pass over.

    :param option: returns the value of an option by its name, whose case does not matter; ``None`` if it is not set.
    :raises UnsupportedQuery: with the option's name.
    :raises ConfigurationError: ``failOnDataLoss`` is not a boolean.
    """
    found = {name: option(name) for name in (*_OTHER_STARTS, *_ENDS)}
    refused = next((name for name, value in found.items() if value is not None), None)
    if refused in _OTHER_STARTS:
        raise UnsupportedQuery(
            f"the Kafka source has {refused}, which overrides the start that the claim has resolved",
            found=f"{refused}={found[refused]}",
            expected="startingOffsets=claim.starting_offsets alone",
            next_step="Leave the option out; to begin at a time, claim with StartPolicy(auto_offset_reset=<datetime>), "
            "or reset the group to it.",
        )
    if refused is not None:
        raise UnsupportedQuery(
            f"the Kafka source has {refused}, at which a streaming query does not end",
            found=f"{refused}={found[refused]}",
            expected="no end: the next start continues where this one has stored",
            next_step="Leave the option out; to end where the log ends now, use the trigger availableNow=True.",
        )
    loss = option("failOnDataLoss")
    if loss is not None and not spark_boolean("failOnDataLoss", loss):
        raise UnsupportedQuery(
            "the Kafka source has failOnDataLoss=false: it would skip lost records silently",
            found=f"failOnDataLoss={loss}",
            expected="true, which is Spark's default",
            next_step='Leave the option out; to accept a loss, start with StartPolicy(on_data_loss="earliest").',
        )


def spark_boolean(name: str, value: str) -> bool:
    """Read a boolean of Spark's settings or of a reader's options as Spark does: in upper or lower case.

    :raises ConfigurationError: it is not a boolean; Spark refuses it, too.
    """
    if (word := value.strip().lower()) not in {"true", "false"}:
        raise ConfigurationError(f"{name} is not a boolean", found=repr(value), expected="true or false")
    return word == "true"


def _one_of(name: str, value: object, allowed: tuple[str, ...], *more: str) -> None:
    """Refuse a value that is not ``allowed``. What else would be, of another type, is only told."""
    if value not in allowed:
        raise ConfigurationError(
            f"StartPolicy has an unknown {name}", found=repr(value), expected=" or ".join((*allowed, *more))
        )
