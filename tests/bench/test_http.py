"""The load over HTTP: what a stream is, what is an error, what a round amounts to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bench.harness import Run
from bench.harness.http_client import HttpClient
from bench.harness.load import Answer, WorkResult
from bench.http import load
from bench.http.load import Server

_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def _event(**fields: Any) -> bytes:
    data = b"data: " + json.dumps(fields).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def _text(text: str) -> bytes:
    return _event(choices=[{"delta": {"content": text}}])


_GOOD = (
    _HEAD
    + _event(choices=[{"delta": {"role": "assistant", "content": ""}}])
    + _text("a")
    + _text("b")
    + _event(choices=[], usage={"completion_tokens": 2})
    + b"0\r\n\r\n"
)


@asynccontextmanager
async def answering(answer: bytes, *, keeps: bool = True) -> AsyncIterator[int]:
    """A server that answers every request alike, and either keeps connections, or closes them
    without a word; its port."""

    served: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                (length,) = [
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.startswith(b"Content-Length")
                ]
                await reader.readexactly(length)
                writer.write(answer)
                if not keeps:
                    return writer.close()
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for writer in served:
            writer.close()
            await writer.wait_closed()


async def test_a_connection_that_is_closed_after_an_answer_costs_no_chat() -> None:
    async with answering(_GOOD, keeps=False) as port, HttpClient("127.0.0.1", port) as client:
        done = [Answer() for _ in range(3)]
        texts = [await client.chat({}, answer) for answer in done]
    assert texts == ["ab"] * 3 and not any(answer.error for answer in done)


async def test_a_server_that_never_answers_is_an_error() -> None:
    async with answering(b"", keeps=False) as port, HttpClient("127.0.0.1", port) as client:
        done = Answer()
        await client.chat({}, done)
    assert "closed the connection" in done.error


async def test_a_stream_and_another_on_its_connection() -> None:
    async with answering(_GOOD) as port, HttpClient("127.0.0.1", port, "key") as client:
        for _ in range(2):
            done = Answer()
            await client.chat({}, done)
            assert not done.error and done.num_tokens == 2
            assert len(done.token_s) == 2 and len(done.gaps_ms()) == 1 and done.ttft_ms > 0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "no text"),
        (_HEAD + _event(error={"message": "it broke"}) + b"0\r\n\r\n", "it broke"),
        (_HEAD + b"0\r\n\r\n", "no text"),
    ],
)
async def test_what_is_an_error(answer: bytes, error: str) -> None:
    async with answering(answer) as port, HttpClient("127.0.0.1", port) as client:
        done = Answer()
        await client.chat({}, done)
    assert error in done.error


async def test_all_questions_are_asked_once() -> None:
    async with answering(_GOOD) as port:
        done = await load.ask(Server("us", "127.0.0.1", port), ["a", "b", "c"], 2)
    assert len(done.answers) == 3 and not any(it.error for it in done.answers)
    assert done.tokens_per_s > 0


def test_errors_are_counted_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run("http", quick=True, command="")
    good = Answer(token_s=[0.1, 0.2], num_tokens=2)
    load.report(run, {("us", 8): [WorkResult(1.0, (good, Answer(error="it broke")))]})
    assert run.figures["errors"] == 1
    assert run.tables[0].rows[0][:4] == (8, "us", 1, 1)
    assert "it broke" in capsys.readouterr().out
