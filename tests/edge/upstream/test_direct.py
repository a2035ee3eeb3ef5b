"""Streams to replicas that cannot be reached, refuse, or are too many: nobody waits for them, and
what is kept of them is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from outrider.errors import OutriderError
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually, free_tcp_port, leak_check
from outrider.v1 import inference_pb2
from services.edge.upstream import direct
from services.edge.upstream.direct import DirectPaths, DirectSession


class Chat:
    """What a chat would hear."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.lost: list[OutriderError] = []
        self.num_cancelled = 0

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        self.kinds.append(frame.WhichOneof("kind") or "")

    def region_lost(self, error: OutriderError) -> None:
        self.lost.append(error)

    def cancel(self) -> None:
        self.num_cancelled += 1


@asynccontextmanager
async def paths() -> AsyncIterator[DirectPaths]:
    metrics = Metrics("edge")
    async with leak_check():
        it = DirectPaths(metrics, max_queued_frames=4, rng=Random(1), connect_s=20.0)
        yield it
        await it.stop()
        metrics.close()


def granted(it: DirectPaths, chat: Chat, address: str) -> DirectSession:
    session = it.wrap(chat, chat.cancel)
    grant = inference_pb2.DirectGrant(address=address, ticket=b"t" * 16)
    opened = inference_pb2.SessionOpened(region="us", direct=grant)
    session.region_frame(inference_pb2.SessionDown(opened=opened))
    return session


def commit(base: int) -> inference_pb2.SessionDown:
    return inference_pb2.SessionDown(commit=inference_pb2.Commit(base=base, upto=base + 1, id=7))


async def test_a_replica_that_cannot_be_reached_costs_nothing() -> None:
    address = f"127.0.0.1:{free_tcp_port()}"
    async with paths() as it:
        chat = Chat()
        session = granted(it, chat, address)
        assert len(it) == 1 and not session.is_direct
        session.region_frame(commit(0))
        await eventually(lambda: len(it) == 0)
        session.region_frame(commit(1))
        granted(it, Chat(), address)
        assert len(it) == 0, "not again so soon"
        session.region_frame(inference_pb2.SessionDown(done=inference_pb2.SessionDone(upto=2)))
        assert chat.kinds == ["opened", "commit", "commit", "done"]
        assert not chat.lost and not chat.num_cancelled


async def test_a_replica_that_switches_what_this_edge_gave_up_is_not_believed() -> None:
    """Its commits went nowhere: the session is opened again, once, and ended where it was."""
    async with paths() as it:
        chat = Chat()
        session = granted(it, chat, f"127.0.0.1:{free_tcp_port()}")
        session.region_frame(commit(0))
        await eventually(lambda: len(it) == 0)
        marker = inference_pb2.SessionDirect(upto=1)
        for _ in range(2):
            session.region_frame(inference_pb2.SessionDown(direct=marker))
        session.region_frame(commit(1))
        assert len(chat.lost) == 1 and chat.num_cancelled == 1
        assert chat.kinds == ["opened", "commit"]


async def test_the_links_of_an_edge_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MAX_LINKS", 3)
    async with paths() as it:
        for number in range(10):
            granted(it, Chat(), f"127.0.0.1:{free_tcp_port()}")
            assert len(it) == min(number + 1, 3)
        await eventually(lambda: len(it) == 0)


async def test_an_address_beyond_this_machine_needs_certificates() -> None:
    async with paths() as it:
        chat = Chat()
        granted(it, chat, "192.0.2.1:7300")
        await eventually(lambda: len(it) == 0)
        assert chat.kinds == ["opened"] and not chat.lost
