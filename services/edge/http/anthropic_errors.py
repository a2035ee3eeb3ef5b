"""Errors as the Anthropic API words them (pure)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from outrider.errors import OutriderError

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
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
    request_id: str | None = None


def error_body(error: OutriderError, request_id: str) -> bytes:
    """JSON of an error. It may name fields of the request but never quotes their contents."""
    return msgspec.json.encode(described(error, request_id))


def described(error: OutriderError, request_id: str | None = None) -> AnthropicErrorBody:
    """An error in that API's shape."""
    status = error.http_status
    default = "invalid_request_error" if status < 500 else "api_error"
    made = AnthropicError(type=_TYPES.get(status, default), message=error.message)
    return AnthropicErrorBody(error=made, request_id=request_id)
