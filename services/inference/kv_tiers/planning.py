"""How much of a prompt is loaded from a tier while the rest is computed (pure).

Two-ended, as in Cake (arXiv 2410.03065): the engine computes from the first token on, and blocks
are loaded from the last one backwards, until the two meet. Nobody waits for a tier, so a slow one
costs the time of nothing but its own threads; and since unpacking takes a core's time that the
engine may want, no more is loaded than should arrive before the engine gets there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SMOOTHING: Final = 0.2
"""Weight of the last transfer in the averages."""
_MARGIN: Final = 0.9
"""Share of the time that computing takes in which loading has to be done: predictions err, and
what arrives late was fetched in vain."""
_TRY_EVERY: Final = 16
"""One prompt in this many has a block loaded although none should arrive in time. Costs are
measured only by loading: without this, transfers that became fast again would go unnoticed."""


@dataclass(frozen=True, slots=True)
class TransferCost:
    """Recent cost of loading blocks in milliseconds; 0: not known yet."""

    block_ms: float = 0.0
    """Time from asking for a block to having its bytes in the engine's form; 0: not known yet."""
    fixed_ms: float = 0.0
    """Time of a round trip to the tier, whatever it brings."""


class LoadPlanner:
    """Learns the cost of transfers, and plans how many blocks to load."""

    def __init__(self) -> None:
        self._cost = TransferCost()
        self._num_left_out = 0
        """Prompts of which nothing was loaded, since the last one that was tried."""

    @property
    def cost(self) -> TransferCost:
        """The averages."""
        return self._cost

    def observe_round_trip(self, ms: float) -> None:
        """The tier answered, before its first block."""
        fixed_ms = self._cost.fixed_ms
        fixed_ms = ms if not fixed_ms else fixed_ms + _SMOOTHING * (ms - fixed_ms)
        self._cost = TransferCost(self._cost.block_ms, fixed_ms)

    def observe_load(self, num_blocks: int, ms: float) -> None:
        """So many blocks were fetched and unpacked."""
        if num_blocks < 1:
            return
        each, block_ms = ms / num_blocks, self._cost.block_ms
        block_ms = each if not block_ms else block_ms + _SMOOTHING * (each - block_ms)
        self._cost = TransferCost(block_ms, self._cost.fixed_ms)

    def pays(self, num_blocks: int, compute_block_ms: float) -> bool:
        """Whether to load any of one more prompt: num_to_load() of them, and one where that is 0
        and it is time to try again."""
        if self.num_to_load(num_blocks, compute_block_ms):
            return True
        if num_blocks < 1 or compute_block_ms <= 0.0:
            return False
        self._num_left_out = (self._num_left_out + 1) % _TRY_EVERY
        return not self._num_left_out

    def num_to_load(self, num_blocks: int, compute_block_ms: float) -> int:
        """How many of `num_blocks` blocks that are missing to load, from the last one backwards,
        where the engine computes one in `compute_block_ms`; 0: none would arrive in time.

        With l ms to load a block and c to compute one, k blocks are loaded in the time in which the
        n - k others are computed: k = (n c - f) / (c + l), f being the round trip before.
        """
        if num_blocks < 1 or compute_block_ms <= 0.0:
            return 0
        time_ms = _MARGIN * num_blocks * compute_block_ms - self._cost.fixed_ms
        count = int(time_ms / (_MARGIN * compute_block_ms + self._cost.block_ms))
        return max(0, min(num_blocks, count))
