"""Attacks over HTTP/3 on a real edge: what it holds stays within bounds, nothing is left, and the
native chat on the same port ends well. Bytes and requests are counted, not seconds. What no request
is, and what breaks the protocol, is in test_session.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import FrameType, encode_frame

from outrider.testing import eventually
from services.edge.limits import memory
from services.edge.limits.quotas import Count
from tests.edge.http3.client import H3Client, request_headers
from tests.edge.http3.lab import Lab, client_of
from tests.edge.integration.running import Running
from tests.edge.integration.trouble import bystander

HERE = "127.0.0.1/32"
Attack = Callable[[Running, Lab], Awaitable[None]]


async def _flood(mesh: Running, send: Callable[[H3Client, int], None], num: int) -> int:
    """Call `send` so often, on one connection after another; returns how many there were."""
    sent = num_connections = 0
    while sent < num:
        async with client_of(mesh) as client:
            num_connections += 1
            while sent < num and client.closed is None:
                try:
                    send(client, sent)
                except AssertionError:  # aioquic's client, which the edge has closed
                    break
                sent += 1
                client.transmit()
                if not sent % 16:
                    with contextlib.suppress(ConnectionError):
                        await client.ping()
    return num_connections


async def ignored_frames(mesh: Running, lab: Lab) -> None:
    async with client_of(mesh) as client:
        client.raw(encode_frame(0x21, b"") * 100_000)
        await asyncio.wait_for(client.is_closed.wait(), 30)


async def rapid_resets(mesh: Running, lab: Lab) -> None:
    def send(client: H3Client, number: int) -> None:
        response = client.open()
        headers = request_headers("GET", "/wait")
        client.h3.send_headers(response.stream_id, headers, False)
        client._quic.reset_stream(response.stream_id, 0)
        client._quic.stop_stream(response.stream_id, 0)

    await _flood(mesh, send, 1500)
    await eventually(lambda: len(lab.ended) == len(lab.began))


async def late_resets(mesh: Running, lab: Lab) -> None:
    """Resets once the application works."""
    async with client_of(mesh) as client:
        for number in range(0, 120, 30):
            asked = [client.ask("GET", "/wait") for _ in range(30)]
            await eventually(lambda n=number: len(lab.began) >= n + 30)  # type: ignore[misc]
            for response in asked:
                client._quic.stop_stream(response.stream_id, 0)
            client.transmit()
    await eventually(lambda: len(lab.disconnected) == 120)


async def slow_bodies(mesh: Running, lab: Lab) -> None:
    async with client_of(mesh) as client:
        asked = [client.ask("POST", "/echo", b"x", ends=False) for _ in range(30)]
        partial = encode_uint_var(FrameType.HEADERS) + encode_uint_var(1000) + bytes(10)
        asked += [client.raw(partial) for _ in range(10)]
        for response in asked:
            assert (await response.whole()).status == 408


async def unread_bodies(mesh: Running, lab: Lab) -> None:
    async with client_of(mesh) as client:
        for _ in range(20):
            client.ask("POST", "/held", bytes(1 << 20))
        await eventually(lambda: len(lab.began) >= 4)
        await eventually(lambda: mesh.edge.listener.shared._received.num_bytes > 900_000)
        lab.gate.set()


async def unread_responses(mesh: Running, lab: Lab) -> None:
    async with client_of(mesh, max_stream_data=1000, max_data=100_000) as client:
        client._quic._write_stream_limits = lambda **_: None  # type: ignore[method-assign]
        asked = [client.ask("GET", "/pours") for _ in range(20)]
        for response in asked:
            await response.whole()
            assert response.reset_code is not None and len(response.body) < 5000


ATTACKS: dict[str, Attack] = {
    it.__name__: it
    for it in (
        *(ignored_frames, rapid_resets, late_resets),
        *(slow_bodies, unread_bodies, unread_responses),
    )
}


@pytest.mark.parametrize("case", ATTACKS)
@pytest.mark.edge(
    quic={"idle_timeout_s": 2.0},
    header_timeout_s=1.0,
    body_timeout_s=1.0,
    write_timeout_s=1.0,
    cancel_grace_s=0.5,
)
async def test_an_attack_holds_little_and_leaves_nothing(
    case: str, lab: Lab, mesh: Running
) -> None:
    listener, most = mesh.edge.listener, [0, 0]
    service = listener.services["h3"]

    async def watch() -> None:
        while True:
            most[0] = max(most[0], listener.shared._received.num_bytes)
            most[1] = max(most[1], service.num_requests)  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    async with mesh.client() as native, bystander(mesh, native):
        await ATTACKS[case](mesh, lab)
    watching.cancel()
    assert most[0] <= 8 << 20 and most[1] <= 64
    await mesh.settled()
    await asyncio.wait_for(service.idle(), 30)
    await eventually(lambda: not listener.connections)
    assert listener.shared._received.num_bytes == listener.shared.early_data.num_bytes == 0
    assert not listener.shared._addresses and listener.shared.num_connections == 0
    for count in Count:
        assert listener.shared.quotas.held(HERE, count) == 0
    async with client_of(mesh) as client:
        assert (await client.get("/hello")).body == b"hello"


async def test_memory_is_flat_under_many_requests(mesh: Running) -> None:
    async def rounds(num: int) -> None:
        async with client_of(mesh) as client:
            for _ in range(num):
                body = os.urandom(2000)
                asked = [client.ask("POST", "/echo", body) for _ in range(8)]
                assert [(await it.whole()).body for it in asked] == [body] * 8
                client.responses.clear()

    await rounds(30)
    before = memory.resident_bytes()
    await rounds(120)
    assert memory.resident_bytes() - before < 6 << 20


@pytest.mark.edge(max_requests=5)
async def test_all_requests_of_all_connections_are_bounded(lab: Lab, mesh: Running) -> None:
    async with client_of(mesh) as first, client_of(mesh) as second:
        held = [first.ask("GET", "/held") for _ in range(3)]
        held += [second.ask("GET", "/held") for _ in range(2)]
        await eventually(lambda: len(lab.began) == 5)
        assert (await second.get("/hello")).status == 503
        lab.gate.set()
        assert [(await it.whole()).status for it in held] == [200] * 5
        assert (await second.get("/hello")).status == 200


@pytest.mark.edge(quic={"max_streams_per_address": 2})
async def test_streams_of_one_address_are_counted(
    lab: Lab, mesh: Running, client: H3Client
) -> None:
    held = [client.ask("GET", "/held") for _ in range(2)]
    await eventually(lambda: len(lab.began) == 2)
    assert (await client.get("/hello")).reset_code is not None
    lab.gate.set()
    assert [(await it.whole()).status for it in held] == [200] * 2
    await eventually(lambda: mesh.edge.listener.shared.quotas.held(HERE, Count.STREAMS) == 0)
    assert (await client.get("/hello")).status == 200
