"""Chats that nobody comes back to, on the loop that edges run on."""

from __future__ import annotations

import asyncio

import uvloop

from outrider.sampling.params import SamplingParams
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from services.edge.identity import Identity
from services.edge.resumption.audience import Audience
from services.edge.resumption.held import ResumeLimits
from services.edge.resumption.journal import Listener
from services.edge.resumption.reception import HeldEntry, Reception, RequestStream
from services.edge.session.events import ChatRequest, ClientGone, Input
from services.edge.telemetry import EdgeTelemetry


class Ending:
    """A chat that ends when its client is given up, and says so to the reception."""

    awaits_request = False

    def __init__(self, reception: Reception, number: int) -> None:
        self._reception = reception
        self.closed = False
        identity = Identity(owner=b"o", client=b"c")
        request = ChatRequest(str(number), "m", (), SamplingParams())
        journal = Audience(Silent(), lambda event: b"").journal
        self.held: HeldEntry = reception.enter(request, identity, journal, self)

    def receive(self, payload: bytes) -> None:
        """Nothing comes."""

    def feed(self, item: Input) -> None:
        """It ends."""
        if isinstance(item, ClientGone) and not self.closed:
            self.closed = True
            self._reception.ended(self.held)

    def client_lost(self) -> None:
        """It waits for its client."""
        self._reception.lost(self.held)

    def join(self, stream: RequestStream, listener: Listener, provisional: bool) -> None:
        """Nobody comes."""


class Silent:
    """A stream that takes everything."""

    def send(self, payload: bytes) -> None:
        """It is not read."""

    def end(self, last: bytes = b"") -> None:
        """Nor this."""


def test_chats_whose_time_is_over_at_once_all_end() -> None:
    """A timer for a time that is past is none to uvloop."""

    async def given_up() -> None:
        metrics = Metrics("edge")
        reception = Reception(ResumeLimits(window_s=1e-9), EdgeTelemetry(metrics, "m"))
        chats = [Ending(reception, number) for number in range(20)]
        for chat in chats:
            chat.client_lost()
        await eventually(lambda: all(chat.closed for chat in chats))
        metrics.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(given_up())
