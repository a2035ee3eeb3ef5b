"""The switch's side towards the edges: the outbox of each stream, and when it closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.errors import OutriderError, OverloadedError
from outrider.v1 import inference_pb2, router_pb2
from outrider.wire import errors as wire_errors
from services.router.placement.request import RETRY_DELAY_MS

if TYPE_CHECKING:
    from outrider.rpc import Outbox

Down = router_pb2.RouteResponse


class Edges:
    """Open edge streams, by the session table's numbers."""

    def __init__(self) -> None:
        self._outboxes: dict[int, Outbox[Down]] = {}
        self._half_closed: set[int] = set()

    def attach(self, edge: int, outbox: Outbox[Down]) -> None:
        """A new edge stream."""
        self._outboxes[edge] = outbox

    def half_close(self, edge: int) -> None:
        """The edge sends nothing more."""
        self._half_closed.add(edge)

    def detach(self, edge: int) -> None:
        """An edge stream ended."""
        self._half_closed.discard(edge)
        del self._outboxes[edge]

    def send(self, edge: int, response: Down, *, last: bool) -> bool:
        """Queue a frame; False if that edge's buffer is full."""
        return self._outboxes[edge].offer(response, last=last)

    def answer(self, edge: int, number: int, error: OutriderError) -> None:
        """End a session of the edge's."""
        frame = inference_pb2.SessionDown(session=number, error=wire_errors.to_detail(error))
        self._outboxes[edge].offer(Down(frame=frame), last=True)

    def is_half_closed(self, edge: int) -> bool:
        """Whether the stream ends with the last of its sessions."""
        return edge in self._half_closed

    def end(self, edge: int) -> None:
        """End a stream after what is queued for it."""
        self._outboxes[edge].close()

    def close(self) -> None:
        """End every stream after what is queued for it."""
        for outbox in self._outboxes.values():
            outbox.close()


def unread() -> OverloadedError:
    """Why the sessions of an edge end that leaves too much unread."""
    return OverloadedError(
        "This stream is not read and its buffer is full: read faster or open less.",
        retry_delay_ms=RETRY_DELAY_MS,
    )
