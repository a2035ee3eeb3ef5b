"""How far a pull is: what the store reports to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One report. Reports come often and in order; show the last."""

    stage: str
    """`waiting` (another process pulls the same), `fetching`, or `unpacking`."""
    done_bytes: int
    """Of this stage."""
    total_bytes: int | None
    """Of this stage; None while the source has not said."""


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """A report nobody reads."""
