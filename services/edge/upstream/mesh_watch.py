"""What a router says of the mesh, asked once for all who watch."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from outrider.errors import OverloadedError
from outrider.mesh_state import State
from outrider.shared_calls import SharedCalls
from services.edge.upstream.link import RouterLink
from services.edge.upstream.pool import RouterPool

INTERVAL_S: Final = 1.0
"""Time between two questions to the router, however many watch."""
_RETRY_MS: Final = 5000


@dataclass(frozen=True, slots=True)
class MeshSnapshot:
    """The mesh as a router saw it."""

    at: float
    """Seconds since 1970."""
    state: State
    """As `outrider.mesh_state.mesh_as_dict` makes it, without addresses and tenants' names."""


class MeshWatch:
    """Asks one router, the same as long as it is there, for only what it saw itself adds up. Kept
    is the last answer alone. Belongs to one event loop."""

    def __init__(
        self,
        upstream: RouterPool,
        max_watchers: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_watchers`: most that watch at once. One tenant has at most half of these places."""
        self._upstream = upstream
        self._max_watchers = max_watchers
        self._clock = clock
        self._watchers: Counter[str] = Counter()
        """By origin."""
        self._asking: SharedCalls[None, MeshSnapshot] = SharedCalls(for_nobody=False)
        self._last: tuple[float, MeshSnapshot] | None = None
        """When it was asked for, on `clock`, and the answer."""
        self._address = ""
        """The router that was asked last."""

    @property
    def num_watchers(self) -> int:
        """Those who watch now."""
        return self._watchers.total()

    @contextlib.contextmanager
    def watching(self, origin: str) -> Iterator[None]:
        """A place among the watchers. Raises OverloadedError if there is none."""
        most_each = max(1, self._max_watchers // 2)
        if self.num_watchers >= self._max_watchers or self._watchers[origin] >= most_each:
            raise OverloadedError(
                f"{self.num_watchers} pages watch the mesh already, of {self._max_watchers}, and "
                f"one tenant has at most {most_each}; close one (edge.http.max_mesh_watchers)",
                retry_delay_ms=_RETRY_MS,
            )
        self._watchers[origin] += 1
        try:
            yield
        finally:
            self._watchers[origin] -= 1
            if not self._watchers[origin]:
                del self._watchers[origin]

    async def look(self) -> MeshSnapshot:
        """What a router says, no longer ago than INTERVAL_S. Raises UnavailableError, and
        PermissionDeniedError if the router does not tell edges."""
        if self._last is not None and self._clock() < self._last[0] + INTERVAL_S:
            return self._last[1]
        return await self._asking.result(None, self._ask)

    async def _ask(self) -> MeshSnapshot:
        asked_at = self._clock()
        snapshot = MeshSnapshot(time.time(), await self._router().describe_mesh())
        self._last = asked_at, snapshot
        return snapshot

    def _router(self) -> RouterLink:
        for link in self._upstream.links:
            if link.address == self._address and link.is_up:
                return link
        link = self._upstream.pick()
        self._address = link.address
        return link
