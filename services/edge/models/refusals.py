"""Errors for chats that do not get their model (pure)."""

from __future__ import annotations

from typing import Any, Final

from outrider.errors import (
    DeadlineError,
    OutriderError,
    OverloadedError,
    UnavailableError,
    UnknownModelError,
)
from outrider.load_table import Refusal, Refuse

_BUSY_RETRY_MS: Final = 1000
"""When to try again, where others have to end first."""


def refusal_error(refused: Refuse[Any]) -> OutriderError:
    """The error for a chat."""
    name = refused.name
    match refused.why:
        case Refusal.NOT_SERVED:
            text = f"the model {name} is not served here any more; ask for another one"
            return UnknownModelError(text)
        case Refusal.FAILED:
            return UnavailableError(
                f"the model {name} cannot be loaded here at the moment; try again in "
                f"{refused.retry_s:.0f} s, or ask for another one",
                retry_delay_ms=max(1, round(refused.retry_s * 1000)),
            )
        case Refusal.TOO_MANY_WAITING:
            text = "too many chats already wait for models to be loaded; try again"
        case Refusal.STILL_LOADING:
            text = f"the model {name} is still being loaded; try again, or ask for another one"
        case Refusal.IN_USE:
            text = (
                f"the model {name} has no room until chats on others end; try again, or ask for "
                "another one"
            )
    if refused.is_deadline:
        return DeadlineError(f"the deadline passed: {text}")
    return OverloadedError(text, retry_delay_ms=_BUSY_RETRY_MS)
