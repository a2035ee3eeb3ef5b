"""Ids of requests: the client's own, or one that nobody else has (pure but for the random one)."""

from __future__ import annotations

from typing import Final
from uuid import uuid4

from outrider.errors import InvalidRequestError

MAX_ID_CHARS: Final = 128


def request_id(idempotency_key: str) -> str:
    """The id of a request that its client sent with this key; empty: with none. Raises
    InvalidRequestError."""
    if not idempotency_key:
        return uuid4().hex
    is_printable = idempotency_key.isascii() and idempotency_key.isprintable()
    if len(idempotency_key) > MAX_ID_CHARS or not is_printable:
        raise InvalidRequestError(
            f"an idempotency key has at most {MAX_ID_CHARS} printable ASCII characters"
        )
    return idempotency_key
