"""Chats over real QUIC and real gRPC: the text, the events, several at once, the ways to end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop

from outrider.client import (
    Accepted,
    Client,
    Committed,
    Cost,
    Done,
    Interrupted,
    Message,
    Provisional,
    SamplingParams,
    Transcript,
)
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.tokenization.rewriting import RewritingPolicy
from outrider.v1 import inference_pb2
from outrider.wire import set_cost
from services.edge.access.identity import TenantConfig
from services.edge.access.shared_limits import Answered, SharedAsk
from services.edge.session.events import Action, Input, Tick
from services.edge.session.machine import ChatSession
from services.edge.upstream.link import RouterLink
from tests.api_keys import key_of, text_of
from tests.edge.integration.nat import Nat
from tests.edge.integration.running import Running, running
from tests.edge.integration.trouble import said

ASK = [Message("user", "say hello there, hello there, hello there")]
AGAIN = [
    Message("user", "greet"),
    Message("assistant", "I say: hello you"),
    Message("user", "greet"),
]
REPLY = "I say: hello there, hello there, hello there! Ça va, 猫?"

pytestmark = pytest.mark.edge(reply=REPLY)


def test_a_session_that_is_woken_for_a_time_finds_it_come(
    words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers of libuv come up to a millisecond early; a session that found nothing due then would
    be woken at once again, and again."""
    ticks: list[bool] = []
    handle = ChatSession.handle

    def noted(self: ChatSession, item: Input, now: float) -> list[Action]:
        before = self.next_deadline()
        actions = handle(self, item, now)
        if isinstance(item, Tick):
            ticks.append(self.next_deadline() == before)
        return actions

    async def chats() -> None:
        async with running(words, tmp_path, REPLY) as mesh, mesh.client() as client:
            for _ in range(5):
                assert await said(client.chat(ASK)) == REPLY

    monkeypatch.setattr(ChatSession, "handle", noted)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(chats())
    assert ticks and not any(ticks)


async def test_the_text_is_the_regions(words: Vocabulary, mesh: Running, client: Client) -> None:
    async with client.chat(ASK) as chat:
        events = [event async for event in chat]
        result = await chat.result()
    assert result.text == REPLY
    assert result.ids == mesh.region.reply
    assert result.finish_reason == "stop"
    assert (result.region, result.replica) == ("test-region", "scripted")
    assert isinstance(events[0], Accepted)
    assert events[0].prompt_tokens == len(words.encode_chat(ASK))
    assert isinstance(events[-1], Done)
    transcript = Transcript()
    for event in events:
        transcript.apply(event)
    assert transcript.text == REPLY
    timings = result.timings
    assert timings.committed_ttft_ms is not None
    assert 0 < timings.committed_ttft_ms <= timings.total_ms


async def test_the_client_is_told_what_the_region_says_that_it_costs(
    mesh: Running, client: Client
) -> None:
    def say(frame: inference_pb2.SessionDown) -> None:
        if frame.HasField("done"):
            set_cost(frame.done.usage, Cost(420_000, "USD"))

    async with client.chat(ASK) as chat:
        assert (await chat.result()).usage.cost is None
    mesh.region.mangle = say
    async with client.chat(ASK) as chat:
        assert (await chat.result()).usage.cost == Cost(420_000, "USD")


async def test_drafts_for_which_there_was_no_room_are_sent_later(
    monkeypatch: pytest.MonkeyPatch, mesh: Running, client: Client
) -> None:
    send, tried = RouterLink.draft, list[inference_pb2.SessionUp]()

    def every_second(link: RouterLink, number: int, frame: inference_pb2.SessionUp) -> bool:
        tried.append(frame)
        return len(tried) % 2 == 0 and send(link, number, frame)

    monkeypatch.setattr(RouterLink, "draft", every_second)
    mesh.region.hold(6)
    async with client.chat(AGAIN) as chat:
        await eventually(lambda: any(s.num_frames for s in mesh.region.live.values()))
        mesh.region.gate.set()
        result = await chat.result()
    assert result.text == REPLY
    (session,) = mesh.region.finished
    assert 0 < session.num_frames <= len(tried) // 2, "each of them joined the one before"
    dropped = mesh.sample("outrider_edge_dropped_draft_frames_total")
    assert dropped == (len(tried) + 1) // 2


async def test_provisional_text_comes_before_the_region_says_anything(
    mesh: Running, client: Client
) -> None:
    mesh.region.gate.clear()
    async with client.chat(AGAIN) as chat:
        async for event in chat:
            if isinstance(event, Provisional):
                break
        assert mesh.region.finished == []
        mesh.region.gate.set()
        result = await chat.result()
    assert result.text == REPLY
    assert result.timings.provisional_ttft_ms is not None


async def test_speculation_stats_are_told(mesh: Running, client: Client) -> None:
    mesh.region.gate.clear()
    async with client.chat(AGAIN) as chat:
        await eventually(lambda: any(s.num_frames for s in mesh.region.live.values()))
        mesh.region.gate.set()
        result = await chat.result()
    assert result.text == REPLY
    stats, times = result.speculation_stats, result.timings
    assert 0 < stats.shown_tokens <= len(result.ids)
    num_accepted = mesh.region.finished[0].num_accepted
    assert stats.drafted_tokens >= stats.sent_tokens >= num_accepted >= len("I say: hello ")
    assert stats.checked_tokens >= stats.right_tokens >= stats.shown_tokens
    assert stats.commits_with_uploads > 0
    assert stats.rtt_ms > 0
    assert times.provisional_ttft_ms is not None
    assert times.staying_word_ms is not None and times.committed_ttft_ms is not None
    assert times.provisional_ttft_ms <= times.staying_word_ms <= times.total_ms


