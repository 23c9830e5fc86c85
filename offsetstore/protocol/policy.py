"""What a job start may do where the safe answer is to stop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from offsetstore.errors import ConfigurationError

Prefer = Literal["larger", "stored", "agree"]
AutoOffsetReset = Literal["earliest", "latest", "none"]
OnDataLoss = Literal["fail", "earliest"]
OnRecreated = Literal["fail", "restart"]
OnRewound = Literal["fail", "stored", "kafka"]
OnUncertain = Literal["fail", "replay", "skip"]
OnMembers = Literal["warn", "refuse"]


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """How a start is resolved.

    The defaults skip nothing, but for what another tool has committed in Kafka beyond the stored offset while no job
    ran, which is recorded.

    ``prefer``: where the store and Kafka both have an offset: the ``"larger"`` (a foreign commit is adopted, and the
    skipped range recorded), the ``"stored"`` one, or ``"agree"``, which raises where they differ. A commit that another
    application made while the job ran is adopted by none of them: only ``"stored"`` starts then, pinned and recorded.

    ``auto_offset_reset``: where neither has one: ``"earliest"``, ``"latest"``, ``"none"`` (raise), or a time: the first
    record at or after it. A partition that is new in a topic the group already knows starts at its beginning, whatever
    this says but for ``"none"``: its records came after the group's start.

    ``on_data_loss``: the next record is no longer in the log: ``"fail"``, or go on at the ``"earliest"`` one.

    ``on_recreated``: the log is another one than before: ``"fail"``, or ``"restart"`` the whole topic from its
    beginning.

    ``on_rewound``: Kafka holds a copy of ours beyond what is stored, because the database was restored or lost:
    ``"fail"``, start at the ``"stored"`` offset (where there is none, at the beginning of the log or the time of
    ``auto_offset_reset``), or where ``"kafka"`` says. Either is pinned and recorded.

    ``on_uncertain``: the checkpoint to adopt ends in a batch that may or may not have been written: ``"fail"``,
    ``"replay"`` the batch, or ``"skip"`` it. Recorded.

    ``on_members``: the group in Kafka has members, so another application uses it: ``"warn"`` and copy no offsets
    there, or ``"refuse"`` the start. Asked where the claim copies its offsets to Kafka, and only there.
    """

    prefer: Prefer = "larger"
    auto_offset_reset: AutoOffsetReset | datetime = "earliest"
    on_data_loss: OnDataLoss = "fail"
    on_recreated: OnRecreated = "fail"
    on_rewound: OnRewound = "fail"
    on_uncertain: OnUncertain = "fail"
    on_members: OnMembers = "warn"

    def __post_init__(self) -> None:
        """Refuse unknown words.

        :raises ConfigurationError: naming the argument; also for a time without a zone.
        """
        _one_of("prefer", self.prefer, get_args(Prefer))
        _one_of("on_data_loss", self.on_data_loss, get_args(OnDataLoss))
        _one_of("on_recreated", self.on_recreated, get_args(OnRecreated))
        _one_of("on_rewound", self.on_rewound, get_args(OnRewound))
        _one_of("on_uncertain", self.on_uncertain, get_args(OnUncertain))
        _one_of("on_members", self.on_members, get_args(OnMembers))
        if isinstance(self.auto_offset_reset, datetime):
            if self.auto_offset_reset.tzinfo is None:
                raise ConfigurationError(
                    "auto_offset_reset is a time without a zone",
                    found=self.auto_offset_reset.isoformat(),
                    expected="a datetime with tzinfo, such as UTC",
                )
        else:
            _one_of("auto_offset_reset", self.auto_offset_reset, (*get_args(AutoOffsetReset), "a datetime"))

    @property
    def timestamp_ms(self) -> int | None:
        """The time of ``auto_offset_reset`` as Kafka counts: milliseconds since 1970, UTC; else ``None``."""
        if isinstance(self.auto_offset_reset, datetime):
            return int(self.auto_offset_reset.timestamp() * 1000)
        return None


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"StartPolicy has no such {name}", found=repr(value), expected=" or ".join(allowed))
