"""COMMITs of a store in memory whose answer is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offsetstore.errors import ConnectionLost
from offsetstore.testing.memory.session import MemorySession


class Losing:
    """Loses the answer to the next COMMIT, which happens or does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def next(self, *, happens: bool, then: Callable[[], object] = lambda: None) -> None:
        commit = MemorySession.commit

        def lost(session: MemorySession) -> None:
            self._patch.setattr(MemorySession, "commit", commit)
            if happens:
                commit(session)
            else:
                session.rollback()
            then()
            raise ConnectionLost("the answer was lost")

        self._patch.setattr(MemorySession, "commit", lost)


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Losing:
    return Losing(monkeypatch)
