"""ASGI applications over HTTP/3, by a real edge on loopback, for two independent clients."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from aioquic.h3.connection import ErrorCode

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.http3.server import Http3Connection
from services.edge.limits.quotas import Count
from services.edge.quic.aioquic_shim import BoundedConnection
from tests.edge.http3.client import H3Client, other_client
from tests.edge.http3.lab import Lab, client_of, serving
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import ASK, uncollected

HERE = "127.0.0.1/32"


async def test_a_request_becomes_a_scope(mesh: Running, client: H3Client) -> None:
    response = await client.get("/scope?a=%20b")
    scope = json.loads(response.body)
    assert response.status == 200 and b"date" in response.headers
    assert scope["http_version"] == "3" and scope["scheme"] == "https"
    assert scope["path"] == "/scope" and scope["query_string"] == "a=%20b"
    assert scope["headers"] == [["host", "localhost"]]
    assert scope["client"][0] == "127.0.0.1" and scope["client"][1] > 0
    assert scope["server"] == ["127.0.0.1", mesh.ports.main]
    assert scope["state"] == {} and scope["asgi"]["version"] == "3.0"


async def test_an_application_knows_the_connection(
    lab: Lab, mesh: Running, client: H3Client
) -> None:
    async with client_of(mesh) as another:
        for it in (client, client, another):
            await it.get("/hello")
        told = [scope["extensions"]["outrider-connection"] for scope in lab.scopes]
        assert told[0]["secret"] == told[1]["secret"] != told[2]["secret"]
        assert len(told[0]["secret"]) == 16 and not told[0]["budget"].take(1), "it is over"
        aborted = await client.get("/aborts")
        assert aborted.reset_code == ErrorCode.H3_INTERNAL_ERROR
        assert (await client.get("/hello")).status == 200, "the connection goes on"


async def test_what_an_application_keeps_counts_until_its_connection_ends(
    lab: Lab, mesh: Running
) -> None:
    held = mesh.edge.listener.shared._received
    async with client_of(mesh) as client:
        client.ask("GET", "/keeps")
        await eventually(lambda: lab.began == ["/keeps"] and held.num_bytes > 5000)
    await eventually(lambda: not mesh.edge.listener.connections)
    assert held.num_bytes == 0
    lab.gate.set()
    await eventually(lambda: bool(lab.ended))
    assert held.num_bytes == 0, "what is given back late counts nowhere"


async def test_bodies_of_any_size_both_ways(mesh: Running, client: H3Client) -> None:
    for size in (0, 1, 1199, 65_536, 65_537, 700_000):
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        response = await client.get("/echo", "POST", body)
        assert response.body == body and response.reset_code is None
    assert (await client.get("/big?3000000")).body == bytes(3_000_000)
    head = await client.get("/hello", "HEAD")
    assert (head.status, head.body, head.headers[b"content-length"]) == (200, b"", b"5")
    trailers = await client.get("/trailers")
    assert trailers.body == b"text" and trailers.sections[1] == {b"x-sum": b"4"}
    await eventually(lambda: mesh.edge.listener.shared._received.num_bytes == 0)


async def test_an_application_that_fails_ends_its_request_alone(
    lab: Lab, mesh: Running, client: H3Client
) -> None:
    held = client.ask("GET", "/held")
    for path in ("/fail", "/silent", "/twice", "/no-such-route"):
        response = await client.get(path)
        assert response.status == 500 and b"purpose" not in response.body
    late = await client.get("/fail-late")
    assert late.body == b"begin" and late.reset_code == ErrorCode.H3_INTERNAL_ERROR
    lab.gate.set()
    assert (await held.whole()).body == b"at last"
    assert mesh.sample("outrider_edge_refused_total", reason="application") == 4


@pytest.mark.parametrize("how", ["stop", "close", "vanish"])
@pytest.mark.edge(quic={"idle_timeout_s": 1.0}, cancel_grace_s=0.2)
async def test_a_client_that_leaves_is_noticed_at_once(how: str, lab: Lab, mesh: Running) -> None:
    async with client_of(mesh) as client:
        responses = [client.ask("GET", path) for path in ("/wait", "/deaf")]
        await eventually(lambda: len(lab.began) == 2)
        for response in responses:
            if how == "stop":
                client._quic.stop_stream(response.stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        if how == "close":
            client._quic.close(ErrorCode.H3_NO_ERROR)
        if how == "vanish":
            client._quic._network_paths[0].addr = ("127.0.0.1", 9)
        client.transmit()
        await eventually(lambda: lab.disconnected == ["/wait"])
        await eventually(lambda: ("/deaf", "CancelledError") in lab.ended)
        assert ("/wait", "returned") in lab.ended
    held = mesh.edge.listener.shared.quotas.held
    await eventually(lambda: held(HERE, Count.STREAMS) == 0)


async def test_a_client_of_another_make(lab: Lab, mesh: Running) -> None:
    async with other_client(mesh.ports.main, mesh.ca) as it:
        assert (await it.ask("GET", "/hello").whole()).body == b"hello"
        body = bytes(300_000)
        assert (await it.ask("POST", "/echo", body).whole()).body == body
        asked = [it.ask("POST", "/echo", b"%d" % n) for n in range(8)]
        assert [(await one.whole()).body for one in asked] == [b"%d" % n for n in range(8)]
        ticks = it.ask("GET", "/ticks")
        for number in range(3):
            await ticks.until(lambda n=number: len(ticks.pieces) == n + 1)  # type: ignore[misc]
            lab.gate.set()
        await ticks.whole()
        flood = [(b"x-%d" % n, b"y" * 90) for n in range(96)]
        assert (await it.ask("GET", "/hello", headers=flood).whole()).status == 200
        flood = [(b"x-%d" % n, b"y" * 90) for n in range(97)]
        assert (await it.ask("GET", "/hello", headers=flood).whole()).status == 431


async def test_native_chats_share_the_port(mesh: Running) -> None:
    async with mesh.client() as native, client_of(mesh) as client:
        for _ in range(3):
            async with native.chat(ASK) as chat:
                assert (await client.get("/echo", "POST", bytes(100_000))).status == 200
                assert (await chat.result()).text == REPLY


async def test_without_an_application_there_is_no_http3(words: Vocabulary, tmp_path: Path) -> None:
    for application, limits in ((None, {}), (Lab(), {"enabled": False})):
        async with serving(words, tmp_path, application, **limits) as mesh:  # type: ignore[arg-type]
            with pytest.raises(ConnectionError):
                async with client_of(mesh):
                    pass


async def test_an_edge_that_stops_finishes_requests_and_rejects_new_ones(
    lab: Lab, mesh: Running, client: H3Client
) -> None:
    held = client.ask("GET", "/held")
    await eventually(lambda: lab.began == ["/held"])
    stopping = asyncio.create_task(mesh.edge.listener.stop(30.0))
    await eventually(lambda: mesh.edge.listener.is_draining)
    late = await client.get("/hello")
    assert late.reset_code == ErrorCode.H3_REQUEST_REJECTED
    assert not stopping.done()
    lab.gate.set()
    assert (await held.whole()).body == b"at last"
    await stopping
    await asyncio.wait_for(client.is_closed.wait(), 30)
    assert client.closed is not None and client.closed.error_code == ErrorCode.H3_NO_ERROR


async def test_a_response_on_its_way_arrives_though_the_edge_stops(
    lab: Lab, mesh: Running, client: H3Client
) -> None:
    body = bytes(200_000)  # the application is done with it long before its client is
    asked = client.ask("POST", "/gated-echo", body)
    await eventually(lambda: lab.began == ["/gated-echo"])
    stopping = asyncio.create_task(mesh.edge.listener.stop(30.0))
    await eventually(lambda: mesh.edge.listener.is_draining)
    lab.gate.set()
    response = await asked.whole()
    assert response.body == body and response.reset_code is None
    await stopping


async def test_requests_that_do_not_end_in_time_are_cancelled(
    lab: Lab, mesh: Running, client: H3Client
) -> None:
    client.ask("GET", "/deaf")
    await eventually(lambda: lab.began == ["/deaf"])
    await mesh.edge.listener.stop(0.0)
    assert lab.ended == [("/deaf", "CancelledError")]


async def ping_always(client: H3Client) -> None:
    while True:
        client._quic.send_ping(0)
        client.transmit()
        await asyncio.sleep(0.05)


@pytest.mark.edge(quic={"idle_timeout_s": 1.0})
async def test_a_connection_without_requests_is_closed(lab: Lab, client: H3Client) -> None:
    held = client.ask("GET", "/held")
    for _ in range(15):
        await client.ping()
        await asyncio.sleep(0.1)
    assert client.closed is None, "a request is under way"
    lab.gate.set()
    await held.whole()
    pinging = asyncio.create_task(ping_always(client))
    await asyncio.wait_for(client.is_closed.wait(), 30)
    pinging.cancel()
    closed: Any = client.closed
    assert closed.error_code == ErrorCode.H3_NO_ERROR


async def test_an_ended_connection_is_freed_at_once(lab: Lab, mesh: Running) -> None:
    with uncollected(BoundedConnection, Http3Connection) as alive:
        async with client_of(mesh) as client:
            await client.get("/echo", "POST", b"x")
            await client.get("/fail")
            lab.scopes.clear()  # they know how to abort their requests
            assert len(alive) == 2
        await eventually(lambda: not mesh.edge.listener.connections)
        await eventually(lambda: not alive)


async def test_the_time_of_applications_is_billed_to_their_address(
    mesh: Running, client: H3Client
) -> None:
    await client.get("/burns")
    await client.ping()
    server = mesh.edge.listener._server
    assert server is not None
    used = server._queue.uses._uses.peek(HERE)
    assert used is not None
    ahead_s = used.tat - time.perf_counter()
    assert ahead_s > 0.2, "100 ms at a quarter of the time last 400 ms"
