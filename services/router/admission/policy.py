"""Settings of admission control: objectives, longest waits and queue size of each class, and models
that are scaled to zero. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from outrider.bounds import NonNegativeInt, PositiveFloat, PositiveInt
from outrider.errors import ConfigError
from outrider.session.types import Priority


class QueuePriority(IntEnum):
    """Priorities of the router's queue: the three classes, and above them resumed sessions."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    RESUMED = 4
    """Sessions that lost their replica or router: they have room in the queue of their own."""


BACKLOG_SHARE = 0.5
"""Share of its class's objective that a session from the queue may find as backlog on a replica;
the rest is for its own prompt. Less would let replicas run out of work between two load reports."""

AGED_TURN_INTERVAL = 8
"""One of so many sessions that leave the queue is of a class that has waited for `ageing_s`."""


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """Admission control (`[router.admission]`). Raises ConfigError."""

    slo_ttft_high_ms: PositiveFloat = 500.0
    """Objective for the time to first token of HIGH sessions. One goes to a replica at once if it
    is predicted to meet it, or if some replica has no more than half of it as backlog."""
    slo_ttft_medium_ms: PositiveFloat = 1000.0
    """The same for MEDIUM sessions."""
    slo_ttft_low_ms: PositiveFloat = 5000.0
    """The same for LOW sessions."""
    max_wait_high_s: PositiveFloat = 5.0
    """Longest wait of a HIGH session in the router's queue. It is refused when the wait is
    predicted to be longer, or has been."""
    max_wait_medium_s: PositiveFloat = 20.0
    """The same for MEDIUM sessions."""
    max_wait_low_s: PositiveFloat = 60.0
    """The same for LOW sessions."""
    max_waiting: PositiveInt = 1024
    """Sessions of one model in the router's queue; when they are so many, waiting LOW ones of that
    model are shed first. Other models have their own room, and so have as many sessions that lost
    their router."""
    ageing_s: PositiveFloat = 10.0
    """A class whose oldest session has waited this many seconds gets one of every eight turns."""
    max_above_low_per_address: PositiveInt = 4
    """Sessions above LOW that clients without a key may have open from one address prefix (IPv4
    /32, IPv6 /56) while other clients are there; further ones are LOW."""

    def __post_init__(self) -> None:
        for below, above in (("high", "medium"), ("medium", "low")):
            if self.slo_ms(Priority[below.upper()]) > self.slo_ms(Priority[above.upper()]):
                raise ConfigError(
                    f"admission.slo_ttft_{below}_ms is larger than slo_ttft_{above}_ms; promise "
                    "higher classes shorter times"
                )

    def slo_ms(self, priority: Priority) -> float:
        """Objective of a class for the time to first token."""
        return (self.slo_ttft_low_ms, self.slo_ttft_medium_ms, self.slo_ttft_high_ms)[priority - 1]

    def max_wait_s(self, priority: Priority) -> float:
        """Longest wait of a class in the queue."""
        return (self.max_wait_low_s, self.max_wait_medium_s, self.max_wait_high_s)[priority - 1]

    def max_backlog_ms(self, priority: QueuePriority) -> float:
        """Longest backlog on a replica, counting this priority and above, at which a session is
        still sent there although its first token will miss the objective."""
        if priority is QueuePriority.RESUMED:
            return math.inf
        return BACKLOG_SHARE * self.slo_ms(Priority(priority))


@dataclass(frozen=True, slots=True)
class WakeUpPolicy:
    """Models that are scaled to zero (`[router.wake_up]`): while none of its replicas takes
    sessions, chats of such a model wait for one to be started. Raises ConfigError."""

    models: tuple[str, ...] = ()
    """Their names. Chats of any other model are refused at once if it has no replica."""
    max_wait_s: PositiveFloat = 300.0
    """Longest wait of a chat that came while there was no replica, in seconds. If its class may
    wait longer for room, that applies."""

    def __post_init__(self) -> None:
        if "" in self.models:
            raise ConfigError("wake_up.models has an empty name; name models that replicas serve")


@dataclass(frozen=True, slots=True)
class LengthPolicy:
    """Lower classes for long prompts (`[router.lengths]`). Raises ConfigError."""

    medium_above_tokens: NonNegativeInt = 0
    """A longer prompt is at most MEDIUM; 0: no limit."""
    low_above_tokens: NonNegativeInt = 0
    """A longer prompt is LOW; 0: no limit."""

    def __post_init__(self) -> None:
        if 0 < self.low_above_tokens < self.medium_above_tokens:
            raise ConfigError(
                "lengths.low_above_tokens is below medium_above_tokens; no prompt would be MEDIUM "
                "for its length"
            )

    def highest(self, prompt_tokens: int) -> Priority:
        """The highest class that a prompt of so many tokens may have."""
        if self.low_above_tokens and prompt_tokens > self.low_above_tokens:
            return Priority.LOW
        if self.medium_above_tokens and prompt_tokens > self.medium_above_tokens:
            return Priority.MEDIUM
        return Priority.HIGH
