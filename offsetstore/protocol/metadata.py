"""The metadata of an offset: any JSON value, kept as text in the offset's row, written in the same transaction.

Karafka calls this offset metadata: a note from the job to its next owner. It is never a pickle: the next owner may use
another version or language, and loading an attacker's pickle runs code.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Final, cast

from offsetstore.errors import MetadataError

MAX_BYTES: Final = 1 << 20
"""The largest metadata in bytes of UTF-8, 1 MiB: it is rewritten with every advance."""


class Keep(Enum):
    """The type of `KEEP`."""

    KEEP = "keep"

    def __repr__(self) -> str:
        return self.name


KEEP: Final = Keep.KEEP
"""An advance without metadata keeps what the row has."""


def dump(value: object) -> str | None:
    """Return the text for the table, ``None`` for ``None``.

    :raises MetadataError: not a JSON value, or larger than `MAX_BYTES`.
    """
    if value is None:
        return None
    try:
        _refuse_other_keys(value)
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise MetadataError(
            "the metadata can't be written as JSON",
            found=f"{type(value).__name__} ({type(error).__name__})",
            expected="strings, finite numbers, booleans, None, lists, and dicts of these with strings as keys",
            next_step="Nothing was written; convert the value first.",
        ) from None
    if size > MAX_BYTES:
        raise MetadataError(
            "the metadata is too large",
            found=f"{size:,} bytes",
            expected=f"at most {MAX_BYTES:,}",
            next_step="Nothing was written; store the large part in your own table, and only its key here.",
        )
    return text


def _refuse_other_keys(value: object) -> None:
    """``json.dumps`` would convert them to text: 1 and "1" would become one key."""
    if isinstance(value, dict):
        members = cast("dict[object, object]", value)
        if not all(isinstance(key, str) for key in members):
            raise TypeError("a key is not a string")
        for member in members.values():
            _refuse_other_keys(member)
    elif isinstance(value, (list, tuple)):
        for member in cast("list[object]", value):
            _refuse_other_keys(member)


def load(text: str | None) -> object:
    """Read the value of a text that `dump` wrote.

    :raises MetadataError: the text is not JSON: something else wrote the row.
    """
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise MetadataError(
            "the stored metadata is not JSON",
            found=f"{len(text)} characters",
            expected="JSON",
            next_step="Find out what else writes to kafka_partitions.",
        ) from None
