"""Requests of HTTP/1.1 that two readers would end in different places (request smuggling)."""

from __future__ import annotations

import asyncio

import pytest

from services.edge.http.config import HttpConfig
from tests.edge.integration.http_client import KEY, RawRequest
from tests.edge.integration.running import Running

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))


_HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-api-key: " + KEY.encode() + b"\r\n\r\n"
_BEHIND = b"0\r\n\r\n" + _HIDDEN
_INSIDE = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_HIDDEN), _HIDDEN)
_CHUNKED = b"Transfer-Encoding: chunked"


def _length(size: int) -> bytes:
    return b"Content-Length: %d" % size


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ((_length(len(_BEHIND)), _CHUNKED), _BEHIND),
        ((_CHUNKED, _length(len(_BEHIND))), _BEHIND),
        ((_length(4), _CHUNKED), _INSIDE),
        ((_length(len(_BEHIND)), b"Transfer-Encoding:\t CHUNKED"), _BEHIND),
        ((_length(len(_BEHIND)), b"X: y\nTransfer-Encoding: chunked"), _BEHIND),
        ((_length(len(_BEHIND)), b"Transfer-Encoding:\r\n chunked"), _BEHIND),
        *(
            ((_length(len(_BEHIND)), disguise), _BEHIND)
            for disguise in (
                b"Transfer-Encoding: xchunked",
                b"Transfer-Encoding : chunked",
                b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
                b"Transfer-Encoding: gzip, chunked",
                b" Transfer-Encoding: chunked",
                b"Transfer-Encoding: \x0bchunked",
                b"Transfer\x00-Encoding: chunked",
            )
        ),
        ((_length(0), _length(len(_HIDDEN))), _HIDDEN),
        *(
            ((b"Content-Length: " + text,), _HIDDEN)
            for text in (b"0, %d" % len(_HIDDEN), b"+0", b"-1", b"0x0", b"0 0", b"", b"9" * 300)
        ),
    ],
)
async def test_a_request_with_two_framings_is_refused_and_hides_no_other(
    version: bytes, fields: tuple[bytes, ...], body: bytes, mesh: Running
) -> None:
    request = await RawRequest.connected(mesh)
    line = b"POST /tokenize HTTP/" + version
    request.writer.write(b"\r\n".join((line, b"Host: localhost", *fields, b"", b"")) + body)
    answered = await request.rest()
    # 501: a coding that nobody has (RFC 9112, section 6.1).
    assert answered.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 "))
    assert answered.count(b"HTTP/1.1 ") == 1


async def test_chunks_are_of_http_1_1_alone(mesh: Running) -> None:
    statuses = []
    for version in (b"1.0", b"1.1"):
        request = await RawRequest.connected(mesh)
        head = (
            b"POST /tokenize HTTP/" + version + b"\r\nHost: localhost\r\n" + _CHUNKED + b"\r\n\r\n"
        )
        request.writer.write(head + b"0\r\n\r\n")
        async with asyncio.timeout(30):
            statuses.append((await request.until(b"\r\n\r\n")).split(b" ")[1])
    assert statuses == [b"400", b"415"]
