"""Calls to one replica, of which so many are under way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from outrider.errors import OutriderError
from outrider.fair_work.places import FairPlaces
from outrider.fair_work.turns import Requester
from outrider.testing import eventually
from outrider.v1 import embedding_pb2
from services.router.embedding.calls import CallAtOnce, Peer


class Replica:
    """Answers a call once it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()

    async def EmbedAtOnce(
        self, request: embedding_pb2.EmbedAtOnceRequest
    ) -> embedding_pb2.EmbedAtOnceResponse:
        self.asked.append(request.open.request_id)
        await self.may_answer.wait()
        vectors = embedding_pb2.Vectors(ids=[1], num_tokens=[3])
        answer = embedding_pb2.EmbedResponse(vectors=vectors)
        return embedding_pb2.EmbedAtOnceResponse(answers=[answer])


class Caller:
    """A request of one input."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requester = Requester(name)
        self.num_answers = 0
        self.had_them: bool | None = None

    def opening(self) -> embedding_pb2.OpenEmbed:
        return embedding_pb2.OpenEmbed(request_id=self.name)

    def answered(self, replica: str, answer: embedding_pb2.EmbedResponse) -> None:
        self.num_answers += 1

    def lost(self, replica: str, why: OutriderError, *, had_them: bool) -> None:
        self.had_them = had_them

    def refused(self, replica: str, error: OutriderError) -> None:
        raise AssertionError(error)


async def test_further_calls_wait_for_those_under_way() -> None:
    replica: Any = Replica()
    channel: Any = SimpleNamespace()
    peer = Peer(channel, replica, FairPlaces(2, 2))
    callers = [Caller(name) for name in "abcd"]
    calls = [CallAtOnce(it, "r", peer, [embedding_pb2.EmbedInput(id=1)]) for it in callers]
    await eventually(lambda: replica.asked == ["a", "b"])
    calls[2].task.cancel()  # its client left while it waited
    replica.may_answer.set()
    await asyncio.gather(*(it.task for it in calls), return_exceptions=True)
    assert replica.asked == ["a", "b", "d"]
    assert [it.num_answers for it in callers] == [1, 1, 0, 1]
