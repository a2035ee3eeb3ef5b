"""What one client, and all together, may have open at a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.errors import OverloadedError
from outrider.rpc import HealthControl, add_health, bind, from_rpc_error, make_channel, make_server
from outrider.testing import leak_check

REQUEST = health_pb2.HealthCheckRequest()


class Server:
    def __init__(self, **limits: int) -> None:
        self._server = make_server(**limits)  # type: ignore[arg-type]
        self.health: HealthControl = add_health(self._server)
        self.health.set_serving(True)
        self.address = f"127.0.0.1:{bind(self._server, '127.0.0.1', 0)}"

    async def __aenter__(self) -> Server:
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.health.close()
        await self._server.stop(None)


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    async with leak_check():
        yield


async def _watching(channel: grpc.aio.Channel) -> Any:
    """An open stream."""
    call = health_pb2_grpc.HealthStub(channel).Watch(REQUEST)
    assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
    return call


async def test_streams_of_one_connection_wait_for_each_other(no_leaks: None) -> None:
    async with Server(max_streams=2) as server, make_channel(server.address) as channel:
        first, _ = await _watching(channel), await _watching(channel)
        waiting = asyncio.create_task(_watching(channel))
        # Another connection has streams of its own: what is left out is left out of the first.
        async with make_channel(server.address) as other:
            await _watching(other)
            assert not waiting.done()
        first.cancel()
        await waiting


async def test_calls_beyond_the_limit_are_refused(no_leaks: None) -> None:
    async with Server(max_calls=2) as server:
        async with make_channel(server.address) as one, make_channel(server.address) as two:
            first = await _watching(one)
            await _watching(two)
            for channel in (one, two):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await health_pb2_grpc.HealthStub(channel).Check(REQUEST)
                assert isinstance(from_rpc_error(caught.value), OverloadedError)
            first.cancel()
            await _answered(two)


async def _answered(channel: grpc.aio.Channel) -> None:
    """Until the server has noticed that there is room."""
    while True:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(REQUEST)
            return
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_connections_beyond_the_limit_are_closed(no_leaks: None) -> None:
    async with Server(max_connections=2) as server, make_channel(server.address) as one:
        await _watching(one)
        host, port = server.address.split(":")
        silent = await asyncio.open_connection(host, int(port))
        assert await silent[0].read(1), "the server speaks first: it is one of two"
        async with make_channel(server.address) as other:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health_pb2_grpc.HealthStub(other).Check(REQUEST)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await health_pb2_grpc.HealthStub(one).Check(REQUEST)
            silent[1].close()
            await health_pb2_grpc.HealthStub(other).Check(REQUEST, wait_for_ready=True)


async def test_metadata_beyond_the_limit_are_refused(no_leaks: None) -> None:
    async with Server() as server, make_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await stub.Check(REQUEST, metadata=(("x-room", "m" * 8_000),))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(REQUEST, metadata=(("x-flood", "m" * 20_000),))
        assert isinstance(from_rpc_error(caught.value), OverloadedError)
