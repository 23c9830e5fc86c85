"""What browsers send: the fields of a form, and the ticket that proves that it is one of ours and was not sent yet."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request

LONGEST: Final = 65_536
"""Bytes of a form."""

_QUOTED: Final = "~"  # begins the name of a field whose text is quoted
_PATIENCE: Final = 10  # seconds for the whole body

LIFETIME: Final = 15 * 60
"""Seconds for which a form can be sent."""

MOST_USED: Final = 10_000
"""Forms that can be sent within `LIFETIME`: each is remembered that long."""

_EXPIRED: Final = "The form is older than 15 minutes; nothing was done."
_FOREIGN: Final = "The form does not come from this server, or the server was started again since; nothing was done."
_USED: Final = "The form was sent already. What it did is in the group's history; nothing was done now."
_FULL: Final = "Too many forms were sent in the last 15 minutes; nothing was done."


class TicketRefused(Exception):
    """The form must not be carried out; the text says why."""


def hidden(name: str, text: str) -> Markup:
    """A hidden field of a form."""
    # Browsers send every line break as CR LF (decision 0102).
    if "\n" in text or "\r" in text:
        name, text = f"{_QUOTED}{name}", quote(text)
    return Markup('<input type="hidden" name="{}" value="{}">').format(name, text)


def _read(sent: str) -> list[tuple[str, str]]:
    pairs = parse_qsl(sent, keep_blank_values=True)
    return [(name[1:], unquote(text)) if name.startswith(_QUOTED) else (name, text) for name, text in pairs]


def plain_query(sent: bytes) -> bytes:
    """The query of an address, from a form or a link, without the quoting of `hidden`."""
    return urlencode(_read(sent.decode("latin-1"))).encode() if _QUOTED in unquote(sent.decode("latin-1")) else sent


async def read_fields(request: Request) -> dict[str, str]:
    """Read a form that was sent urlencoded: the first value of each field, also if it is empty.

    :raises HTTPException: it is longer than `LONGEST`, takes too long, or has a null character, which no name can have.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(_PATIENCE):
            async for part in request.stream():
                body += part
                if len(body) > LONGEST:
                    raise HTTPException(413, "The form is too long.")
    except TimeoutError:
        raise HTTPException(408, f"The form did not arrive within {_PATIENCE} s.") from None
    fields = dict(reversed(_read(body.decode(errors="replace"))))
    if any("\0" in text for pair in fields.items() for text in pair):
        raise HTTPException(400, "A field has a null character in it.")
    return fields


@dataclass(frozen=True, slots=True)
class Tickets:
    """Makes a ticket for each form that may change something, and takes it back once.

    It is signed with a key of this process, and good for one action on one group with the values that the form shows.

    :param clock: in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _used: dict[str, int] = field(default_factory=dict[str, int], repr=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def issue(self, action: str, group: str, values: Mapping[str, str]) -> str:
        nonce, until = secrets.token_urlsafe(16), int(self.clock()) + LIFETIME
        return f"{until}.{nonce}.{self._sign(until, nonce, action, group, values)}"

    def take(self, ticket: str, action: str, group: str, values: Mapping[str, str]) -> None:
        """Take a ticket back. Of several requests with the same ticket, this returns for one alone.

        :raises TicketRefused: it is not one of ours, belongs to another form, is too old, or was taken before.
        """
        time_of, _dot, rest = ticket.partition(".")
        nonce, _dot, signature = rest.partition(".")
        until = int(time_of) if time_of.isascii() and time_of.isdigit() and len(time_of) < 20 else 0  # noqa: PLR2004
        expected = self._sign(until, nonce, action, group, values)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            raise TicketRefused(_FOREIGN)
        with self._guard:
            now = self.clock()
            if until <= now:
                raise TicketRefused(_EXPIRED)
            if nonce in self._used:
                raise TicketRefused(_USED)
            if len(self._used) >= MOST_USED:
                for old in [used for used, over in self._used.items() if over <= now]:
                    del self._used[old]
            if len(self._used) >= MOST_USED:
                raise TicketRefused(_FULL)
            self._used[nonce] = until

    def _sign(self, until: int, nonce: str, action: str, group: str, values: Mapping[str, str]) -> str:
        text = json.dumps([until, nonce, action, group, sorted(values.items())])
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
