"""HTTP/1.1 connections on which requests wait behind one that is served."""

from __future__ import annotations

import pytest

from outrider.testing import eventually
from services.edge.http.config import HttpConfig
from tests.edge.integration.http_client import KEY, RawRequest
from tests.edge.integration.running import Running

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))


_NEXT = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def _gone(mesh: Running) -> None:
    await eventually(lambda: not mesh.http.num_connections)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "behind", [_NEXT, b"\r\n", _NEXT + b"x" * 100_000], ids=["a request", "a line", "a lot"]
)
async def test_who_leaves_while_another_request_waits_is_noticed(
    stream: bool, behind: bytes, mesh: Running
) -> None:
    mesh.region.hold(2)
    request = await RawRequest.chat(mesh, stream=stream)
    request.writer.write(behind)
    await eventually(lambda: bool(mesh.region.live) or len(behind) > 1000)
    request.writer.write_eof()
    await mesh.settled()
    assert len(mesh.region.opened) <= 1
    request.close()
    await _gone(mesh)


async def test_requests_that_wait_behind_another_are_answered_in_turn(mesh: Running) -> None:
    mesh.region.hold(2)
    request = await RawRequest.chat(mesh)
    await eventually(lambda: bool(mesh.region.live))
    for _ in range(3):
        request.writer.write(
            _NEXT.replace(b"\r\n\r\n", b"\r\nx-api-key: %b\r\n\r\n" % KEY.encode())
        )
        await request.writer.drain()
    mesh.region.gate.set()
    await request.until(b'"chat.completion"')
    for _ in range(3):
        await request.until(b'"object":"list"')
    request.close()
