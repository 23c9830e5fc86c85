"""The demo's own error."""

from __future__ import annotations

from offsetstore.errors import OffsetStoreError


class DemoFailed(OffsetStoreError):
    """The demo itself did not work; nothing is said about the jobs."""
