"""How much is held, and when a worker is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a dispatcher. Raises ValueError where one is not above 0."""

    max_jobs: int = 64
    """Jobs open at once; more are refused."""
    window_parts: int = 16
    """Parts of one job between the oldest whose result was not taken and the newest."""
    silent_s: float = 5.0
    """A worker not heard of for so long is dead."""
    slow_s: float = 10.0
    """A part at a worker for so long is given to another one as well."""
    max_deaths: int = 5
    """Workers that may die at one part before its job is given up."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: set it above 0")
