"""What the conductor aims at. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ConductorPolicy:
    """When a region should have more or fewer replicas (`[router.conductor]`). Raises ConfigError.

    A share of late requests decides that there are too few, utilisation how many there should be;
    little utilisation over a long time that there are too many.
    """

    slo_ttft_ms: float = 120.0
    """A request whose first token took longer is late. The way to the replica does not count: no
    number of replicas makes it shorter."""
    max_late_share: float = 0.05
    """With more late requests than this, and the replicas not idle, there are too few."""
    window_s: float = 60.0
    """Time over which requests are counted and utilisation is averaged."""
    min_requests: int = 20
    """Fewer in the window say nothing."""
    target_utilization: float = 0.7
    """What the utilisation should come to."""
    idle_utilization: float = 0.35
    """Below it replicas are idle: then requests are late for being long, and more do not help."""
    idle_s: float = 600.0
    """Idle for so long, there are too many."""
    out_cooldown_s: float = 120.0
    """Least time after a change before there are to be more: replicas take a while to start."""
    in_cooldown_s: float = 300.0
    """Least time after a change before there are to be fewer."""
    max_step: float = 2.0
    """Most that the number grows by at once, as a factor."""
    min_replicas: int = 1
    """Never fewer, of any model in any region."""
    max_replicas: int = 1000
    """Never more."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"conductor.{spec.name} is {value}: set it above 0.")
        if self.max_late_share >= 1:
            raise ConfigError(f"conductor.max_late_share is {self.max_late_share}: set it below 1.")
        if self.idle_utilization >= self.target_utilization:
            raise ConfigError(
                f"conductor.idle_utilization is {self.idle_utilization} and target_utilization "
                f"{self.target_utilization}: leave room between, or the number swings."
            )
        if self.max_step <= 1:
            raise ConfigError(f"conductor.max_step is {self.max_step}: set it above 1.")
        if self.max_replicas < self.min_replicas:
            raise ConfigError(
                f"conductor.max_replicas is {self.max_replicas}, below min_replicas "
                f"{self.min_replicas}: raise it."
            )
