"""How many rows a call computes (pure).

Engines with kernels for certain numbers of rows round a call up to one of these. The rows in
between cost nothing more, and a scheduler that knows them fills them with drafts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SizingRule:
    """How an engine rounds the rows of a call up. The default does not round."""

    sizes: tuple[int, ...] = ()
    """Numbers of rows that the engine is prepared for, ascending."""
    quantum: int = 1
    """Larger calls are rounded up to a multiple of this."""

    @property
    def max_prepared(self) -> int:
        """Most rows of a call that is rounded up to one of `sizes`; 0: there are none."""
        return self.sizes[-1] if self.sizes else 0

    def padded(self, num_rows: int) -> int:
        """Rows that a call of `num_rows` computes."""
        if 0 < num_rows <= self.max_prepared:
            return self.sizes[bisect_left(self.sizes, num_rows)]
        return self.rounded(num_rows)

    def rounded(self, num_rows: int) -> int:
        """The next multiple of `quantum`."""
        return -(-num_rows // self.quantum) * self.quantum


NO_SIZING = SizingRule()


def ladder(max_rows: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 12, 16, 24, 32, 48, ... up to max_rows."""
    return tuple(size for size in _steps(max_rows) if size <= max_rows)


def _steps(max_rows: int) -> Iterator[int]:
    size = 1
    while size <= max_rows:
        yield size
        if size >= 8:
            yield size + size // 2
        size *= 2
