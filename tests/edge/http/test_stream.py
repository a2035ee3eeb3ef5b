"""The chats of one reply, and its end."""

from __future__ import annotations

from collections.abc import Callable

from outrider.errors import DrainingError
from services.edge.http.openai_chat import API
from services.edge.http.stream import RunningReply
from tests.edge.http.asking import USER, chat_of, planned

BODY = {"messages": [USER], "n": 2}


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
