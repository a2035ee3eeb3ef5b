"""A fake engine whose calls a test looks at, changes or breaks."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.engines.fake import FakeEngine


class HookedEngine(FakeEngine):
    """Calls `before` and `after` around each step; what they raise is what the step raises."""

    def before(self, slices: Sequence[SequenceSlice]) -> None:
        """Nothing, unless a subclass has something to do."""

    def after(self, slices: Sequence[SequenceSlice]) -> None:
        """Nothing, unless a subclass has something to do."""

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        self.before(slices)
        rows = super().step(slices, overlapped_work)
        self.after(slices)
        return rows
