"""When the next request of an HTTP/1.1 connection is read."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import h11
import pytest

from services.edge.http.http1 import ClientClosed, _Turn

MAX_WAITING_BYTES = 100
REQUEST = b"GET / HTTP/1.1\r\nHost: edge\r\n\r\n"
NEXT = b"POST / HTTP/1.1\r\nHost: edge\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000


class Sent:
    """A connection on which a client has sent these pieces, and stays."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def receive(self, max_bytes: int) -> bytes:
        if not self._pieces:
            await asyncio.Event().wait()
        return self._pieces.pop(0)

    async def turn(self) -> None:
        """At once."""


def serving() -> h11.Connection:
    """A connection whose first request is being answered."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(REQUEST)
    assert isinstance(connection.next_event(), h11.Request)
    assert isinstance(connection.next_event(), h11.EndOfMessage)
    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    return connection


def turn_of(connection: h11.Connection, *sent: bytes) -> _Turn:
    stream: Any = Sent(*sent)
    return _Turn(stream, connection, MAX_WAITING_BYTES)


async def test_a_client_that_sends_on_and_on_before_its_answer_is_left() -> None:
    with pytest.raises(ClientClosed):
        await turn_of(serving(), NEXT).wait()


async def test_little_of_another_request_may_wait() -> None:
    connection = serving()
    turn = turn_of(connection, NEXT[:MAX_WAITING_BYTES])
    waiting = asyncio.create_task(turn.wait())
    await anyio.wait_all_tasks_blocked()
    assert not waiting.done()
    await turn.set()
    await waiting
    assert connection.trailing_data[0] == NEXT[:MAX_WAITING_BYTES]


async def test_a_client_that_has_its_answer_may_send_a_large_request_at_once() -> None:
    """It may come before the task that answered has run to its end."""
    connection = serving()
    connection.send(h11.EndOfMessage())
    turn = turn_of(connection, NEXT)
    waiting = asyncio.create_task(turn.wait())
    await anyio.wait_all_tasks_blocked()
    assert not waiting.done()
    connection.start_next_cycle()
    await turn.set()
    await waiting
    assert isinstance(connection.next_event(), h11.Request)
    body = connection.next_event()
    assert isinstance(body, h11.Data) and len(body.data) == 5000
