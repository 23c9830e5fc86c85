"""What browsers send: the fields of a form, and the ticket that proves that it is one of ours and was not sent yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from starlette.requests import Request

LONGEST: Final = 65_536
"""Bytes of a form."""


async def read_fields(request: Request) -> dict[str, str]:
    """Read a form that was sent urlencoded: the first value of each field, those that are empty too.

    :raises HTTPException: it is longer than `LONGEST`, or it has a null character, which no name can have.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LONGEST:
            raise HTTPException(413, "The form is too long.")
    found = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
    fields = {name: values[0] for name, values in found.items()}
    if any("\0" in text for pair in fields.items() for text in pair):
        raise HTTPException(400, "A field has a null character in it.")
    return fields
