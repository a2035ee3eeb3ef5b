"""Certificates of an edge, towards routers and towards clients, while chats run."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from cryptography import x509

from outrider.client import connect
from outrider.errors import OutriderError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.tls import Role, Tls, TlsConfig
from services.edge.quic import certificate
from services.edge.quic.listener import Listener
from tests.edge.integration.running import REPLY, running
from tests.edge.integration.trouble import ASK, start
from tests.tls.issuing import Issuer

NUM_CHATS = 100


def trusting(config: TlsConfig, ca: bytes) -> TlsConfig:
    """The same, with another CA bundle."""
    assert config.ca
    config.ca.write_bytes(ca)
    return config


async def test_no_chat_is_lost_when_the_ca_is_replaced(words: Vocabulary, tmp_path: Path) -> None:
    """In the three steps of docs/guides/certificates.md. The last one cuts the stream of the edge,
    which began with the old certificate: the chats go on from their ids, over another one."""
    old, new = Issuer(tmp_path / "old"), Issuer(tmp_path / "new")
    both = old.ca.pem + new.ca.pem
    region, edge = Issuer(tmp_path / "region", old.ca), Issuer(tmp_path / "edge", old.ca)
    region_tls = Tls.open(trusting(region.config(Role.ROUTER), both))
    settings = {"region_tls": region_tls, "tls": trusting(edge.config(Role.EDGE), both)}
    # Chats that learnt the reply from each other would draft past where the region holds them.
    settings["trust"] = "chat"
    async with running(words, tmp_path, REPLY, **settings) as mesh, AsyncExitStack() as stack:
        mesh.region.hold(4)
        clients = [await stack.enter_async_context(mesh.client()) for _ in range(2)]
        chats = [await start(clients[number % 2]) for number in range(NUM_CHATS)]
        assert len(mesh.region.opened) == NUM_CHATS
        for issuer, role in ((region, Role.ROUTER), (edge, Role.EDGE)):
            issuer.ca = new.ca
            trusting(issuer.config(role), both)
        await eventually(lambda: region_tls.generation > 0)
        for issuer, role in ((edge, Role.EDGE), (region, Role.ROUTER)):
            trusting(issuer.config(role), new.ca.pem)
        await eventually(lambda: len(mesh.region.opened) >= 2 * NUM_CHATS)
        mesh.region.gate.set()
        results = await asyncio.gather(*(chat.result() for chat in chats))
        assert {result.text for result in results} == {REPLY}
        for chat in chats:
            await chat.__aexit__(None, None, None)
        await mesh.settled()


def _serial(listener: Listener) -> int:
    assert listener._configuration is not None
    return int(listener._configuration.certificate.serial_number)


def _serial_of(pem: bytes) -> int:
    return x509.load_pem_x509_certificate(pem).serial_number


async def test_clients_see_a_new_certificate_without_a_restart(
    words: Vocabulary, tmp_path: Path
) -> None:
    old, key = certificate.ensure(tmp_path / "made", (), certificate.utc_now())
    renewed, its_key = certificate.ensure(tmp_path / "renewed", (), certificate.utc_now())
    before = tmp_path / "before.pem"
    before.write_bytes(old.read_bytes())
    settings = {"certificate": old, "private_key": key}
    async with running(words, tmp_path, REPLY, **settings) as mesh:
        where = ("127.0.0.1", mesh.ports.main)
        async with connect(*where, ca=before) as client:
            its_key.replace(key)
            after = renewed.read_bytes()
            renewed.replace(old)
            await eventually(lambda: _serial(mesh.edge.listener) == _serial_of(after))
            async with client.chat(ASK) as chat:  # over the connection that is up
                assert (await chat.result()).text == REPLY
        async with connect(*where, ca=old) as client, client.chat(ASK) as chat:
            assert (await chat.result()).text == REPLY
        with pytest.raises(OutriderError):
            async with connect(*where, ca=before) as client, client.chat(ASK) as chat:
                await chat.result()
