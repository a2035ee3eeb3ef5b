"""Settings of the autoscale advisor. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from outrider.bounds import PositiveFloat, PositiveInt, above
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AutoscalePolicy:
    """Policy of the advice on the number of replicas of a region (`[router.autoscale]`). Raises
    ConfigError.

    Too large a share of late requests means that there are too few replicas, and utilisation gives
    the number needed; more sessions than places mean it at once. Low utilisation over a long time
    means that there are too many.
    """

    slo_ttft_ms: PositiveFloat = 120.0
    """A request whose first token took longer than this is late. Time that more replicas do not
    shorten is left out unless the next two settings include it; with them, an objective that an
    idle replica misses asks for ever more replicas."""
    counts_prompt: bool = False
    """Whether the time to compute the prompt counts: the time that an idle replica takes for the
    tokens it has not cached."""
    counts_round_trip: bool = False
    """Whether the round trip to the replica counts."""
    max_late_share: Annotated[float, above(0, 1)] = 0.05
    """Share of late requests above which there are too few replicas, unless they are idle."""
    window_s: PositiveFloat = 60.0
    """Time over which requests are counted and utilisation is averaged."""
    min_requests: PositiveInt = 20
    """Requests in the window below which the share of late ones is ignored."""
    target_utilization: PositiveFloat = 0.7
    """Utilisation that the number of replicas is chosen for."""
    idle_utilization: PositiveFloat = 0.5
    """Utilisation below which replicas are idle: requests are then late because they are long, and
    more replicas do not help. There are too many if, with fewer, the busiest part of `idle_s` would
    have stayed below it."""
    idle_s: PositiveFloat = 600.0
    """Time after which idle replicas are too many."""
    out_cooldown_s: PositiveFloat = 120.0
    """Least time after a change before late requests make the number grow: replicas take a while to
    start."""
    in_cooldown_s: PositiveFloat = 300.0
    """Least time after a change before the number shrinks."""
    max_step: Annotated[float, above(1)] = 2.0
    """Largest factor by which late requests make the number of replicas grow at once."""
    min_replicas: PositiveInt = 1
    """Least number of replicas of any model in any region."""
    max_replicas: PositiveInt = 1000
    """Largest number."""

    def __post_init__(self) -> None:
        if self.idle_utilization >= self.target_utilization:
            raise ConfigError(
                f"autoscale.idle_utilization is {self.idle_utilization} and target_utilization "
                f"{self.target_utilization}; leave room between, or the number swings"
            )
        if self.max_replicas < self.min_replicas:
            raise ConfigError(
                f"autoscale.max_replicas is {self.max_replicas}, below min_replicas "
                f"{self.min_replicas}; raise it"
            )
