"""The parts that decide where sessions go and remember why, built from the configuration."""

from __future__ import annotations

from random import Random
from typing import Final

from services.router.config import RouterConfig
from services.router.fleet.registry import Registry
from services.router.placement.history import History
from services.router.placement.placement import Placement
from services.router.placement.request import PlacementPolicy
from services.router.prefixes.ids import IdReader
from services.router.prefixes.index import PrefixIndex, PrefixLimits
from services.router.relay.assignment import Prompts
from services.router.upstream.prefixes import PrefixWatch

_MAX_TIDIED_ROWS: Final = 2048
"""Rows of the prefix tree looked at in one tick: a fraction of a millisecond."""


class Deciding:
    """One router's, wired together."""

    def __init__(self, config: RouterConfig, registry: Registry, rng: Random) -> None:
        self._index = PrefixIndex(
            PrefixLimits(max_blocks=config.prefix_blocks, expected_s=config.expected_s)
        )
        self._ids = IdReader()
        policy = PlacementPolicy(
            near_ms=config.near_ms,
            max_queued=config.max_queued,
            report_ms=config.load_interval_ms,
            work_weight=config.work_weight,
            busy_work_weight=config.busy_work_weight,
        )
        self.placement = Placement(registry, self._index, policy, rng)
        self.prompts = Prompts(self._index, self._ids)
        self.history = History(config.history)

    def watch(self) -> PrefixWatch:
        """For one replica's link."""
        return PrefixWatch(self._index, self._ids, self.placement.owner)

    def tick(self, now: float) -> None:
        """What passes with time alone."""
        self._index.tidy(now, _MAX_TIDIED_ROWS)
