"""Classes of sessions and what is promised to each. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import IntEnum

from outrider.errors import ConfigError
from outrider.session_types import Priority


class Lane(IntEnum):
    """Lines of the queue, the last one first: the classes, and who goes before all of them."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    STARTED = 4
    """Sessions that were let in before and lost their replica: never refused for lack of room."""


ROOM = 0.5
"""Part of the objective of its class that a session from the queue may find taken up on a replica:
the rest is for its own prompt. Less would let replicas run out of work between two reports."""

AGED_TURN = 8
"""Of so many sessions that leave the queue one is of a class that waited for `ageing_s`."""


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """What the operator promises (`[router.admission]`). Raises ConfigError."""

    slo_ttft_high_ms: float = 500.0
    """Objective for the time to the first token of HIGH sessions: who can meet it goes to a replica
    at once, and who cannot while some replica has no more than half of that ahead of it."""
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
    max_outranking_per_address: int = 4
    """Sessions that clients without a key may have open from one address prefix (IPv4 /32, IPv6
    /56) at the class they ask for while others are there; further ones are LOW, and outrank
    nobody."""

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
        """Work ahead on a replica, of the class and those above it, up to which a session of this
        line is added to it though it will be late."""
        return math.inf if lane is Lane.STARTED else ROOM * self.slo_ms(Priority(lane))
