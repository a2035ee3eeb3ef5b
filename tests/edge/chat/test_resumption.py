"""Chats that nobody comes back to, on the loop that edges run on."""

from __future__ import annotations

import asyncio

import uvloop

from outrider.sampling.params import SamplingParams
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from services.edge.access.identity import Identity
from services.edge.chat.replay import ReplayCursor, ReplayLog
from services.edge.chat.resumption import Entry, ResumableChats
from services.edge.chat.resumption_table import ResumeLimits
from services.edge.chat.stream import RequestStream
from services.edge.session.events import ChatRequest, ClientGone, Input
from services.edge.telemetry.edge import EdgeTelemetry


class Ending:
    """A chat that ends when its client is given up, and says so."""

    is_placed = True

    def __init__(self, chats: ResumableChats, number: int) -> None:
        self._chats = chats
        self.closed = False
        identity = Identity(owner=b"o", client=b"c")
        request = ChatRequest(str(number), "m", (), SamplingParams())
        log = ReplayLog()
        self.entry: Entry = chats.add(request, identity, log, self)

    def token_arrived(self) -> None:
        """Its client has no token."""

    def feed(self, item: Input) -> None:
        """It ends."""
        if isinstance(item, ClientGone) and not self.closed:
            self.closed = True
            self._chats.ended(self.entry)

    def client_lost(self) -> None:
        """It waits for its client."""
        self._chats.lost(self.entry)

    def join(
        self, stream: RequestStream, cursor: ReplayCursor, provisional: bool, run: int
    ) -> None:
        """Nobody comes."""


def test_chats_whose_time_is_over_at_once_all_end() -> None:
    """A timer for a time that is past is none to uvloop."""

    async def given_up() -> None:
        metrics = Metrics("edge")
        resumable = ResumableChats(ResumeLimits(window_s=1e-9), EdgeTelemetry(metrics))
        chats = [Ending(resumable, number) for number in range(20)]
        for chat in chats:
            chat.client_lost()
        await eventually(lambda: all(chat.closed for chat in chats))
        metrics.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(given_up())
