"""Fields that a request for a chat has at every listener, and their limits (pure but for one random
id)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from outrider.errors import InvalidRequestError

MAX_ID_CHARS: Final = 128
MAX_RESIDENCY: Final = 64
MAX_TRACE_CHARS: Final = 512
MAX_PREDICTION_CHARS: Final = 1 << 17


def choice_id(request_id: str, index: int) -> str:
    """Id of the chat of one choice of a request. No client's own key has a zero byte."""
    return f"{request_id}\0{index}" if index else request_id


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


def residency(names: Sequence[str]) -> tuple[str, ...]:
    """The regions in which a prompt may be computed. Raises InvalidRequestError."""
    if len(names) > MAX_RESIDENCY or any(len(name) > MAX_ID_CHARS for name in names):
        raise InvalidRequestError(
            f"residency lists at most {MAX_RESIDENCY} regions of {MAX_ID_CHARS} characters"
        )
    return tuple(names)


def check_prediction(text: str) -> None:
    """Raises InvalidRequestError for one that is too long."""
    if len(text) > MAX_PREDICTION_CHARS:
        raise InvalidRequestError(
            f"a prediction has at most {MAX_PREDICTION_CHARS} characters, not {len(text)}; send "
            "the part that the reply begins with"
        )


def trace(traceparent: str, tracestate: str) -> tuple[str, str]:
    """The client's span; none if it is too long to be one."""
    if len(traceparent) > MAX_TRACE_CHARS or len(tracestate) > MAX_TRACE_CHARS:
        return "", ""
    return traceparent, tracestate
