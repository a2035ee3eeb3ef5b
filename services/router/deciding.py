"""The parts that decide where sessions go and remember why, built from the configuration."""

from __future__ import annotations

from random import Random
from typing import Final

from services.router.config import RouterConfig
from services.router.fleet.registry import Registry
from services.router.placement.history import PlacementHistory
from services.router.placement.placement import Placement
from services.router.placement.types import PlacementPolicy
from services.router.prefix_index.index import PrefixIndex, PrefixIndexLimits
from services.router.prefix_index.prompt import TokenIdReader
from services.router.relay.assignment import Prompts
from services.router.upstream.prefixes import PrefixWatch

_MAX_TIDIED_ROWS: Final = 2048
"""Rows of the prefix tree looked at in one tick: a fraction of a millisecond."""


class Deciding:
    """One router's, wired together."""

    def __init__(self, config: RouterConfig, registry: Registry, rng: Random) -> None:
        self._index = PrefixIndex(
            PrefixIndexLimits(max_blocks=config.prefix_blocks, expected_s=config.expected_s)
        )
        self._ids = TokenIdReader()
        policy = PlacementPolicy(
            near_ms=config.near_ms,
            max_queued=config.max_queued,
            work_weight=config.work_weight,
            busy_work_weight=config.busy_work_weight,
        )
        self.placement = Placement(
            registry, self._index, policy, rng, report_ms=config.load_interval_ms
        )
        self.prompts = Prompts(self._index, self._ids)
        self.history = PlacementHistory(config.history)

    def watch(self) -> PrefixWatch:
        """For one replica's link."""
        return PrefixWatch(self._index, self._ids, self.placement.owner)

    def tick(self, now: float) -> None:
        """What passes with time alone."""
        self._index.sweep(now, _MAX_TIDIED_ROWS)
