"""Networks that drop or reject UDP, that block TCP instead, and that change their mind: the client
finds a way, and its chats lose and double nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from outrider.client import Committed, Event, Interrupted, Resumed, SessionTickets, connect
from outrider.client.address import EdgeAddress
from outrider.client.chat import Chat
from outrider.client.liveness import LivenessLimits
from outrider.client.ways import KnownWays, Way, WayLimits
from outrider.errors import ConfigError, UnavailableError
from outrider.testing import eventually, free_udp_port
from services.edge.http.config import HttpConfig
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import ASK, said, start, whole
from tests.edge.integration.ways import Ways, ways

pytestmark = pytest.mark.edge(http=HttpConfig(port=0, tls="on"))
LONG = "A reply of many words, so that the way may change again and again before it ends. " * 3


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[KnownWays]:
    """Nothing is known of this machine's network, and silence is noticed in a second."""
    limits = LivenessLimits(busy_s=0.3, idle_s=0.6, answer_s=0.3)
    monkeypatch.setattr("outrider.client.life_signs.LIMITS", limits)
    known = KnownWays(WayLimits())
    monkeypatch.setattr("outrider.client.dialling.KNOWN_WAYS", known)
    yield known


@pytest.fixture
async def both(mesh: Running) -> AsyncIterator[Ways]:
    """The two ways to the edge."""
    async with ways(mesh) as both:
        yield both


async def up_to(chat: Chat, events: list[Event], num_tokens: int) -> None:
    """Read until so many tokens are final."""
    while sum(len(it.ids) for it in events if isinstance(it, Committed)) < num_tokens:
        events.append(await anext(chat))


async def test_where_udp_is_dropped_chats_go_over_tcp(
    both: Ways, caplog: pytest.LogCaptureFixture
) -> None:
    both.udp.is_cut = True
    with caplog.at_level(logging.INFO, "outrider.client"):
        async with both.client() as client:
            assert client.way == "TCP"
            assert await said(client.chat(ASK)) == REPLY
            client._link.connection.shut()  # another connection, of the same client
            assert await said(client.chat(ASK)) == REPLY
            assert client.way == "TCP"
    told = [it.getMessage() for it in caplog.records if it.name == "outrider.client"]
    assert told == [
        f"QUIC does not get through to quic://127.0.0.1:{both.udp.port}; chats go over TCP"
    ]


async def test_what_had_to_be_tcp_is_tried_first_the_next_time(
    both: Ways, known: KnownWays
) -> None:
    both.udp.is_cut = True
    async with both.client() as client:
        assert client.way == "TCP"
    both.udp.is_cut = False
    async with both.client() as client:
        assert client.way == "TCP"
        assert both.udp.sent == [], "no datagram of QUIC was needed"
        both.tcp.is_cut = True
        assert await said(client.chat(ASK)) == REPLY
        assert client.way == "QUIC"
    async with both.client() as client:
        assert client.way == "QUIC"


async def test_where_udp_is_rejected_chats_go_over_tcp(mesh: Running, both: Ways) -> None:
    where = f"quic://127.0.0.1:{free_udp_port()}?tcp={both.tcp.port}"
    async with connect(where, ca=mesh.ca) as client:
        assert client.way == "TCP"
        assert await said(client.chat(ASK)) == REPLY


async def test_where_tcp_is_blocked_chats_go_over_quic(both: Ways) -> None:
    both.tcp.is_cut = True
    async with both.client() as client:
        assert client.way == "QUIC"
        assert await said(client.chat(ASK)) == REPLY
    assert both.tcp.num_accepted == 0


async def test_where_nothing_gets_through_the_error_says_what_to_check(both: Ways) -> None:
    both.udp.is_cut = both.tcp.is_cut = True
    with pytest.raises(UnavailableError, match=r"that UDP gets through; no answer .* over TCP"):
        async with both.client(timeout_s=0.6):
            raise AssertionError("connected")


async def test_a_certificate_that_is_not_trusted_is_not_trusted_over_tcp(both: Ways) -> None:
    both.udp.is_cut = True
    with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        async with connect(f"quic://127.0.0.1:{both.udp.port}?tcp={both.tcp.port}", timeout_s=1.0):
            raise AssertionError("connected")


