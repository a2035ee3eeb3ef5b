"""Errors as the OpenAI API words them (pure)."""

from __future__ import annotations

from typing import Final

import msgspec

from outrider.errors import InvalidRequestError, OutriderError

_CODES: Final = {
    "UNAUTHENTICATED": "invalid_api_key",
    "UNKNOWN_MODEL": "model_not_found",
    "PROMPT_TOO_LONG": "context_length_exceeded",
    "OVERLOADED": "rate_limit_exceeded",
    "RATE_LIMITED": "rate_limit_exceeded",
}
"""Codes that clients of that API look for; other errors have their own reason in small letters."""
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_MAX_TYPE_CHARS: Final = 64


class OpenAiError(msgspec.Struct, kw_only=True):
    """An error: message, type, parameter and code."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAiErrorBody(msgspec.Struct, kw_only=True):
    """The body of every answer that is no success."""

    error: OpenAiError


def error_body(error: OutriderError, request_id: str) -> bytes:
    """JSON of an error. It may name fields of the request but never quotes their contents."""
    return msgspec.json.encode(described(error))


def described(error: OutriderError) -> OpenAiErrorBody:
    """An error in that API's shape."""
    status = error.http_status
    default = "invalid_request_error" if status < 500 else "server_error"
    return OpenAiErrorBody(
        error=OpenAiError(
            message=error.message,
            type=_TYPES.get(status, default),
            param=error.metadata.get("param"),
            code=_CODES.get(error.reason, error.reason.lower()),
        )
    )


def refused(param: str, message: str) -> InvalidRequestError:
    """An error that blames one field of the request."""
    return InvalidRequestError(message, metadata={"param": param})


def not_text(where: str, kind: str) -> InvalidRequestError:
    """An error that blames the part at `where` of the request: no model here reads parts of this
    type, such as images and recordings."""
    return refused(
        where,
        f"{where} is of type {kind[:_MAX_TYPE_CHARS]!r}, and models here read only text; send text "
        "in its place, such as a description or a transcript",
    )
