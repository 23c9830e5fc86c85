"""Checks of the numbers that callers pass: one that makes no sense is refused at once.

A comparison alone accepts too much: ``True`` is 1, NaN passes every ``< 0``, half a row never fills a buffer, and
infinity becomes an error of the clock or of the database, hours later. NumPy's integers are not ``int``, and neither
`json` nor `datetime.timedelta` takes them: as offsets they are converted, since offsets come from a frame's column;
everywhere else they are refused.
"""

from __future__ import annotations

from threading import TIMEOUT_MAX
from typing import Any, Final

from offsetstore.errors import ConfigurationError
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
