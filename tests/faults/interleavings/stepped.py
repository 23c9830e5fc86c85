"""A store's database whose transactions stand before each step that takes a lock, writes or ends.

The steps are those of `Session`, through which the transaction and the claim do all that they
do. Reads without a lock, heartbeats and BEGIN (which takes no snapshot) are no steps of their own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final, cast

from offsetstore.postgres.database import PostgresDatabase
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.database import Session
from tests.faults.interleavings.interleaving import Actor

_STEPS: Final = {
    "lock_group": "lock group",
    "share_group": "share group",
    "insert_partitions": "insert",
    "lock_group_partitions": "lock",
    "lock_partitions": "lock",
    "write_group": "write tokens",
    "take_partitions": "write tokens",
    "advance": "advance",
    "commit": "commit",
}


class SteppedDatabase:
    """The database as one actor uses it.

    A claim's steps are called "claim's ...", those of a member of a fleet "join's ..." and "assign's ...".
    """

    def __init__(self, inner: PostgresDatabase, actor: Actor) -> None:
        self._inner = inner
        self._actor = actor

    def begin(self, *, name: str, lock_timeout: float | None = None, dedicated: bool = False) -> Session:
        session = self._inner.begin(name=name, lock_timeout=lock_timeout, dedicated=dedicated)
        if dedicated or name == "offsetstore:read":
            return session
        self._actor.pid = cast("Any", session.connection.connection.driver_connection).info.backend_pid
        what = name.rpartition(":")[2]
        prefix = f"{what}'s " if what in {"claim", "join", "assign"} else ""
        return cast("Session", _SteppedSession(session, self._actor, prefix))

    def unblocking(self, session: Session, *, after: float, older_than: str) -> AbstractContextManager[None]:
        inner = cast("_SteppedSession", session).inner
        return self._inner.unblocking(inner, after=after, older_than=older_than)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        """The connections are shared with the other actors."""


class _SteppedSession:
    def __init__(self, inner: PostgresSession, actor: Actor, prefix: str) -> None:
        self.inner = inner
        self._actor = actor
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        step = _STEPS.get(name)
        if step is None:
            return method

        def stepped(*args: Any, **named: Any) -> Any:
            self._actor.pause(self._prefix + step)
            result = method(*args, **named)
            if step == "lock":
                # The rows are locked and read; the store has not yet looked at what they say.
                self._actor.pause(f"{self._prefix}compare")
            return result

        return stepped

    def rollback(self) -> None:
        try:
            self._actor.pause(f"{self._prefix}rollback")
        finally:
            self.inner.rollback()
