"""A call that its peer has ended leaves nothing behind, whoever noticed the end first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from outrider.rpc import bind, end_call, make_channel, make_server
from outrider.testing import eventually, leak_check

_METHOD = "/test.Service/Stream"


async def _three(requests: Any, context: Any) -> AsyncIterator[bytes]:
    """Some messages, and the end of the stream."""
    for _ in range(3):
        yield b"message"


def _server() -> tuple[grpc.aio.Server, int]:
    server = make_server()
    handler: Any = grpc.stream_stream_rpc_method_handler(_three)
    service = grpc.method_handlers_generic_handler("test.Service", {"Stream": handler})
    server.add_generic_rpc_handlers((service,))
    return server, bind(server, "127.0.0.1", 0)


@pytest.mark.parametrize("num_read", [0, 1, 3])
async def test_a_call_that_failed_in_a_write_is_ended_with_what_was_not_read(num_read: int) -> None:
    server, port = _server()
    await server.start()
    async with leak_check(settle_s=2.0):
        async with make_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.stream_stream(_METHOD)()
            await call.wait_for_connection()
            for _ in range(num_read):
                assert await call.read() == b"message"
            # A write fails as soon as the end of the stream has come.
            with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                while True:
                    await call.write(b"request")
            end_call(call)
            end_call(call)
        await server.stop(None)


async def test_a_call_under_way_is_cancelled() -> None:
    server, port = _server()
    await server.start()
    async with leak_check(settle_s=2.0), make_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_stream(_METHOD)()
        end_call(call)
        await eventually(call.cancelled)
    await server.stop(None)