@pytest.mark.edge(reply=LONG)
async def test_a_reply_goes_on_over_tcp_and_back_again(mesh: Running, both: Ways) -> None:
    mesh.region.block_tokens = 1
    async with both.client() as client:
        mesh.region.hold(5)
        events: list[Event] = []
        async with client.chat(ASK) as chat:
            for number, way in enumerate((Way.QUIC, Way.TCP, Way.QUIC, Way.TCP, Way.QUIC)):
                await up_to(chat, events, 5 * (number + 1))
                assert client.way == way.value
                both.udp.is_cut, both.tcp.is_cut = way is Way.QUIC, way is Way.TCP
                while not isinstance(events[-1], Interrupted):
                    events.append(await anext(chat))
                mesh.region.hold_at += 5
                mesh.region.gate.set()
                mesh.region.gate.clear()
                await up_to(chat, events, 5 * (number + 2))
            mesh.region.gate.set()
            events += [event async for event in chat]
            result = await chat.result()
        both.udp.is_cut = both.tcp.is_cut = False
    committed = "".join(it.text for it in events if isinstance(it, Committed))
    assert committed == result.text == LONG
    assert len(result.ids) == len(LONG) + 1, "a byte a token, and the end"
    assert sum(isinstance(it, Interrupted) for it in events) == 5
    assert sum(isinstance(it, Resumed) for it in events) == 5
    assert len(mesh.region.opened) == 1, "nothing ran twice"


@pytest.mark.parametrize("first", Way)
async def test_a_cancel_is_heard_over_the_other_way(first: Way, mesh: Running, both: Ways) -> None:
    both.udp.is_cut = first is Way.TCP
    async with both.client() as client:
        assert client.way == first.value
        mesh.region.stop_after = 4
        chat = await start(client)
        both.udp.is_cut, both.tcp.is_cut = first is Way.QUIC, first is Way.TCP
        events: list[Event] = []
        while not any(isinstance(it, Interrupted) for it in events):
            events.append(await anext(chat))
        chat.cancel()
        assert (await chat.result()).finish_reason == "cancelled"
        assert client.way == first.other.value
        await eventually(lambda: mesh.region.cancelled == ["the client cancelled"])
        both.udp.is_cut = both.tcp.is_cut = False


async def test_early_data_that_nobody_answers_is_sent_over_tcp(mesh: Running, both: Ways) -> None:
    tickets = SessionTickets()
    async with both.client(tickets=tickets) as client:
        assert await said(client.chat(ASK)) == REPLY
    both.udp.is_cut = True
    async with both.client(tickets=tickets, early_data=True) as client:
        assert client.way == "QUIC", "nobody has answered yet"
        async with client.chat(ASK) as chat:
            await whole(chat)
        assert client.way == "TCP"
    assert len(mesh.region.opened) == 2, "one for each chat"


async def test_quic_that_gets_through_again_is_used_again(
    monkeypatch: pytest.MonkeyPatch, both: Ways
) -> None:
    monkeypatch.setattr("outrider.client.link.LIMITS", WayLimits(remembered_s=0.0))
    both.udp.is_cut = True
    async with both.client() as client:
        assert client.way == "TCP"
        both.udp.is_cut = False
        assert await said(client.chat(ASK)) == REPLY
        await eventually(lambda: client.way == "QUIC")
        assert await said(client.chat(ASK)) == REPLY


async def test_several_chats_of_one_connection_come_over_together(
    mesh: Running, both: Ways
) -> None:
    async with both.client() as client:
        mesh.region.hold(4)
        chats: list[Chat] = [await start(client) for _ in range(4)]
        both.udp.is_cut = True
        for chat in chats:
            while not isinstance(await anext(chat), Interrupted):
                pass
        mesh.region.gate.set()
        assert [(await chat.result()).text for chat in chats] == [REPLY] * 4
        assert client.way == "TCP"
        assert both.tcp.num_accepted == 1, "one connection for all"


def test_the_tcp_port_is_the_same_number_unless_it_is_named() -> None:
    assert EdgeAddress("edge.example", 4433).tcp_port == 4433
    assert EdgeAddress("edge.example", 4433, http_port=443).tcp_port == 443


@pytest.mark.parametrize("query", ["tcp=0", "tcp=x", "tcp=65536", "udp=443", "tcp"])
async def test_other_questions_of_an_address_are_refused(query: str) -> None:
    with pytest.raises(ConfigError):
        async with connect(f"quic://127.0.0.1:4433?{query}"):
            raise AssertionError("connected")
