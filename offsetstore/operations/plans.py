"""What was shown is what is done: the digest of a plan is compared under the locks with that of what would be done."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Protocol, TypeVar

from offsetstore.errors import ConfigurationError, PlanChanged
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.database import GroupRow

_LENGTH: Final = 16
_DIGEST: Final = re.compile(rf"[0-9a-f]{{{_LENGTH}}}")


class Plan(Protocol):
    """What a decision would do, or has done."""

    @property
    def digest(self) -> str:
        """See `digest_of`."""
        ...


_P = TypeVar("_P", bound=Plan)


def digest_of(decision: str, group: str, *facts: object) -> str:
    """Return the digest of a plan: two plans that do the same to the same state have the same one.

    :param facts: what is done and what it rests on, in a fixed order, as JSON and datetimes. What changes by itself is
        left out: the present, ages, and how far the log has grown.
    """
    text = json.dumps([decision, group, *facts], default=_plain, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def held_by(owner: GroupRow | None, offsets: Mapping[TopicPartition, int]) -> object:
    """What the plan of a decision about a group's offsets rests on: who has the group, and what is stored.

    A live job goes on storing. Each claim and each reset has another token, so that it is still the job that was shown.
    """
    if owner is None:
        return sorted(offsets.items())
    token = [owner.token.epoch, str(owner.token.claim_id)]
    return ["live", token, sorted(offsets)] if owner.is_live else ["not live", token, sorted(offsets.items())]


def expect_plan(plan: _P, if_plan: str | None) -> _P:
    """Refuse to do what differs from the plan that was shown; a dry run, too, must not say that it would be done.

    :param plan: what would be done; under the locks, this is final. It is returned.
    :param if_plan: the digest of what was shown, ``None`` to do whatever there is to do.
    :raises ConfigurationError: that is no digest.
    :raises PlanChanged: it differs.
    """
    if if_plan is not None and not _DIGEST.fullmatch(if_plan):
        raise ConfigurationError(
            "not the digest of a plan; nothing was done",
            found=repr(if_plan),
            expected=f"{_LENGTH} hexadecimal digits, as a plan shows them",
        )
    if if_plan is not None and plan.digest != if_plan:
        raise PlanChanged(
            "the plan has changed since it was shown, or the digest is another command's; nothing was done",
            found=plan.digest,
            expected=if_plan,
            plan=plan,
        )
    return plan


def _plain(value: object) -> float:
    if isinstance(value, datetime):
        return value.timestamp()  # the same whatever the session's TimeZone is
    raise TypeError(f"not a fact of a plan: {type(value).__name__}")
