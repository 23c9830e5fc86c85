"""Secrets on their way to Spark's workers, in places where others can read: Spark writes them into its event log.

A key that is used in one application, SHAKE256 over key and nonce as the stream that hides the text, and an HMAC over
both, by the standard library alone: it must work on an executor whatever is installed there.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

_NONCE: Final = 16
_MARK: Final = 32
_BLOCK: Final = 256  # bytes; the length of what is sealed tells no more than in how many of them it fits


def new_key() -> str:
    """A fresh key, as text for an environment variable."""
    return secrets.token_urlsafe(32)


def seal(key: str, text: str) -> str:
    """Hide a text from everybody who lacks the key. Spaces at its end may be added."""
    data = text.encode()
    data += b" " * (-len(data) % _BLOCK)
    nonce = secrets.token_bytes(_NONCE)
    hidden = _hidden(key, nonce, data)
    return urlsafe_b64encode(nonce + _mark(key, nonce + hidden) + hidden).decode()


def unseal(key: str, sealed: str) -> str:
    """Read what was sealed.

    :raises ValueError: with another key, or it was changed on the way.
    """
    data = urlsafe_b64decode(sealed)
    nonce, mark, hidden = data[:_NONCE], data[_NONCE : _NONCE + _MARK], data[_NONCE + _MARK :]
    if not hmac.compare_digest(mark, _mark(key, nonce + hidden)):
        what = "sealed with another key"
        raise ValueError(what)
    return _hidden(key, nonce, hidden).decode()


def _hidden(key: str, nonce: bytes, data: bytes) -> bytes:
    stream = hashlib.shake_256(b"hide" + key.encode() + nonce).digest(len(data))
    return bytes(one ^ other for one, other in zip(data, stream, strict=True))


def _mark(key: str, data: bytes) -> bytes:
    return hmac.digest(b"mark" + key.encode(), data, "sha256")
