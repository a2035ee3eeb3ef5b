"""A request with an idempotency key that reaches several edges of a site has one reply: real edges
and a real Redis."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
import uvloop
from httpx2 import AsyncClient

from outrider.models.vocabulary import Vocabulary
from outrider.session.client import Accepted, Committed
from outrider.testing import eventually
from services.edge.chat import shared_replies
from services.edge.chat.replay import ReplayLog
from services.edge.chat.resumption_table import ChatKey
from services.edge.chat.shared_replies import (
    SharedReplies,
    SharedRepliesConfig,
    open_shared_replies,
)
from tests.edge.http.asking import events_of
from tests.edge.integration.chat_routes import CHAT, COMPLETION, ChatRoute, over_chat_routes
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.running import REPLY, Running
from tests.forgetful_relay import ForgetfulRelay, forgetful_relay
from tests.redis_server import RedisServer, redis_server

SECRET = "0123456789abcdef" * 2
KEYED = {"Idempotency-Key": "k"}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as found:
        yield found


class Edge(NamedTuple):
    """One edge of a site, with a region of its own, and a client of it."""

    mesh: Running
    client: AsyncClient

    @property
    def num_resumed(self) -> list[int]:
        """For each session that its region was asked for: tokens that it was given."""
        return [opening.resume.count for opening in self.mesh.region.opened]

    async def asked(self, route: ChatRoute, had: str = "", *, key: str = "k") -> bytes:
        """The events of the route's stream with this key, behind the event `had`."""
        told = {"Idempotency-Key": key} | ({"Last-Event-ID": had} if had else {})
        answer = await self.client.post(route.path, json=route.streamed, headers=told)
        assert answer.status_code == 200, answer.text
        return answer.content

    async def cut(self, route: ChatRoute, num_chars: int) -> str:
        """The id of the last event before the client leaves, which had so much of the reply."""
        had = b""
        async with self.client.stream(
            "POST", route.path, json=route.streamed, headers=KEYED
        ) as stream:
            async for piece in stream.aiter_bytes():
                had += piece
                if len(route.text_of(had)) == num_chars:
                    break
        assert route.text_of(had) == REPLY[:num_chars]
        return [it["id"] for it in events_of(had) if "id" in it][-1]


def through(relay: ForgetfulRelay, timeout_ms: float) -> SharedRepliesConfig:
    """The Redis behind it."""
    url = f"redis://127.0.0.1:{relay.port}/0"
    return SharedRepliesConfig(url, key=SECRET, timeout_ms=timeout_ms)


@asynccontextmanager
async def edges(
    server: RedisServer, words: Vocabulary, folder: Path, num: int = 2, **options: Any
) -> AsyncIterator[list[Edge]]:
    """The edges of a site."""
    shared = SharedRepliesConfig(server.url, key=SECRET, timeout_ms=5000.0)
    options = {"cache_salt_key": "a secret", "shared_replies": shared, **options}
    async with AsyncExitStack() as stack:
        meshes = [
            await stack.enter_async_context(
                serving_http(words, folder / str(number), REPLY, **options)
            )
            for number in range(num)
        ]
        # Clients leave first: an edge that ends looks for tasks that began since it did.
        found = [Edge(it, await stack.enter_async_context(plain(it))) for it in meshes]
        yield found