async def test_a_thin_client_leaves_tokenization_to_the_region(
    mesh: Running, client: Client
) -> None:
    async with client.chat(ASK, thin=True) as chat:
        events = [event async for event in chat]
    opened = mesh.region.opened[0]
    assert [m.content for m in opened.messages.messages] == [ASK[0].content]
    assert opened.vocabulary_digest == b""
    accepted = events[0]
    assert isinstance(accepted, Accepted)
    assert (accepted.request_id, accepted.edge) == (opened.request_id, "edge")
    assert (accepted.model, accepted.prompt_tokens) == ("small", len(ASK[0].content))


@pytest.mark.edge(rewriting=RewritingPolicy(system_prefix="House rules."))
async def test_a_thin_client_does_not_get_around_the_operators_prefix(
    mesh: Running, client: Client
) -> None:
    await said(client.chat(ASK, thin=True))
    messages = mesh.region.opened[0].messages
    found = [(m.role, m.content) for m in messages.messages]
    assert found == [("system", "House rules."), ("user", ASK[0].content)] and messages.prefixed


async def test_a_long_prompt_is_tokenized_off_the_loop(
    words: Vocabulary, mesh: Running, client: Client
) -> None:
    ask = [Message("user", "a long story, " * 200)]
    async with client.chat(ask) as chat:
        result = await chat.result()
    assert result.text == REPLY
    assert mesh.region.opened[0].ids.tail.count == len(words.encode_chat(ask))


async def test_many_chats_share_a_connection(mesh: Running, client: Client) -> None:
    async def one() -> str:
        return await said(client.chat(ASK))

    assert await asyncio.gather(*(one() for _ in range(20))) == [REPLY] * 20
    assert len({opened.request_id for opened in mesh.region.opened}) == 20


@pytest.mark.edge(region="here", max_priority="high")
async def test_everything_asked_for_reaches_the_region(
    words: Vocabulary, mesh: Running, client: Client
) -> None:
    sampling = SamplingParams(temperature=0.8, seed=7, top_p=0.9, stop=("END",), max_tokens=99)
    chat = client.chat(
        ASK,
        sampling=sampling,
        priority="high",
        deadline_ms=60_000,
        idempotency_key="key-1",
        residency=("eu-west",),
    )
    async with chat:
        await chat.result()
    opened = mesh.region.opened[0]
    assert len(opened.request_id) == 32 and "key-1" not in opened.request_id
    assert opened.sampling.seed == 7
    assert opened.sampling.max_tokens == 99
    assert opened.priority == 3
    assert 0 < opened.deadline_ms <= 60_000
    assert list(opened.residency) == ["eu-west"]
    assert opened.origin_region == "here"
    assert opened.vocabulary_digest == words.digest


async def test_a_cancel_ends_with_what_is_final(mesh: Running, client: Client) -> None:
    mesh.region.stop_after = 4
    async with client.chat(ASK) as chat:
        async for event in chat:
            if isinstance(event, Committed) and event.upto >= 4:
                chat.cancel()
        result = await chat.result()
    assert result.finish_reason == "cancelled"
    assert REPLY.startswith(result.text)
    await eventually(lambda: mesh.region.cancelled == ["the client cancelled"])


class Undecided:
    """Counts for several edges, and has not answered yet."""

    def __init__(self) -> None:
        self.asked: list[Answered] = []

    def ask(self, ask: SharedAsk, answered: Answered) -> None:
        self.asked.append(answered)

    def charge(self, *_: object) -> None: ...

    def sessions(self, *_: object) -> None: ...

    async def close(self) -> None: ...


@pytest.mark.edge(
    anonymous=False, tenants=(TenantConfig("few", requests_per_minute=9),), keys=(key_of("few"),)
)
async def test_a_chat_is_cancelled_while_the_limits_of_all_edges_are_asked(mesh: Running) -> None:
    async with mesh.client(key=text_of("few")) as client:
        limits = Undecided()
        mesh.edge._limiter.share(limits)
        async with client.chat(ASK, thin=True) as chat:
            await eventually(lambda: bool(limits.asked))
            chat.cancel()
            (connection,) = mesh.edge.listener.connections
            (stream,) = connection.native._streams.values()
            await eventually(lambda: bool(stream.handler._early))  # type: ignore[union-attr]
            limits.asked[0](None)
            assert (await chat.result()).finish_reason == "cancelled"


@pytest.mark.edge(drain_s=10.0)
async def test_the_stopping_edge_lets_chats_finish(mesh: Running, client: Client) -> None:
    mesh.region.stop_after = 4
    async with client.chat(ASK) as chat:
        async for event in chat:
            if isinstance(event, Committed) and event.upto >= 4:
                break
        stopping = asyncio.create_task(mesh.edge.stop())
        await eventually(lambda: mesh.edge.listener.is_draining)
        chat.cancel()
        assert (await chat.result()).finish_reason == "cancelled"
    await stopping


@pytest.mark.edge(drain_s=60.0)
async def test_the_stopping_edge_waits_until_the_end_of_a_reply_has_arrived(
    mesh: Running, relay: Nat
) -> None:
    """What was lost on the way is sent again, although no chat is open any more."""
    async with mesh.client(relay.port) as client:
        mesh.region.hold(6)
        async with client.chat(ASK) as chat:
            async for event in chat:
                if isinstance(event, Committed):
                    break
            relay.is_cut = True
            mesh.region.gate.set()
            await eventually(lambda: mesh.edge.telemetry.num_chats == 0)
            stopping = asyncio.create_task(mesh.edge.stop())
            await eventually(lambda: mesh.edge.listener.is_draining)
            relay.is_cut = False
            events = [event async for event in chat]
            assert (await chat.result()).text == REPLY
        assert not any(isinstance(event, Interrupted) for event in events)
        await stopping
