"""What commands say of the outbox as a whole, and of names that are no groups but sources of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from offsetstore.offset_store import OffsetStore
from offsetstore.operations import people
from offsetstore.operations.group_status import relay_in_words
from offsetstore.operations.outbox import is_source
from offsetstore.operations.people import OutboxView
from offsetstore.protocol.outbox import OutboxState
from offsetstore.text import counted, short

_NAMED: Final = 5
KEYS: Final = "relay[state owner since until sent_at error]"


def read_outbox(store: OffsetStore, name: str | None = None) -> OutboxView:
    """Read what is in the outbox, and its relay.

    :param name: only the rows of this group or source.
    """
    return people.ask(store.database, lambda session: people.read_outbox(session, name))


def source(store: OffsetStore, name: str) -> OutboxView | None:
    """Read what a name that is no group's has in the outbox; ``None`` if it is not known there (decision 0107)."""
    if not people.ask(store.database, lambda session: is_source(session, name)):
        return None
    return read_outbox(store, name)


def source_lines(name: str, found: OutboxView | None) -> Iterator[str]:
    """Say that the name is no group's, and what it has in the outbox."""
    if found is not None:
        yield f"{name} is no consumer group: an application put rows into the outbox under this name."
        yield from outbox_lines(found)


def outbox_lines(found: OutboxView, *, but_for: str | None = None) -> Iterator[str]:
    """A line for the rows, if there are any, and one for the relay, unless there was never a row or a relay.

    :param but_for: a group whose rows need no line, unless others have some, too.
    """
    if found.names.keys() - {but_for}:
        yield _rows(found.names, found.at)
    if found.names or found.relay is not None:
        state = "" if found.relay is None else f"{found.relay.state}. "
        yield f"Relay: {state}{relay_in_words(found.relay)}"


def _rows(names: Mapping[str, OutboxState], at: datetime) -> str:
    rows, more = sum(state.rows for state in names.values()), any(state.more for state in names.values())
    oldest = min((state.oldest for state in names.values() if state.oldest is not None), default=None)
    of = [f"{name} {state.rows}" for name, state in sorted(names.items()) if state.rows]
    refused = sum(state.refused for state in names.values())
    aside = f" Kafka refuses {counted(refused, 'row')}: `offsetstore outbox list`." if refused else ""
    others = f" and {len(of) - _NAMED} more" if len(of) > _NAMED else ""
    since = "" if oldest is None else f", the oldest for {short(at - oldest)}"
    whose = f": {', '.join(of[:_NAMED])}{others}" if of else ""
    waiting = f"{counted(rows, 'row')}{' or more' if more else ''} waiting" if rows else "no row waits"
    return f"Outbox: {waiting}{since}{whose}.{aside}"
