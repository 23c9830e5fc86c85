"""Checks of the texts that callers pass: what no database can store is refused at once, with its position."""

from __future__ import annotations

from typing import Final

from offsetstore.errors import InvalidText

MOST_NAME: Final = 255
"""Bytes of a group's or a topic's name: both are in the keys of indexes, whose entries hold 2,704 bytes."""

MOST_REASON: Final = 1_000
"""Characters."""

MOST_ACTOR: Final = 2_000
"""Characters: a dashboard adds its own name to the person's."""


def misplaced(text: str) -> str | None:
    """Describe the first character that PostgreSQL can't store; ``None`` if there is none."""
    # PostgreSQL's text holds no NUL, and a lone surrogate has no form in UTF-8.
    at = text.find("\0")
    if at >= 0:
        return f"a NUL, character {at + 1} of {len(text)}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"a lone surrogate, character {error.start + 1} of {len(text)}"
    return None


def check_text(name: str, text: object, *, most: int | None = None) -> None:
    """Refuse a text that no database can store, or that is too long.

    :param name: the argument's name, for the message.
    :param most: the limit in characters.
    :raises InvalidText: with the argument and the character.
    """
    if not isinstance(text, str):
        raise InvalidText(f"{name} must be a text", found=type(text).__name__, expected="str")
    if (found := misplaced(text)) is not None:
        raise InvalidText(f"{name} can't be stored", found=found, expected="text without NUL and lone surrogates")
    if most is not None and len(text) > most:
        raise InvalidText(f"{name} is too long", found=f"{len(text):,} characters", expected=f"at most {most:,}")


def check_new_name(name: str, text: str) -> None:
    """Refuse a text that can't be the name of a new group or topic.

    :param name: the argument's name, for the message.
    :raises InvalidText: with the argument.
    """
    check_text(name, text)
    # Only new names are measured: a group with a longer, older name could not be renamed any more (decision 0055).
    if (size := len(text.encode())) > MOST_NAME:
        raise InvalidText(f"{name} is too long", found=f"{size:,} bytes", expected=f"at most {MOST_NAME}")
