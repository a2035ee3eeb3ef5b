"""A peer that hangs is noticed: its connection stays open, and nothing comes over it any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from outrider.rpc import bind, make_channel, make_server
from outrider.testing import eventually
from outrider.v1 import inference_pb2, inference_pb2_grpc
from tests.rpc.echo import Echo

NOTICED_S = 10.0
"""Keepalive time and timeout together."""


class _Relay:
    """A TCP relay that, once cut, takes everything and passes nothing on."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_cut = False
        self._pumps: list[asyncio.Task[None]] = []

    def cut(self) -> None:
        self._is_cut = True

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        ways = ((reader, far_writer), (far_reader, writer))
        self._pumps += [asyncio.create_task(self._pump(*way)) for way in ways]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if not self._is_cut:
                    writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def stop(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


@asynccontextmanager
async def _relayed(echo: Echo) -> AsyncIterator[tuple[_Relay, grpc.aio.Channel]]:
    server = make_server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(echo, server)
    relay = _Relay(bind(server, "127.0.0.1", 0))
    await server.start()
    listener = await asyncio.start_server(relay.connected, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with make_channel(f"127.0.0.1:{port}") as channel:
        yield relay, channel
    listener.close()
    await relay.stop()
    await server.stop(None)


async def test_both_sides_notice_that_the_other_hangs() -> None:
    echo, loop = Echo(), asyncio.get_running_loop()
    async with _relayed(echo) as (relay, channel), asyncio.timeout(NOTICED_S * 2):
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate()
        await call.write(inference_pb2.GenerateRequest(frames=[inference_pb2.SessionUp(session=1)]))
        await call.read()
        relay.cut()
        began = loop.time()
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await call.read()
        assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: echo.live_streams == 0)
        assert loop.time() - began < NOTICED_S * 1.2
