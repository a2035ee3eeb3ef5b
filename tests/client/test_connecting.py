"""Connecting: what works, and errors that say what to check."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from outrider.client import Client, connect, dialling, failures
from outrider.errors import ConfigError, OutriderError, UnavailableError
from outrider.testing import eventually, free_udp_port, leak_check
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import ASK, quic, said


async def ask(mesh: Running, host: str, **options: object) -> str:
    async with connect(host, **options) as client, client.chat(ASK) as chat:  # type: ignore[arg-type]
        return (await chat.result()).text


async def test_ways_to_name_an_edge(mesh: Running) -> None:
    port = mesh.ports.main
    assert await ask(mesh, f"quic://127.0.0.1:{port}", ca=mesh.ca) == REPLY
    assert await ask(mesh, "localhost", port=port, ca=mesh.ca) == REPLY
    assert await ask(mesh, "127.0.0.1", port=port, insecure=True) == REPLY
    named = {"port": port, "ca": mesh.ca, "server_name": "localhost"}
    assert await ask(mesh, "127.0.0.1", **named) == REPLY


async def test_the_certificate_to_trust_may_be_named_as_in_a_shell(
    monkeypatch: pytest.MonkeyPatch, mesh: Running
) -> None:
    monkeypatch.setenv("HOME", str(mesh.ca.parent))
    named = {"port": mesh.ports.main, "ca": f"~/{mesh.ca.name}"}
    assert await ask(mesh, "127.0.0.1", **named) == REPLY


async def test_a_path_to_trust_is_a_path() -> None:
    with pytest.raises(ConfigError, match="ca is the path of a PEM file, not 3"):
        async with connect("127.0.0.1", ca=3):  # type: ignore[arg-type]
            raise AssertionError("connected")


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
async def test_a_host_that_no_name_can_be_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="is no host's name"):
        async with connect(host, insecure=True):
            raise AssertionError("connected")


async def test_messages_may_be_mappings(client: Client) -> None:
    assert await said(client.chat([{"role": "user", "content": "hello"}])) == REPLY
    with pytest.raises(ConfigError, match="content"):
        client.chat([{"role": "user"}])
    for wrong in ("hello", b"hello", {"role": "user", "content": "hello"}, ASK[0], 5, None):
        with pytest.raises(ConfigError, match="a conversation is a list of messages, such as"):
            client.chat(wrong)  # type: ignore[arg-type]


async def test_a_question_that_nobody_waits_for_is_given_up(client: Client) -> None:
    asking = asyncio.create_task(client.describe())
    await asyncio.sleep(0)
    assert quic(client)._readers
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert not quic(client)._readers, "the connection would be watched as if busy"
    assert (await client.describe()).name == "edge"


async def failure(host: str, **options: object) -> OutriderError:
    async with leak_check():
        with pytest.raises(OutriderError) as caught:
            async with connect(host, **options):  # type: ignore[arg-type]
                raise AssertionError("connected")
    return caught.value


async def test_a_port_nobody_listens_on() -> None:
    error = await failure("127.0.0.1", port=free_udp_port(), insecure=True)
    assert isinstance(error, UnavailableError)
    assert "check that the edge runs" in error.message


async def test_a_host_that_does_not_answer() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        error = await failure("127.0.0.1", port=port, insecure=True, timeout_s=0.2)
    assert isinstance(error, UnavailableError)
    assert "UDP" in error.message


async def test_a_certificate_that_is_not_trusted(mesh: Running) -> None:
    error = await failure("127.0.0.1", port=mesh.ports.main)
    assert isinstance(error, UnavailableError)
    assert "`ca`" in error.message


async def test_a_certificate_for_another_name(mesh: Running) -> None:
    error = await failure(
        "127.0.0.1", port=mesh.ports.main, ca=mesh.ca, server_name="other.example"
    )
    assert isinstance(error, UnavailableError)
    assert "server_name" in error.message


@pytest.mark.parametrize("alpn", ["outrider/2", "h3"])
async def test_an_unknown_alpn_is_refused_by_the_handshake(
    monkeypatch: pytest.MonkeyPatch, alpn: str, mesh: Running
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(dialling, "ALPN", alpn)
        patch.setattr(failures, "ALPN", alpn)
        error = await failure("127.0.0.1", port=mesh.ports.main, ca=mesh.ca)
    assert isinstance(error, UnavailableError)
    assert f"does not speak {alpn}" in error.message
    assert await ask(mesh, "127.0.0.1", port=mesh.ports.main, ca=mesh.ca)
    assert mesh.edge.telemetry.num_chats == 0
    # The edge says so once the connection is forgotten, some round trips later.
    await eventually(lambda: mesh.sample("outrider_edge_refused_total", reason="protocol") == 1)


async def test_addresses_that_are_none(tmp_path: Path) -> None:
    for host in ("http://localhost:1", "quic://", "quic://localhost:99999"):
        assert isinstance(await failure(host), ConfigError)
    missing = await failure("127.0.0.1", port=1, ca=tmp_path / "missing.pem")
    assert isinstance(missing, ConfigError)
    assert "missing.pem" in missing.message
    for port in (0, 65_536):
        assert isinstance(await failure("127.0.0.1", port=port), ConfigError)
    unresolved = await failure("no-such-host.invalid", port=1)
    assert isinstance(unresolved, UnavailableError)


@pytest.mark.parametrize("content", ["", "no certificate", "-----BEGIN CERTIFICATE-----"])
async def test_a_file_without_a_certificate(content: str, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(content)
    error = await failure("127.0.0.1", port=1, ca=file)
    assert isinstance(error, ConfigError)
    assert "ca.pem holds no certificate" in error.message


async def test_leaving_does_not_wait_for_the_drain(mesh: Running) -> None:
    async with mesh.client() as client:
        connection = quic(client)
    # The drain takes three probe timeouts (RFC 9000, section 10.2); only then is it closed.
    assert not connection._closed.is_set()
    await eventually(lambda: mesh.edge.telemetry.num_connections == 0)


async def test_a_lost_edge_fails_its_chats_and_new_ones(mesh: Running) -> None:
    async with mesh.client(reconnect=None) as client:
        mesh.region.gate.clear()
        async with client.chat(ASK) as chat:
            await anext(chat)
            await mesh.edge.stop()
            with pytest.raises(UnavailableError, match="shutting down"):
                await chat.result()
        with pytest.raises(UnavailableError):
            async with client.chat(ASK):
                raise AssertionError("sent on a lost connection")


async def test_acknowledgements_wait_no_longer_than_the_edge_was_told(
    mesh: Running, client: Client
) -> None:
    fresh = QuicConnection(configuration=QuicConfiguration())
    assert fresh._ack_delay == 0.001, "aioquic has another delay now: is ours still needed?"
    assert await said(client.chat(ASK)) == REPLY
    (connection,) = mesh.edge.listener.connections
    assert quic(client)._quic._ack_delay < connection._quic._loss.max_ack_delay


@pytest.mark.parametrize(
    "options",
    [
        {"key": "k", "insecure": True},
        {"user": "ann"},
        {"client_secret": b"short"},
        {"client_secret": b"x" * 65},
    ],
)
async def test_credentials_that_are_none(options: dict[str, Any]) -> None:
    assert isinstance(await failure("127.0.0.1", **options), ConfigError)
