"""The chats of one reply, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from outrider.errors import DrainingError, OverloadedError
from outrider.session.client import Accepted, Committed, Done
from outrider.session.types import ScoredToken, TokenLogprobs
from services.edge.chat.replay import ClientChannel, ReplayCursor
from services.edge.http.openai_chat import API
from services.edge.http.stream import RunningReply
from tests.edge.http.asking import USER, chat_of, done, objects_of, planned

BODY = {"messages": [USER], "n": 2}
LIMIT = 32 << 10
LIKELY = tuple(ScoredToken(1000 + rank, -1.0, b" word") for rank in range(20))
PIECE_BYTES = 160 << 10
"""More than 64 tokens with these take."""


class Somebody:
    address = "127.0.0.1/32"
    connection_secret = bytes(16)

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        return lambda: None


async def test_a_reply_whose_chats_have_ended_is_whole_whatever_comes_then() -> None:
    reply = RunningReply(planned(API, BODY).writer, 2, Somebody(), 1 << 20)
    for stream in reply.streams:
        assert not reply.is_over
        for event in chat_of("a"):
            stream.tell(event)
        stream.end()
    # As when an edge stops that waited for the last chat.
    reply.fail(DrainingError("the edge stops"))
    assert reply.is_over and reply.error is None


async def test_a_reply_one_of_whose_chats_goes_on_fails_as_a_whole() -> None:
    reply = RunningReply(planned(API, BODY).writer, 2, Somebody(), 1 << 20)
    reply.streams[0].end()
    reply.fail(DrainingError("the edge stops"))
    assert reply.is_over and isinstance(reply.error, DrainingError)


class AwayFrom:
    """A chat whose client was away while it committed so many tokens, and came back."""

    def __init__(self, reply: RunningReply, index: int, num_missed: int) -> None:
        self.num_tokens = 0
        self._channel = ClientChannel(reply.streams[index], lambda: "", ReplayCursor())
        self._channel.lose()
        self._channel.tell(Accepted("r", "m", 3))
        self.commit(num_missed)
        self._channel.join(reply.streams[index], ReplayCursor())

    def commit(self, count: int) -> None:
        for number in range(self.num_tokens, self.num_tokens + count):
            scored = TokenLogprobs(ScoredToken(number, -1.0, b"w"), LIKELY)
            self._channel.tell(Committed(f"{number} ", (number,), number + 1, logprobs=(scored,)))
        self.num_tokens += count

    def finish(self) -> None:
        self._channel.tell(done(self.num_tokens))
        self._channel.end()


def replied(num_chats: int = 1, limit: int = LIMIT, **options: object) -> RunningReply:
    body = {"messages": [USER], "stream": True, "logprobs": True, "top_logprobs": 20}
    writer = planned(API, body | {"n": num_chats} | options).writer
    return RunningReply(writer, num_chats, Somebody(), limit)


def texts_of(sent: bytes, num_chats: int) -> list[str]:
    texts = [""] * num_chats
    for choice in (it for told in objects_of(sent) for it in told["choices"]):
        texts[choice["index"]] += choice["delta"].get("content") or ""
    return texts


def counted(num_tokens: int) -> str:
    return "".join(f"{number} " for number in range(num_tokens))


async def test_a_client_that_was_away_for_long_gets_all_of_its_chats_as_it_reads() -> None:
    reply = replied(2)
    chats = [AwayFrom(reply, 0, 300), AwayFrom(reply, 1, 500)]
    sent, sizes = b"", []
    while (data := await reply.next()) is not None:
        sent += data
        sizes.append(len(data))
        for chat in chats:
            if chat.num_tokens < 600:
                chat.commit(10)
            else:
                chat.finish()
    assert reply.error is None
    assert max(sizes) < LIMIT // 2 + PIECE_BYTES + LIMIT and sum(sizes) > 8 * LIMIT
    assert texts_of(sent, 2) == [counted(chat.num_tokens) for chat in chats]
    reasons = [it["finish_reason"] for told in objects_of(sent) for it in told["choices"]]
    assert reasons.count("stop") == 2


async def test_a_client_that_reads_nothing_of_what_it_missed_loses_nothing() -> None:
    reply = replied()
    chat = AwayFrom(reply, 0, 300)
    chat.commit(500)
    assert reply.error is None and reply._num_unsent_bytes < LIMIT // 2 + PIECE_BYTES
    sent = b""
    while data := await reply.next(0):
        sent += data
    assert texts_of(sent, 1) == [counted(800)]
    chat.commit(100)
    assert isinstance(reply.error, OverloadedError), "once it has caught up, it counts"


async def test_a_reply_that_is_not_streamed_takes_all_of_it_in_turns() -> None:
    reply = replied(stream=False)
    chat = AwayFrom(reply, 0, 700)
    assert reply._catching_up
    chat.finish()
    assert not reply.is_over
    await reply.ended()
    assert counted(700).encode() in reply._writer.whole()


async def test_a_client_that_leaves_drops_what_it_has_not_read() -> None:
    reply = replied()
    chat = AwayFrom(reply, 0, 300)
    chat.finish()
    reply.leave(may_return=True)
    assert await reply.next() is not None, "what was written"
    assert await reply.next() is None


class Connection:
    """What a reply is pushed to; while it `is_full`, it takes nothing."""

    def __init__(self, reply: RunningReply) -> None:
        self.is_full = False
        self.pushed: list[bytes] = []
        reply.begin_pushing(self.push)

    def push(self, data: bytes) -> bool:
        if not self.is_full:
            self.pushed.append(data)
        return not self.is_full


async def turns(count: int = 3) -> None:
    """So many of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_comes_in_one_turn_is_pushed_together_and_wakes_nobody() -> None:
    reply = RunningReply(planned(API, BODY | {"stream": True}).writer, 2, Somebody(), 1 << 20)
    connection = Connection(reply)
    waiting = asyncio.create_task(reply.next())
    await turns()
    for stream in reply.streams:
        for event in chat_of("a word"):
            if not isinstance(event, Done):
                stream.tell(event)
    await turns()
    (pushed,) = connection.pushed
    assert texts_of(pushed, 2) == ["a word", "a word"]
    assert not waiting.done() and not reply._num_unsent_bytes
    for stream in reply.streams:
        stream.end()
    assert await waiting is None