@over_chat_routes
async def test_a_stream_that_was_cut_goes_on_at_another_edge(
    route: ChatRoute, server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    async with edges(server, words, tmp_path) as (one, two):
        one.mesh.region.hold(6)
        last = await one.cut(route, 6)
        rest = await two.asked(route, last)
        assert route.text_of(rest) == REPLY[6:]
        assert two.num_resumed == [6], "what the first edge had is not computed again"
        await one.mesh.settled()
        assert len(one.mesh.region.cancelled) == 1, "it computes nothing that nobody reads"
        one.mesh.region.gate.set()
        # Whole, wherever it is asked for.
        for edge in (one, two):
            whole = await edge.client.post(route.path, json=route.body, headers=KEYED)
            assert route.text(whole.json()) == REPLY
            assert route.text_of(await edge.asked(route)) == REPLY
        assert len(one.mesh.region.opened) == len(two.mesh.region.opened) == 1


async def test_a_whole_reply_is_the_same_at_every_edge(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    async with edges(server, words, tmp_path, 3) as (one, *others):
        route = CHAT
        first = (await one.client.post(route.path, json=route.body, headers=KEYED)).json()
        for edge in others:
            again = (await edge.client.post(route.path, json=route.body, headers=KEYED)).json()
            assert again["choices"] == first["choices"]
            assert again["usage"] == first["usage"]
            assert edge.mesh.region.opened == []
            assert edge.mesh.sample("outrider_edge_resumed_chats_total", how="replayed") == 1


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_the_newest_request_gets_the_reply(
    is_streamed: bool, server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    route = COMPLETION
    body = route.streamed if is_streamed else route.body
    async with edges(server, words, tmp_path) as (one, two):
        one.mesh.region.hold(6)
        older = asyncio.create_task(one.client.post(route.path, json=body, headers=KEYED))
        await eventually(lambda: any(it.committed == 6 for it in one.mesh.region.live.values()))
        newer = await two.client.post(route.path, json=body, headers=KEYED)
        if is_streamed:
            assert route.text_of(newer.content) == REPLY
            assert b"another edge" in (await older).content
        else:
            assert route.text(newer.json()) == REPLY
            assert (await older).status_code == 409
        assert two.num_resumed == [6]
        one.mesh.region.gate.set()


async def test_an_edge_that_is_silent_holds_nothing(
    server: RedisServer, words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_replies, "LEASE_S", 0.5)
    async with edges(server, words, tmp_path) as (one, two):
        one.mesh.region.hold(6)
        last = await one.cut(CHAT, 6)
        shared = one.mesh.edge._shared_replies
        assert shared is not None
        reader: Any = redis.Redis(port=server.port)
        await eventually(lambda: any(b"0" in reader.hkeys(it) for it in reader.keys()))
        shared._task.cancel()
        assert CHAT.text_of(await two.asked(CHAT, last)) == REPLY[6:]
        one.mesh.region.gate.set()
        await one.mesh.settled()
        assert CHAT.text_of(await two.asked(CHAT)) == REPLY
        assert len(two.mesh.region.opened) == 1


async def test_an_edge_that_stops_leaves_its_replies_to_others(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        (two,) = await stack.enter_async_context(edges(server, words, tmp_path / "two", 1))
        async with edges(server, words, tmp_path / "one", 1) as (one,):
            one.mesh.region.hold(6)
            last = await one.cut(CHAT, 6)
            await eventually(lambda: one.mesh.sample("outrider_edge_detached_chats") == 1)
            one.mesh.edge.listener.context.resumable.close()
            await one.mesh.settled()
            one.mesh.region.gate.set()
        assert CHAT.text_of(await two.asked(CHAT, last)) == REPLY[6:]
        assert two.num_resumed == [6]


async def test_a_key_is_for_one_request_at_all_edges(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    other = {**CHAT.body, "temperature": 0.5}
    async with edges(server, words, tmp_path) as (one, two):
        one.mesh.region.hold(6)
        older = asyncio.create_task(one.asked(CHAT))
        await eventually(lambda: bool(one.mesh.region.live))
        refused = await two.client.post(CHAT.path, json=other, headers=KEYED)
        assert refused.status_code == 422 and "new key" in refused.text
        one.mesh.region.gate.set()
        assert CHAT.text_of(await older) == REPLY, "unharmed"
        refused = await two.client.post(CHAT.path, json=other, headers=KEYED)
        assert refused.status_code == 422
        assert two.mesh.region.opened == []


async def test_other_owners_have_other_replies(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    async with edges(server, words, tmp_path) as (one, two):
        await one.asked(CHAT)
        async with plain(two.mesh, key="") as anyone:
            for number in range(2):
                headers = KEYED | {"x-outrider-client": f"{number:032x}"}
                answer = await anyone.post(CHAT.path, json=CHAT.body, headers=headers)
                assert CHAT.text(answer.json()) == REPLY
        assert two.num_resumed == [0, 0]
        async with plain(one.mesh, key="") as anyone:
            answer = await anyone.post(CHAT.path, json=CHAT.body, headers=headers)
            assert CHAT.text(answer.json()) == REPLY
        assert len(one.mesh.region.opened) == 1, "the same client at another edge"


async def test_a_reader_of_redis_learns_nothing(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    async with edges(server, words, tmp_path, 1) as (one,):
        await one.asked(CHAT, key="a very telling key")
        reader: Any = redis.Redis(port=server.port)
        await eventually(lambda: bool(reader.keys()))
        (name,) = reader.keys()
        await eventually(lambda: reader.hget(name, "whole") == b"1")
        kept = name + b"".join(k + v for k, v in reader.hgetall(name).items())
        for told in (b"telling", b"acme", REPLY.encode(), REPLY[:6].encode(), b"small"):
            assert told not in kept
        assert 0 < reader.ttl(name) <= 30


async def test_a_user_with_no_more_rights_than_it_needs(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    rights = "+evalsha +script|load +hmget +hget +hset +hdel +del +expire +time"
    with redis.Redis(port=server.port) as client:
        names = "~outrider:replies:*"
        client.execute_command("ACL", "SETUSER", "edge", "on", ">pass", names, *rights.split())
        client.execute_command("ACL", "SETUSER", "default", "off")
    shared = SharedRepliesConfig(
        server.url, key=SECRET, user="edge", password="pass", timeout_ms=5000.0
    )
    async with edges(server, words, tmp_path, shared_replies=shared) as (one, two):
        one.mesh.region.hold(6)
        last = await one.cut(CHAT, 6)
        assert CHAT.text_of(await two.asked(CHAT, last)) == REPLY[6:]
        assert two.num_resumed == [6]
        one.mesh.region.gate.set()


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "whole"])
async def test_a_reply_is_given_up_at_any_edge(
    is_running: bool, server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    async with edges(server, words, tmp_path) as (one, two):
        if is_running:
            one.mesh.region.hold(6)
            await one.cut(CHAT, 6)
        else:
            await one.asked(CHAT)
        answer = await two.client.delete(CHAT.path, headers=KEYED)
        assert answer.json() == {"num_cancelled": int(is_running)}
        await one.mesh.settled()
        one.mesh.region.gate.set()
        assert CHAT.text_of(await two.asked(CHAT)) == REPLY
        assert two.num_resumed == ([0] if is_running else [])


async def test_log_probabilities_are_computed_again(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    body = {**CHAT.body, "logprobs": True}
    async with edges(server, words, tmp_path) as (one, two):
        one.mesh.region.hold(6)
        older = asyncio.create_task(one.client.post(CHAT.path, json=body, headers=KEYED))
        await eventually(lambda: any(it.committed == 6 for it in one.mesh.region.live.values()))
        answer = await two.client.post(CHAT.path, json=body, headers=KEYED)
        assert answer.status_code == 200
        assert (await older).status_code == 409
        assert two.num_resumed == [0]
        one.mesh.region.gate.set()


@pytest.mark.parametrize("is_hung", [True, False], ids=["hung", "gone"])
async def test_without_redis_each_edge_answers_alone(
    is_hung: bool, server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    shared = SharedRepliesConfig(server.url, key=SECRET, timeout_ms=50.0)
    async with edges(server, words, tmp_path, shared_replies=shared) as (one, two):
        if is_hung:
            redis.Redis(port=server.port).client_pause(60_000)
        else:
            server.kill()
        for edge in (one, two):
            assert CHAT.text_of(await edge.asked(CHAT)) == REPLY
            assert CHAT.text_of(await edge.asked(CHAT)) == REPLY, "its own it knows"
            assert edge.num_resumed == [0]


async def test_a_defect_ends_no_chat(
    server: RedisServer, words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edges(server, words, tmp_path, 1) as (one,):
        with monkeypatch.context() as patch:
            patch.setattr(shared_replies.SharedReplies, "_run_script", None)
            assert CHAT.text_of(await one.asked(CHAT)) == REPLY


async def test_redis_may_forget_everything(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    async with edges(server, words, tmp_path) as (one, two):
        one.mesh.region.hold(6)
        last = await one.cut(CHAT, 6)
        reader: Any = redis.Redis(port=server.port)
        await eventually(lambda: any(b"0" in reader.hkeys(it) for it in reader.keys()))
        reader.flushall()
        await eventually(lambda: any(b"0" in reader.hkeys(it) for it in reader.keys()))
        assert CHAT.text_of(await two.asked(CHAT, last)) == REPLY[6:]
        assert two.num_resumed == [6], "it was saved again"
        one.mesh.region.gate.set()


async def test_waiting_requests_are_bounded_and_may_leave(
    server: RedisServer, words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_replies, "_MAX_CLAIMS", 0)
    async with edges(server, words, tmp_path, 1) as (one,):
        assert CHAT.text_of(await one.asked(CHAT)) == REPLY, "as without a Redis"
        monkeypatch.setattr(shared_replies, "_MAX_CLAIMS", 1)
        redis.Redis(port=server.port).client_pause(60_000)
        leaving = asyncio.create_task(one.asked(CHAT, key="other"))
        shared = one.mesh.edge._shared_replies
        assert shared is not None
        await eventually(lambda: one.mesh.edge.telemetry.num_chats == 1)
        leaving.cancel()
        await one.mesh.settled()
        assert len(one.mesh.region.opened) == 1
        server.kill()


async def until_placed(edge: Edge) -> None:
    """Return when a region has a chat, and the edge knows of it."""
    shared = edge.mesh.edge._shared_replies
    assert shared is not None
    await eventually(
        lambda: any(it.chat is not None and it.chat.is_placed for it in shared._held.values())
    )


async def test_a_prompt_that_is_being_computed_is_not_computed_at_another_edge_too(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    async with edges(server, words, tmp_path) as (one, two):
        one.mesh.region.hold(0)
        older = asyncio.create_task(one.asked(CHAT))
        await until_placed(one)
        newer = asyncio.create_task(two.asked(CHAT))
        reader: Any = redis.Redis(port=server.port)
        await eventually(lambda: any(reader.hget(it, "wanted") for it in reader.keys()))
        (name,) = reader.keys()
        for _ in range(2):  # a save after it was wanted has ended, whenever the first one began
            until = reader.hget(name, "until")
            await eventually(lambda until=until: reader.hget(name, "until") != until)  # type: ignore[misc]
        assert not older.done() and two.num_resumed == []
        one.mesh.region.hold(3)
        one.mesh.region.gate.set()
        one.mesh.region.gate.clear()
        assert CHAT.text_of(await newer) == REPLY
        assert two.num_resumed == [3]
        assert b"another edge" in await older
        one.mesh.region.gate.set()


async def test_a_request_whose_client_left_takes_no_reply(
    server: RedisServer, words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edges(server, words, tmp_path) as (one, two):
        one.mesh.region.hold(0)
        older = asyncio.create_task(one.asked(CHAT))
        await until_placed(one)
        newer = asyncio.create_task(two.asked(CHAT))
        reader: Any = redis.Redis(port=server.port)
        await eventually(lambda: any(reader.hget(it, "wanted") for it in reader.keys()))
        newer.cancel()
        await two.mesh.settled()
        (name,) = reader.keys()
        await eventually(lambda: float(reader.hget(name, "by") or 0.0) < time.time())
        one.mesh.region.gate.set()
        assert CHAT.text_of(await older) == REPLY


async def test_a_reply_that_was_taken_meanwhile_is_left_to_its_edge(
    server: RedisServer, words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_replies, "LEASE_S", 0.5)
    async with AsyncExitStack() as stack:
        relay = stack.enter_context(forgetful_relay(server.port))
        (two,) = await stack.enter_async_context(edges(server, words, tmp_path / "two", 1))
        far = edges(server, words, tmp_path / "one", 1, shared_replies=through(relay, 200.0))
        (one,) = await stack.enter_async_context(far)
        one.mesh.region.hold(6)
        older = asyncio.create_task(one.asked(CHAT))
        reader: Any = redis.Redis(port=server.port)
        await eventually(lambda: any(b"0" in reader.hkeys(it) for it in reader.keys()))
        relay.is_cut = True
        relay.forget()
        two.mesh.region.hold(9)
        newer = asyncio.create_task(two.asked(CHAT))
        await eventually(lambda: any(it.committed == 9 for it in two.mesh.region.live.values()))
        shared = one.mesh.edge._shared_replies
        assert shared is not None and shared._held
        relay.is_cut = False
        # Told that it is taken, it keeps nothing there any more; its own client has its reply.
        await eventually(lambda: not shared._held)
        (name,) = reader.keys()
        holder = reader.hget(name, "holder")
        one.mesh.region.gate.set()
        assert CHAT.text_of(await older) == REPLY
        assert reader.hget(name, "holder") == holder != b""
        two.mesh.region.gate.set()
        assert CHAT.text_of(await newer) == REPLY
        await eventually(lambda: reader.hget(name, "whole") == b"1")


async def test_connections_that_were_forgotten_cost_one_wait(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        relay = stack.enter_context(forgetful_relay(server.port))
        shared = through(relay, 1000.0)
        one, two = await stack.enter_async_context(
            edges(server, words, tmp_path, shared_replies=shared)
        )
        await one.asked(CHAT)
        await two.asked(CHAT)
        assert two.num_resumed == []
        relay.forget()
        for edge in (one, two):
            assert CHAT.text_of(await edge.asked(CHAT, key="while it waits in vain")) == REPLY
        await one.asked(CHAT, key="behind it")
        await two.asked(CHAT, key="behind it")
        assert (one.num_resumed, two.num_resumed) == ([0, 0, 0], [0])


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connections_that_were_reset_cost_nothing(
    new_loop: Callable[[], asyncio.AbstractEventLoop], server: RedisServer
) -> None:
    async def ask(relay: ForgetfulRelay) -> None:
        loop = asyncio.get_running_loop()
        shared = open_shared_replies(through(relay, 5000.0), window_s=30.0)
        assert shared is not None
        for key in ("before", "after"):
            answered: asyncio.Future[object] = loop.create_future()
            shared.claim(ChatKey(b"owner", key), b"digest", answered.set_result)
            assert await answered is not None, "Redis gave it"
            relay.reset()
            await asyncio.sleep(0.05)  # until the loop has seen it
        await shared.close()

    with forgetful_relay(server.port) as relay, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask(relay))


class Chat:
    """One under way at an edge."""

    is_placed = True

    def feed(self, item: object) -> None: ...


def begun(num_tokens: int) -> ReplayLog:
    """The log of a reply that has so many tokens."""
    log = ReplayLog()
    log.append(Accepted("request", "model", 7, template_date="2026-11-30"))
    for number in range(num_tokens):
        log.append(Committed("a", (number,), number + 1))
    return log


async def claimed(shared: SharedReplies) -> ReplayLog:
    """What is saved of a reply that is claimed."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    shared.claim(ChatKey(b"owner", "key"), b"digest", answered.set_result)
    found = await answered
    assert isinstance(found, ReplayLog)
    return found


def shared_by(url: str, timeout_ms: float = 5000.0) -> SharedReplies:
    config = SharedRepliesConfig(url, key=SECRET, timeout_ms=timeout_ms)
    shared = open_shared_replies(config, window_s=30.0)
    assert shared is not None
    return shared


async def test_an_edge_that_refuses_a_reply_leaves_what_another_had_saved_of_it(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_replies, "LEASE_S", 0.5)
    key = ChatKey(b"owner", "key")
    first, second, third = (shared_by(server.url) for _ in range(3))
    reader: Any = redis.Redis(port=server.port)
    assert not (await claimed(first)).upto
    first.begun(key, b"digest", begun(5), Chat())
    await eventually(lambda: any(b"0" in reader.hkeys(it) for it in reader.keys()))
    first._task.cancel()  # it dies
    await asyncio.gather(first._task, return_exceptions=True)
    assert (await claimed(second)).upto == 5
    second.begun(key, b"digest", begun(0), Chat())
    (name,) = reader.keys()
    until = reader.hget(name, "until")
    await eventually(lambda: reader.hget(name, "until") != until)  # it computes the prompt
    second.ended(key)
    assert (await claimed(third)).upto == 5
    third.begun(key, b"digest", begun(7), Chat())
    third.ended(key)
    await third.close()
    assert (await claimed(second)).upto == 7
    await second.close()
    await first._client.aclose()


async def test_a_reply_that_ends_while_redis_is_slow_is_saved_all_the_same(
    server: RedisServer,
) -> None:
    key = ChatKey(b"owner", "key")
    with forgetful_relay(server.port) as relay:
        near, far = shared_by(server.url), shared_by(f"redis://127.0.0.1:{relay.port}/0", 200.0)
        await claimed(far)
        far.begun(key, b"digest", begun(5), Chat())
        relay.forget()
        far.ended(key)
        reader: Any = redis.Redis(port=server.port)
        await eventually(lambda: any(b"0" in reader.hkeys(it) for it in reader.keys()))
        await far.close()
        assert (await claimed(near)).upto == 5
        await near.close()


async def test_no_request_waits_for_those_before_it() -> None:
    timeout_s, loop = 1.0, asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        config = SharedRepliesConfig(url, key=SECRET, timeout_ms=timeout_s * 1000)
        shared = open_shared_replies(config, window_s=30.0)
        assert shared is not None

        async def waited_s(number: int) -> float:
            await asyncio.sleep(number * timeout_s / 10)
            answered: asyncio.Future[object] = loop.create_future()
            began_at = time.monotonic()
            shared.claim(ChatKey(b"owner", str(number)), b"digest", answered.set_result)
            assert await answered is None, "this edge acts alone"
            return time.monotonic() - began_at

        # They come while Redis is asked for others, all along.
        waits = await asyncio.gather(*map(waited_s, range(10)))
        assert max(waits) < 1.5 * timeout_s
        await shared.close()


async def test_a_connection_may_take_longer_to_be_made_than_an_answer(
    server: RedisServer, words: Vocabulary, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        relay = stack.enter_context(forgetful_relay(server.port))
        relay.delay_s = 0.03
        (one,) = await stack.enter_async_context(
            edges(server, words, tmp_path, 1, shared_replies=through(relay, 100.0))
        )
        reader: Any = redis.Redis(port=server.port)

        async def is_shared() -> bool:
            await one.asked(CHAT, key=str(len(one.num_resumed)))
            return bool(reader.keys())

        while not await is_shared():
            await asyncio.sleep(0.02)
