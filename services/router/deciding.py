"""The parts that decide where sessions go and remember why, built from the configuration."""

from __future__ import annotations

from random import Random
from typing import Final

from services.router.config import RouterConfig
from services.router.fleet.registry import Registry
from services.router.placement.history import PlacementHistory
from services.router.placement.placement import Placement
from services.router.prefix_index.index import PrefixIndex
from services.router.prefix_index.prompt import TokenIdReader
from services.router.relay.assignment import Prompts
from services.router.upstream.prefixes import PrefixWatch

_MAX_TIDIED_ROWS: Final = 2048
"""Rows of the prefix tree looked at in one tick: a fraction of a millisecond."""


class Deciding:
    """One router's, wired together."""

    def __init__(self, config: RouterConfig, registry: Registry, rng: Random) -> None:
        self._index = PrefixIndex(config.prefix_index)
        self._ids = TokenIdReader()
        self.placement = Placement(
            registry, self._index, config.placement, rng, report_ms=config.load_interval_ms
        )
        self.prompts = Prompts(self._index, self._ids)
        self.history = PlacementHistory(config.history)

    def watch(self) -> PrefixWatch:
        """For one replica's link."""
        return PrefixWatch(self._index, self._ids, self.placement.owner)

    def tick(self, now: float) -> None:
        """What passes with time alone."""
        self._index.sweep(now, _MAX_TIDIED_ROWS)
