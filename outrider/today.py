"""The date that a chat's template shows, where no other is given."""

from __future__ import annotations

from datetime import UTC, datetime


def today() -> str:
    """The date in UTC, as YYYY-MM-DD."""
    return datetime.now(UTC).date().isoformat()
