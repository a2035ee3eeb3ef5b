"""The model thread as the event loop sees it: what it takes, and what it tells after each tick.

`runner.py` is the thread. Sessions, the KV tiers and the service of KV for other replicas know this
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outrider.session.region import Draft
from outrider.speculation.learnt import Learnt
from services.inference.kv.events import BlockEvent
from services.inference.kv.pool import NamedBlock
from services.inference.kv_transfer import ExportedBlock, LoadBlocks
from services.inference.scheduler.types import Event, OpenRequest, SchedulerLoad


@dataclass(frozen=True, slots=True)
class ModelTick:
    """What one tick of the model thread brought."""

    events: tuple[Event, ...]
    load: SchedulerLoad
    num_scheduled: int
    """Sessions in the engine call; 0 without one."""
    overhead_ms: float = 0.0
    """CPU time of the model thread outside the engine's calls, from the beginning of this one to
    that of the next, or to when there is none. Overlapped work counts as the call's."""
    blocks: tuple[BlockEvent, ...] = ()
    """What changed in the prefix cache."""
    problem: str = ""
    """Why the replica takes no sessions; empty while it does."""
    over: bool = False
    """Whether the thread has ended; every session that is left is lost."""
    busy_s: float = 0.0
    """Seconds that the engine computed in this call and in those before it that no tick told of."""
    idle_s: float = 0.0
    """Seconds that it waited for this thread meanwhile, with sessions to serve."""


class ModelThread(Protocol):
    """Never waited for: what is handed in is taken with the next tick, and what comes of a session
    is told in the events of a ModelTick."""

    def open(self, request: OpenRequest) -> None:
        """Hand in a session. Raises UnavailableError or OverloadedError; whatever is wrong with
        the request itself comes back as Failed."""

    def draft(self, session: int, draft: Draft) -> bool:
        """Hand in an edge's drafts; False if they were dropped, which costs nothing but speed."""
        ...

    def cancel(self, session: int) -> None:
        """End a session; Finished comes back unless it is gone already."""

    def load_blocks(self, command: LoadBlocks) -> bool:
        """Hand in KV for a session's prompt; False if it was dropped, which costs nothing but
        speed."""
        ...

    async def export_blocks(self, hashes: tuple[bytes, ...]) -> list[ExportedBlock]:
        """The KV of blocks of one prefix, the last one named first, as far as they are cached:
        copied while the engine computes. None where the thread has ended or too much waits."""
        ...

    async def pin_blocks(self, hashes: tuple[bytes, ...]) -> list[NamedBlock]:
        """Keep the blocks of one prefix, the last one named first, from now on; those of them that
        are cached."""
        ...

    async def take_learnt(self) -> list[tuple[bytes, Learnt]]:
        """Copies of what groups' replies taught since the last time; none where the thread has
        ended or has too much to do."""
        ...
