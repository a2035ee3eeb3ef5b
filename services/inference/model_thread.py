"""The model thread as the event loop sees it: its inputs, and its report after each tick.

`runner.py` is the thread. Sessions, the KV tiers and the service of KV for other replicas use only
this interface.
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
    """Results of one tick of the model thread."""

    events: tuple[Event, ...]
    load: SchedulerLoad
    num_scheduled: int
    """Sessions in the engine call; 0 without one."""
    overhead_ms: float = 0.0
    """CPU time in milliseconds of the model thread outside the engine's calls, from the start of
    this call to the start of the next, or to the point at which there is no next one. Overlapped
    work counts as the call's."""
    blocks: tuple[BlockEvent, ...] = ()
    """Changes of the prefix cache."""
    problem: str = ""
    """Why the replica takes no sessions; empty while it does."""
    over: bool = False
    """Whether the thread has ended; all remaining sessions are lost."""
    busy_s: float = 0.0
    """Seconds that the engine computed in this call, and in earlier ones that no tick has
    reported."""
    idle_s: float = 0.0
    """Seconds that the engine waited for this thread meanwhile, while there were sessions to
    serve."""


class ModelThread(Protocol):
    """Interface to the model thread. Its methods never block: the thread takes their input with the
    next tick and reports the results as events of a ModelTick."""

    def open(self, request: OpenRequest) -> None:
        """Hand in a session. Raises UnavailableError or OverloadedError; an error of the request
        itself is reported as Failed."""

    def draft(self, session: int, draft: Draft) -> bool:
        """Hand in an edge's drafts; False if they were dropped, which only costs speed."""
        ...

    def cancel(self, session: int) -> None:
        """End a session; Finished is reported unless it has ended already."""

    def load_blocks(self, command: LoadBlocks) -> bool:
        """Hand in KV for a session's prompt; False if it was dropped, which only costs speed."""
        ...

    async def export_blocks(
        self, hashes: tuple[bytes, ...], *, takes_inexact: bool = False
    ) -> list[ExportedBlock]:
        """The KV of those blocks of one prefix (hashes from the last block back) that are cached,
        without inexact ones unless it `takes_inexact`, copied while the engine computes; empty if
        the thread has ended or too much waits."""
        ...

    async def pin_blocks(self, hashes: tuple[bytes, ...]) -> list[NamedBlock]:
        """Pin those blocks of one prefix (hashes from the last block back) that are cached; returns
        them."""
        ...

    async def keep_blocks(
        self, cache_salt: bytes, ids: tuple[int, ...], blocks: tuple[tuple[int, bytes], ...] = ()
    ) -> int | None:
        """Keep KV of a prefix ahead of need: blocks by their index, in order. Returns how many
        leading blocks of the ids are cached then; None if there is no room for such."""
        ...

    async def take_learnt(self) -> list[tuple[bytes, Learnt]]:
        """Copies of the statistics that groups' replies have changed since the last call; empty if
        the thread has ended or is overloaded."""
        ...
