"""Whether a process holds more and more: resident memory and descriptors over its life (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Final

WARM_UP_S: Final = 60.0
"""After its start a process loads, connects and fills its caches."""
LEAST_LIFE_S: Final = 180.0
"""Growth is judged from so long after the warm-up on."""
_NUM_MEDIAN: Final = 5
"""What it holds at a time is the median of so many samples: load comes and goes."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds, its children counted with it."""

    memory_mb: float
    """Resident, 2^20 bytes."""
    num_files: int
    """Open descriptors."""


MAX_GROWTH: Final = Held(48.0, 64)
"""What a process may hold more at its end than after its warm-up. Caches still fill, and chats that
moved here in a fault hold a connection or two each."""


@dataclass(slots=True)
class Life:
    """One process, from start to end."""

    began_at: float
    """time.monotonic(), seconds."""
    peak: Held = Held(0.0, 0)
    last_at: float = 0.0
    _samples: list[Held] = field(default_factory=list)
    """Since its warm-up."""

    def add(self, now: float, held: Held) -> None:
        """A sample."""
        self.peak = Held(
            max(self.peak.memory_mb, held.memory_mb), max(self.peak.num_files, held.num_files)
        )
        if now < self.began_at + WARM_UP_S:
            return
        self.last_at = now
        self._samples.append(held)

    @property
    def is_judged(self) -> bool:
        """Whether it lived long enough."""
        return self.last_at >= self.began_at + WARM_UP_S + LEAST_LIFE_S

    @property
    def first(self) -> Held:
        """After its warm-up. Raises statistics.StatisticsError if it did not live to see that."""
        return _median(self._samples[:_NUM_MEDIAN])

    @property
    def middle(self) -> Held:
        """Half-way between these two. Raises as `first`."""
        begin = max(0, (len(self._samples) - _NUM_MEDIAN) // 2)
        return _median(self._samples[begin : begin + _NUM_MEDIAN])

    @property
    def last(self) -> Held:
        """At its end, or now. Raises as `first`."""
        return _median(self._samples[-_NUM_MEDIAN:])

    @property
    def problem(self) -> str:
        """What grew; "": nothing did, or it did not live long enough."""
        if not self.is_judged:
            return ""
        told = []
        if self.last.memory_mb > self.first.memory_mb + MAX_GROWTH.memory_mb:
            told.append(
                f"resident memory from {self.first.memory_mb:.0f} to {self.last.memory_mb:.0f} MiB"
            )
        if self.last.num_files > self.first.num_files + MAX_GROWTH.num_files:
            told.append(f"descriptors from {self.first.num_files} to {self.last.num_files}")
        return " and ".join(told)


def _median(samples: list[Held]) -> Held:
    return Held(
        median(it.memory_mb for it in samples), round(median(it.num_files for it in samples))
    )
