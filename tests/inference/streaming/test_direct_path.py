"""Commits straight to an edge, on real gRPC: a peer that opens sessions as routers do, and one that
attaches them as edges do."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.engines.fake import FakeEngine
from outrider.errors import CancelledError
from outrider.rpc import from_rpc_error
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import direct_pb2, direct_pb2_grpc, inference_pb2
from outrider.wire import ids_of
from services.inference import direct_service
from services.inference.direct_service import DirectStream
from services.inference.streaming import direct_path, wire
from tests.inference.harness import CODER, Peer, Running, reference, running

TEXT = SamplingParams(max_tokens=120, ignore_eos=True)
LONG = SamplingParams(max_tokens=1500, ignore_eos=True)
ENOUGH = 10_000
"""Calls for every session of a test."""
WISH = inference_pb2.DirectWish()


class SteppedEngine(FakeEngine):
    """Computes as many calls as the test allows."""

    def __init__(self, num_calls: int = 0) -> None:
        super().__init__()
        self.allowed = threading.Semaphore(num_calls)

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        overlapped_work()
        if not self.allowed.acquire(timeout=60):
            raise RuntimeError("nobody allowed a call")
        return super().step(slices)


class Edge:
    """One Attach stream."""

    def __init__(self, it: Running) -> None:
        stub: direct_pb2_grpc.DirectServiceAsyncStub
        stub = direct_pb2_grpc.DirectServiceStub(it.channel)
        self.call: Any = stub.Attach()
        self.ids: list[int] = []
        self._numbers = itertools.count(1)

    async def send(self, frame: inference_pb2.SessionUp) -> None:
        await self.call.write(direct_pb2.AttachRequest(frames=[frame]))

    async def attach(self, ticket: bytes, number: int = 0) -> int:
        number = number or next(self._numbers)
        attach = inference_pb2.AttachSession(ticket=ticket)
        await self.send(inference_pb2.SessionUp(session=number, attach=attach))
        return number

    async def next(self) -> list[inference_pb2.SessionDown]:
        response = await self.call.read()
        assert isinstance(response, direct_pb2.AttachResponse), "the stream is over"
        return list(response.frames)

    async def read_upto(self, base: int, upto: int) -> list[int]:
        """The tokens from `base` on, each once."""
        ids: list[int] = []
        while base + len(ids) < upto:
            for frame in await self.next():
                assert frame.commit.base == base + len(ids)
                assert not frame.commit.accepted_ids, "the edge has its own drafts"
                ids += ids_of(frame.commit, CODER, max_count=4096)
        return ids


def counted(it: Running, result: str) -> float:
    labels = {"result": result}
    return (
        it.metrics.registry.get_sample_value("outrider_direct_attached_sessions_total", labels)
        or 0.0
    )


@asynccontextmanager
async def direct(it: Running) -> AsyncIterator[Edge]:
    edge = Edge(it)
    yield edge
    edge.call.cancel()
    await eventually(lambda: it.replica.direct_service.num_streams == 0)


async def opened(peer: Peer, number: int, sampling: SamplingParams = TEXT, **fields: Any) -> bytes:
    """The ticket of a session that a router opened."""
    await peer.open(number, [5, 6], sampling, direct=WISH, **fields)
    frame = await peer.next(number)
    assert len(frame.opened.direct.ticket) == 16
    return frame.opened.direct.ticket


async def attached(it: Running, edge: Edge, ticket: bytes) -> None:
    await edge.attach(ticket)
    await eventually(lambda: len(it.replica.table.direct_paths) == 0)


async def rest(peer: Peer, number: int) -> tuple[list[inference_pb2.SessionDown], int]:
    """What its router still gets, and the token behind which commits go elsewhere."""
    frames = [await peer.next(number)]
    while frames[-1].WhichOneof("kind") not in ("done", "error"):
        frames.append(await peer.next(number))
    (marker,) = [frame.direct.upto for frame in frames if frame.HasField("direct")]
    return frames, marker


@pytest.mark.parametrize("behind", [0, 1, 7, 30])
async def test_the_reply_is_whole_wherever_it_switches(behind: int) -> None:
    engine = SteppedEngine(behind)
    async with running(engine) as it, direct(it) as edge:
        router = it.peer()
        ticket = await opened(router, 1)
        while len(router.replies[1].ids) < behind - 1:
            await router.next(1)
        await attached(it, edge, ticket)
        engine.allowed.release(ENOUGH)
        frames, switched = await rest(router, 1)
        ids = router.replies[1].ids[:switched]
        assert len(ids) == switched >= 1, "the router sees the first token"
        assert frames[-1].done.upto == TEXT.max_tokens
        ids += await edge.read_upto(switched, frames[-1].done.upto)
        assert tuple(ids) == tuple(reference([5, 6], TEXT).ids)


async def test_a_router_that_does_not_ask_is_given_no_ticket() -> None:
    async with running() as it:
        router = it.peer()
        await router.open(1, [5, 6], TEXT)
        assert not (await router.next(1)).opened.HasField("direct")
        assert tuple((await router.finish(1)).ids) == tuple(reference([5, 6], TEXT).ids)


async def test_routers_are_told_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_path, "PROGRESS_INTERVAL_S", 1e-9)
    engine = SteppedEngine()
    async with running(engine) as it, direct(it) as edge:
        router = it.peer()
        await attached(it, edge, await opened(router, 1))
        engine.allowed.release(ENOUGH)
        frames, switched = await rest(router, 1)
        told = [frame.progress.upto for frame in frames if frame.HasField("progress")]
        assert told == sorted(set(told)) and told[0] > switched
        assert told[-1] == TEXT.max_tokens


async def test_wrong_used_and_foreign_tickets_are_refused_and_counted() -> None:
    foreign = inference_pb2.DirectWish(edge="edge/us/other")
    engine = SteppedEngine()
    async with running(engine) as it, direct(it) as edge:
        router = it.peer()
        ticket = await opened(router, 1, LONG)
        await attached(it, edge, ticket)
        tickets = [b"", bytes(16), ticket]
        for bad in tickets:
            number = await edge.attach(bad)
            refused = [it for it in await _until(edge, "error") if it.session == number]
            assert refused[-1].error.reason == "PERMISSION_DENIED"
        await router.cancel(1)
        engine.allowed.release(ENOUGH)
        await router.finish(1)
        await router.open(2, [5, 6], LONG, direct=foreign)
        theirs = (await router.next(2)).opened.direct.ticket
        await edge.attach(theirs)
        (refused_frame,) = (f for f in await _until(edge, "error") if f.HasField("error"))
        assert "another edge" in refused_frame.error.message
        await router.cancel(2)
        await router.finish(2)
        assert counted(it, "unknown") == len(tickets)
        assert counted(it, "foreign") == 1
        assert counted(it, "attached") == 1
        assert len(it.replica.table.direct_paths) == 0, "no ticket outlives its session"


async def _until(edge: Edge, kind: str) -> list[inference_pb2.SessionDown]:
    while True:
        frames = await edge.next()
        if any(frame.HasField(kind) for frame in frames):  # type: ignore[arg-type]
            return frames


async def test_an_edge_that_leaves_ends_what_it_was_sent_and_nothing_else() -> None:
    async with running() as it:
        router = it.peer()
        async with direct(it) as edge:
            await edge.attach(await opened(router, 1, LONG))
            await opened(router, 2)
            while not (await router.next(1)).HasField("direct"):
                pass
        frames = [await router.next(1)]
        while frames[-1].WhichOneof("kind") != "error":
            frames.append(await router.next(1))
        assert frames[-1].error.reason == "UNAVAILABLE"
        assert tuple((await router.finish(2)).ids) == tuple(reference([5, 6], TEXT).ids)


async def test_what_is_no_frame_of_an_edge_ends_its_stream() -> None:
    bad = [
        inference_pb2.SessionUp(attach=inference_pb2.AttachSession()),
        inference_pb2.SessionUp(session=1, open=inference_pb2.OpenSession()),
        inference_pb2.SessionUp(session=1, cancel=inference_pb2.CancelSession()),
    ]
    async with running() as it:
        for frame in bad:
            async with direct(it) as edge:
                await edge.send(frame)
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await edge.next()
                assert from_rpc_error(raised.value).reason == "MALFORMED_FRAME"


async def test_streams_are_bounded_and_may_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_service, "MAX_STREAMS", 1)
    async with running() as it, direct(it) as edge:
        await edge.attach(b"no ticket")
        await edge.next()
        async with direct(it) as other:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await other.next()
            assert from_rpc_error(raised.value).reason == "OVERLOADED"
            edge.call.cancel()
    monkeypatch.setattr(direct_service, "FIRST_ATTACH_S", 0.01)
    async with running() as it, direct(it) as idle:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await idle.next()
        assert "attached no session" in from_rpc_error(raised.value).message


async def test_sessions_of_a_stream_are_bounded() -> None:
    async with running(max_stream_sessions=1) as it, direct(it) as edge:
        routers = it.peer(), it.peer()
        tickets = [await opened(router, 1, LONG) for router in routers]
        for ticket in tickets:
            await edge.attach(ticket)
        (refused,) = (f for f in await _until(edge, "error") if f.HasField("error"))
        assert (refused.session, refused.error.reason) == (2, "OVERLOADED")
        for router in routers:
            await router.cancel(1)
            await router.finish(1)


async def test_an_edge_that_does_not_read_holds_no_more_than_its_outbox() -> None:
    async with running(FakeEngine()) as it:
        router = it.peer()
        ticket = await opened(router, 1, LONG)
        stream = DirectStream(it.replica.table, "", max_frames=8, max_sessions=1)
        it.replica.table.direct_paths.attach(ticket, "", stream, 1)
        stream._live[1] = next(iter(it.replica.table._live.values()))
        reply = await router.finish(1)
        assert reply.error is not None and reply.error.reason == "UNAVAILABLE"
        assert stream.outbox.closed and len(stream.outbox) <= 8


async def test_what_is_attached_to_a_stream_that_has_ended_goes_through_its_router() -> None:
    engine, text = SteppedEngine(), SamplingParams(max_tokens=400, ignore_eos=True)
    async with running(engine) as it:
        router = it.peer()
        tickets = [await opened(router, 1, text)]
        await router.open(2, [5, 6], text, direct=WISH)
        await eventually(lambda: len(it.replica.table._live) == 2)
        engine.allowed.release()
        tickets.append((await router.next(2)).opened.direct.ticket)
        stream = DirectStream(it.replica.table, "", max_frames=8, max_sessions=2)
        frames: asyncio.Queue[direct_pb2.AttachRequest] = asyncio.Queue()

        async def requests() -> AsyncIterator[direct_pb2.AttachRequest]:
            while True:
                yield await frames.get()

        def attach(number: int) -> None:
            attach = inference_pb2.AttachSession(ticket=tickets[number - 1])
            frame = inference_pb2.SessionUp(session=number, attach=attach)
            frames.put_nowait(direct_pb2.AttachRequest(frames=[frame]))

        reading = asyncio.create_task(stream.read(requests()))
        attach(1)
        await eventually(lambda: len(it.replica.table.direct_paths) == 1)
        engine.allowed.release(20)
        await eventually(lambda: stream.outbox.closed)
        attach(2)
        await eventually(reading.done)
        engine.allowed.release(ENOUGH)
        lost, whole = await router.finish(1), await router.finish(2)
        assert lost.error is not None and lost.error.reason == "UNAVAILABLE"
        assert whole.error is None and tuple(whole.ids) == tuple(reference([5, 6], text).ids)


async def test_a_session_that_ends_while_its_edge_attaches_leaves_nothing_behind() -> None:
    """Its router is told, does not read, and loses its stream."""
    engine = SteppedEngine()
    async with running(engine) as it:
        router, table = it.peer(), it.replica.table
        ticket = await opened(router, 1, LONG)
        (session,) = table._live.values()
        assert session.direct is not None
        engine.allowed.release(2)
        assert (await router.next(1)).HasField("commit")

        class Leaving:
            """A stream to a router that ends by what it is sent."""

            def send(self, frame: wire.Down) -> None:
                table.abandon(session, CancelledError("the router does not read"))

            def ended(self, number: int) -> None:
                """There is nothing more to end."""

        session.direct._router = Leaving()
        stream = DirectStream(table, "", max_frames=8, max_sessions=1)
        attach = inference_pb2.AttachSession(ticket=ticket)
        stream._receive(inference_pb2.SessionUp(session=1, attach=attach))
        assert not table._live and not stream._live
        engine.allowed.release(ENOUGH)
        await eventually(lambda: not table._awaiting_usage)
        stream.close()
        table.fail(session, CancelledError("once more"))
        assert not table._awaiting_usage


async def test_a_stream_that_is_overrun_ends_its_sessions() -> None:
    async with running(FakeEngine()) as it:
        router = it.peer()
        ticket = await opened(router, 1, LONG)
        stream = DirectStream(it.replica.table, "", max_frames=8, max_sessions=1)
        it.replica.table.direct_paths.attach(ticket, "", stream, 1)
        stream._live[1] = next(iter(it.replica.table._live.values()))
        frame = inference_pb2.SessionDown(session=9)
        while stream.outbox.offer(frame, last=True):
            pass
        assert stream.outbox.is_overrun
        reply = await router.finish(1)
        assert reply.error is not None and reply.error.reason == "UNAVAILABLE"
