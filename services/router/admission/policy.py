"""Classes of sessions and what is promised to each. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import IntEnum

from outrider.errors import ConfigError


class Priority(IntEnum):
    """Classes of sessions; the numbers are the wire's."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


class Lane(IntEnum):
    """Lines of the queue, the last one first: the classes, and who goes before all of them."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    STARTED = 4
    """Sessions that were let in before and lost their replica: never refused for lack of room."""


HEADROOM = {Lane.LOW: 0.5, Lane.MEDIUM: 0.75, Lane.HIGH: 1.0, Lane.STARTED: math.inf}
"""How much of the HIGH objective the work ahead on a replica may take up for a session to be added
to it. What is left of it belongs to the classes above, so that they find room when they come."""

AGED_TURN = 8
"""Of so many sessions that leave the queue one is of a class that waited for `ageing_s`."""


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """What the operator promises (`[router.admission]`). Raises ConfigError."""

    slo_ttft_high_ms: float = 500.0
    """Objective for the time to the first token of HIGH sessions. A session stays in the nearest
    region while that can meet it, in the queue or on a replica; else another region gets it."""
    slo_ttft_medium_ms: float = 1000.0
    """The same for MEDIUM ones."""
    slo_ttft_low_ms: float = 5000.0
    """The same for LOW ones."""
    max_wait_high_s: float = 5.0
    """Longest wait of a HIGH session in the router's queue; one that would wait longer, or does, is
    refused."""
    max_wait_medium_s: float = 20.0
    """The same for MEDIUM ones."""
    max_wait_low_s: float = 60.0
    """The same for LOW ones."""
    max_waiting: int = 1024
    """Sessions in the router's queue; beyond it LOW ones make room for others."""
    ageing_s: float = 10.0
    """A class that waited so long gets a turn among those above it, one in eight."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"admission.{spec.name} is {value}: set it above 0.")
        for below, above in (("high", "medium"), ("medium", "low")):
            if self.slo_ms(Priority[below.upper()]) > self.slo_ms(Priority[above.upper()]):
                raise ConfigError(
                    f"admission.slo_ttft_{below}_ms is larger than slo_ttft_{above}_ms: promise "
                    "higher classes shorter times."
                )

    def slo_ms(self, priority: Priority) -> float:
        """Objective of a class for the time to the first token."""
        return (self.slo_ttft_low_ms, self.slo_ttft_medium_ms, self.slo_ttft_high_ms)[priority - 1]

    def max_wait_s(self, priority: Priority) -> float:
        """How long a class waits in the queue at most."""
        return (self.max_wait_low_s, self.max_wait_medium_s, self.max_wait_high_s)[priority - 1]

    def backlog_ms(self, lane: Lane) -> float:
        """Work ahead on a replica up to which a session of this line is added to it."""
        return HEADROOM[lane] * self.slo_ttft_high_ms
