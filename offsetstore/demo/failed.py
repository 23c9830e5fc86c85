"""The demo's own error."""

from __future__ import annotations

from offsetstore.errors import OffsetStoreError


class DemoFailed(OffsetStoreError):
    """The demo itself failed; this says nothing about the jobs."""
