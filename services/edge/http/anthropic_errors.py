"""Errors as the Anthropic API words them (pure)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outrider.errors import OutriderError, OverloadedError, PromptTooLongError, RateLimitedError

BUSY: Final = 529
"""That API's status for having no capacity. 429 there is for the caller's own limits."""
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    BUSY: "overloaded_error",
    504: "timeout_error",
}


class AnthropicError(msgspec.Struct, kw_only=True):
    """An error: its type and message."""

    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct, kw_only=True):
    """The body of every answer that is no success."""

    type: Literal["error"] = "error"
    error: AnthropicError
    request_id: str | UnsetType = UNSET
    """Left out of an event of a stream."""


def error_body(error: OutriderError, request_id: str) -> bytes:
    """JSON of an error. It may name fields of the request but never quotes their contents."""
    return msgspec.json.encode(described(error, request_id))


def described(error: OutriderError, request_id: str | UnsetType = UNSET) -> AnthropicErrorBody:
    """An error in that API's shape."""
    status = status_of(error)
    default = "invalid_request_error" if status < 500 else "api_error"
    made = AnthropicError(type=_TYPES.get(status, default), message=_message(error))
    return AnthropicErrorBody(error=made, request_id=request_id)


def status_of(error: OutriderError) -> int:
    """The HTTP status of an error in that API."""
    is_busy = isinstance(error, OverloadedError) and not isinstance(error, RateLimitedError)
    return BUSY if is_busy else error.http_status


def _message(error: OutriderError) -> str:
    """Clients know a prompt that is too long by that API's words alone, and shorten it by the two
    numbers in them."""
    if not isinstance(error, PromptTooLongError):
        return error.message
    if (counted := error.num_tokens) is None:
        return f"prompt is too long: {error.message}"
    return f"prompt is too long: {counted[0]} tokens > {counted[1]} maximum"
