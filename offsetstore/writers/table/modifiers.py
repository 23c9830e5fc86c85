"""What a column's ``atttypmod`` says beyond its type, as PostgreSQL packs it; -1 if nothing was declared.

The layouts are those of ``numeric.c``, ``timestamp.c`` and ``varchar.c`` in PostgreSQL's sources.
"""

from __future__ import annotations

_HEADER = 4  # bytes of a varlena's header, which lengths and numeric's modifier include
_UNDECLARED = 0xFFFF
_SECOND = 1 << 12  # the bit of SECOND among an interval's fields; undeclared fields have all bits set


def numeric_scale(modifier: int) -> int:
    """Return the scale of ``numeric(p,s)``: the lowest 11 bits, signed."""
    return (((modifier - _HEADER) & 0x7FF) ^ 1024) - 1024


def numeric_precision(modifier: int) -> int:
    """Return the precision of ``numeric(p,s)``: the bits above."""
    return ((modifier - _HEADER) >> 16) & 0xFFFF


def text_length(modifier: int) -> int | None:
    """Return the number of characters of ``varchar(n)``."""
    return None if modifier < 0 else modifier - _HEADER


def moment_step(modifier: int) -> int:
    """Return the step in microseconds to which ``time(p)``, ``timestamp(p)`` or ``interval(p)`` round."""
    digits = modifier & 0xFFFF
    return 1 if digits == _UNDECLARED else 10 ** (6 - digits)


def interval_keeps_seconds(modifier: int) -> bool:
    """Tell whether an interval's fields go down to the second; ``interval day`` drops 23 hours."""
    return bool(modifier >> 16 & _SECOND)
