"""Methods that a writer may have beside those of its protocol."""

from __future__ import annotations

from offsetstore.protocol.ports import Writer


def goes_with_write(writer: Writer, method: str) -> bool:
    """Tell whether the method knows all that ``write`` does: a subclass that overrides only ``write`` may do more."""
    classes = type(writer).__mro__
    own_write, own_method = (next(i for i, c in enumerate(classes) if name in vars(c)) for name in ("write", method))
    return own_method <= own_write
