"""An observer that keeps what it is told."""

from __future__ import annotations

from typing import Any, TypeVar

from offsetstore.protocol.events import Event

_E = TypeVar("_E")


class Recorder:
    """Keeps all events, in order; other threads may add to them."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[_E], *outcomes: str) -> list[_E]:
        """The events of one kind, or those with such an outcome."""
        events: list[Any] = [one for one in self.events if isinstance(one, kind)]
        return [one for one in events if not outcomes or one.outcome in outcomes]