async def test_what_a_connection_does_not_take_is_there_for_who_writes_it() -> None:
    reply = replied(logprobs=False, top_logprobs=None)
    connection = Connection(reply)
    connection.is_full = True
    waiting = asyncio.create_task(reply.next())
    await turns()
    for event in chat_of("a word"):
        reply.streams[0].tell(event)
    told = await waiting
    assert told is not None and texts_of(told, 1) == ["a word"] and not connection.pushed


async def test_nothing_is_pushed_while_somebody_writes() -> None:
    reply = replied(logprobs=False, top_logprobs=None)
    connection = Connection(reply)
    for event in chat_of("a word"):
        reply.streams[0].tell(event)
    await turns()
    assert not connection.pushed
    told = await reply.next()
    assert told is not None and texts_of(told, 1) == ["a word"]


async def test_a_client_that_was_away_has_all_in_order_though_the_rest_is_pushed() -> None:
    reply = replied()
    connection = Connection(reply)
    waiting = asyncio.create_task(reply.next())
    await turns()
    chat = AwayFrom(reply, 0, 300)
    sent = b""
    while (data := await waiting) is not None:
        sent += b"".join(connection.pushed) + data
        connection.pushed.clear()
        waiting = asyncio.create_task(reply.next())
        await turns()
        if chat.num_tokens < 400:
            chat.commit(10)
        elif not reply.is_over and not reply._catching_up:
            chat.commit(1)
            await turns()
            chat.finish()
    assert texts_of(sent + b"".join(connection.pushed), 1) == [counted(chat.num_tokens)]


async def test_a_stream_is_silent_since_what_was_pushed_last() -> None:
    reply = replied(logprobs=False, top_logprobs=None)
    Connection(reply)
    waiting = asyncio.create_task(reply.next(3600.0))
    await turns()
    for event in chat_of("a word"):
        if not isinstance(event, Done):
            reply.streams[0].tell(event)
    await turns()
    assert not waiting.done()
    waiting.cancel()
    assert await reply.next(0.0) == b"", "nothing comes any more"
