"""Checks of the numbers and texts that callers pass: one that makes no sense is refused at once.

A comparison alone accepts too much: ``True`` is 1, NaN passes every ``< 0``, half a row never fills a buffer, and
infinity becomes an error of the clock or of the database, hours later. NumPy's integers are not ``int``, and neither
`json` nor `datetime.timedelta` takes them: as offsets they are converted, since offsets come from a frame's column;
everywhere else they are refused. Of a text that no database can store, the error tells the position.
"""

from __future__ import annotations

from threading import TIMEOUT_MAX
from typing import Any, Final

from offsetstore.errors import ConfigurationError, InvalidText
from offsetstore.offsets import whole

_LONGEST: Final = TIMEOUT_MAX
"""The most seconds that Python waits for a lock: 292 years."""


def check_whole(name: str, value: object, unit: str = "", *, least: int | None = 0, most: int | None = None) -> None:
    """Refuse anything but an ``int`` from ``least`` to ``most``.

    :param unit: what it counts, in the plural, for the message.
    :raises ConfigurationError: with the argument's name.
    """
    # ``bool`` is a subclass of ``int``.
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    number: Any = value
    if is_whole and (least is None or number >= least) and (most is None or number <= most):
        return
    bounds = "a number" if least is None else f"{least} or more" if most is None else f"from {least} to {most}"
    raise ConfigurationError(
        f"{name} must be {bounds}{unit and f' {unit}'}, as an int", found=repr(value), expected="a whole number"
    )


def as_offset(name: str, value: object, *, least: int | None = 0, most: int | None = None) -> int:
    """Return an offset as an ``int``, also if it is one of NumPy's integers.

    :raises ConfigurationError: as `check_whole`.
    """
    number = whole(value)
    check_whole(name, value if number is None else number, least=least, most=most)
    assert number is not None
    return number


def check_seconds(name: str, value: object, *, or_zero: bool = False, most: float = _LONGEST) -> None:
    """Refuse anything but a finite ``float`` or ``int`` above 0, and at most ``most``.

    :param or_zero: allow 0, too.
    :raises ConfigurationError: with the argument's name.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    seconds: Any = value
    # Asked this way round, NaN is refused: every comparison with it is false.
    if is_number and (0 < seconds <= most or (or_zero and seconds == 0)):
        return
    bounds = ("0 or more" if or_zero else "above 0") + ("" if most == _LONGEST else f" and at most {most:g}")
    raise ConfigurationError(f"{name} must be {bounds} seconds", found=repr(value), expected="a finite number")


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
