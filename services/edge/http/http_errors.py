"""The status and headers of an answer that is no success, the same for all APIs (pure)."""

from __future__ import annotations

import math
from typing import Final

from outrider.errors import (
    OutriderError,
    PoisonousRequestError,
    RateLimitedError,
    UnavailableError,
    UnsupportedModelError,
)

_CONFLICT: Final = 409
"""Official clients send such a request again by themselves, which would take the reply from the
request that has it."""
_UNAVAILABLE_S: Final = 5
"""When to try again what no router or region could take: processes restart in seconds."""
_ENDS_THE_SAME: Final = (RateLimitedError, PoisonousRequestError, UnsupportedModelError)
"""Errors with statuses that official clients would retry, though a retry cannot succeed. A
RateLimitedError without delay is for a prompt longer than the limit; a poisonous request would cost
further replicas."""


def headers_of(error: OutriderError) -> dict[str, str]:
    """Headers that tell a client whether and when to retry, and how to authenticate."""
    headers: dict[str, str] = {}
    if error.retry_delay_ms > 0:
        headers["retry-after"] = str(math.ceil(error.retry_delay_ms / 1000))
        headers["retry-after-ms"] = str(error.retry_delay_ms)
    elif isinstance(error, UnavailableError):
        headers["retry-after"] = str(_UNAVAILABLE_S)
    elif error.http_status == _CONFLICT or isinstance(error, _ENDS_THE_SAME):
        headers["x-should-retry"] = "false"
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if allow := error.metadata.get("allow"):
        headers["allow"] = allow
    return headers
