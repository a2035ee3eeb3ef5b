"""What a fleet asks of a simulated replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench.scale.demand import BLOCK_TOKENS, VOCABULARY_SIZE, Ask
from outrider.engines.base import EngineInfo
from services.inference.kv.events import BlockEvent
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import Load

NUM_BLOCKS = 640
"""KV blocks of a replica: 20,480 tokens, 450 MiB with the default model. Some twenty shared
prompts beside sixteen running sessions."""
LIMITS = SchedulerLimits(max_queue=512)
INFO = EngineInfo(
    name="virtual",
    vocabulary_size=VOCABULARY_SIZE,
    block_tokens=BLOCK_TOKENS,
    num_blocks=NUM_BLOCKS,
    block_bytes=BLOCK_TOKENS * 23_040,
    max_context_tokens=2048,
    min_rows=2,
    scratch_tokens=1,
    num_candidates=1,
)


@dataclass(frozen=True, slots=True)
class Hooks:
    """Whom a replica tells, at the moment itself."""

    committed: Callable[[Ask, int], None]
    """So many more tokens of the reply are there."""
    finished: Callable[[Ask], None]
    refused: Callable[[Ask, str], None]
    """It will not be served here, and why."""


class Replica(Protocol):
    """One simulated replica; it goes on by itself on the fleet's clock."""

    def open(self, ask: Ask) -> None:
        """Serve it; tokens committed before are part of the prompt."""

    def load(self) -> Load:
        """As a router is told."""

    def take_blocks(self) -> tuple[BlockEvent, ...]:
        """What changed in its prefix cache since the last take."""

    def kill(self) -> None:
        """It is gone, and nothing is told to anybody; start anew with another one."""
