"""What is judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """An API that is up."""

    url: str
    """Ends in /v1."""
    key: str
    """Empty: clients without a key are served."""
    model: str
