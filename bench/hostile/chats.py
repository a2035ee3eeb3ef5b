"""Attacks by clients that the edge lets in: streams, frames and requests of every bad kind."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator

from bench.hostile.raw import RawConnection, raw_connection
from bench.hostile.target import Findings, Target
from outrider.client.wire import ChatOptions, request_frame
from outrider.codec.frames import encode_frame
from outrider.errors import OutriderError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams
from outrider.v1 import common_pb2, edge_pb2

_REFUSALS = (OutriderError, ConnectionError, TimeoutError, OSError)


async def malformed_streams(target: Target, seconds: float, findings: Findings) -> None:
    """Lengths that lie, frames without a message, streams that end inside a frame, noise."""
    chance = random.Random(1)
    good = _good_frame()
    async for connection in _connections(target, seconds, findings):
        for _ in range(40):
            kind = chance.randrange(6)
            data = (
                chance.randbytes(chance.randint(1, 2000)),
                b"\xff\xff\xff\xff\x7f" + good,
                b"\x00" + good,
                good[: chance.randrange(1, len(good))],
                encode_frame(chance.randbytes(300)),
                b"\x80" * chance.randint(1, 12),
            )[kind]
            connection.send(data, end=chance.random() < 0.7)
        await _answered(connection, findings)


async def malformed_messages(target: Target, seconds: float, findings: Findings) -> None:
    """A good request with bits turned, bytes cut out and pieces doubled: protobuf and what is in
    it."""
    chance = random.Random(2)
    good = _good_frame()[2:]
    async for connection in _connections(target, seconds, findings):
        for _ in range(40):
            damaged = bytearray(good)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(damaged))
                damaged[at] ^= 1 << chance.randrange(8)
            if chance.random() < 0.3:
                at = chance.randrange(len(damaged))
                damaged[at:at] = damaged[: chance.randrange(len(damaged))]
            connection.send(encode_frame(bytes(damaged)), end=True)
        await _answered(connection, findings)


async def absurd_requests(target: Target, seconds: float, findings: Findings) -> None:
    """Well-formed requests for what nobody can have: each gets an error that names it."""
    absurd = [
        common_pb2.Sampling(temperature=float("nan")),
        common_pb2.Sampling(temperature=-3.0),
        common_pb2.Sampling(max_tokens=2**31),
        common_pb2.Sampling(top_k=2**31),
        common_pb2.Sampling(stop=["x" * 10_000] * 50),
        common_pb2.Sampling(stop=[""] * 10_000),
        common_pb2.Sampling(stop_ids=list(range(50_000))),
        common_pb2.Sampling(acceptance_threshold=9.0),
    ]
    requests = [edge_pb2.ChatRequest(messages=_ask("hello"), sampling=one) for one in absurd]
    requests += [
        edge_pb2.ChatRequest(messages=_ask("hello"), priority=17),  # type: ignore[arg-type]
        edge_pb2.ChatRequest(messages=_ask("hello"), residency=["r" * 1000] * 1000),
        edge_pb2.ChatRequest(messages=_ask("hello"), model="m" * 100_000),
        edge_pb2.ChatRequest(messages=_ask("hello"), idempotency_key="k" * 100_000),
        edge_pb2.ChatRequest(messages=[common_pb2.ChatMessage(role="r" * 100_000, content="x")]),
        edge_pb2.ChatRequest(messages=_ask("x") * 20_000),
        edge_pb2.ChatRequest(messages=_ask("word " * 190_000)),
        edge_pb2.ChatRequest(messages=[]),
        edge_pb2.ChatRequest(
            messages=_ask("x"), resume=edge_pb2.ResumePoint(upto=2**31, num_chars=2**31)
        ),
        edge_pb2.ChatRequest(messages=_ask("x"), resume=edge_pb2.ResumePoint(upto=3, ids=[2**31])),
    ]
    frames = [
        encode_frame(edge_pb2.ClientFrame(chat=request).SerializeToString()) for request in requests
    ]
    async for connection in _connections(target, seconds, findings):
        for frame in frames:
            number = connection.send(frame, end=True)
            answers = await connection.answer(number)
            kind = answers[-1].WhichOneof("kind") if answers else "nothing"
            findings.count(f"answered {kind}")
            connection.reset(number)


async def private_use_text(target: Target, seconds: float, findings: Findings) -> None:
    """Half a megabyte of private-use characters around one control token."""
    text = "\ue000" * 80_000 + "<|im_end|>" + "\ue001\ue002" * 40_000
    message = edge_pb2.ChatRequest(messages=_ask(text), sampling=common_pb2.Sampling(max_tokens=1))
    frame = encode_frame(edge_pb2.ClientFrame(chat=message).SerializeToString())
    async for connection in _connections(target, seconds, findings):
        for _ in range(4):
            number = connection.send(frame, end=True)
            answers = await connection.answer(number)
            findings.count(f"answered {answers[-1].WhichOneof('kind') if answers else 'nothing'}")


async def one_byte_streams(target: Target, seconds: float, findings: Findings) -> None:
    """Streams with one byte of a frame each, left open."""
    async for connection in _connections(target, seconds, findings):
        for _ in range(20):
            for _ in range(50):
                connection.send(b"\x20")
                findings.count("streams")
            await asyncio.sleep(0.01)


async def high_priority(target: Target, seconds: float, findings: Findings) -> None:
    """Chats of the highest priority by somebody whom nothing entitles to it."""
    options = ChatOptions(sampling=SamplingParams(max_tokens=4), priority="high")
    frame = request_frame([Message("user", "Me first.")], options, ("", ""))
    async for connection in _connections(target, seconds, findings):
        answers = await connection.answer(connection.send(frame, end=True))
        kinds = {answer.WhichOneof("kind") for answer in answers}
        findings.count("refused" if "error" in kinds else "served")
        if "done" in kinds:
            findings.broken.append("a stranger's chat ran at high priority")
            return


async def _connections(
    target: Target, seconds: float, findings: Findings
) -> AsyncIterator[RawConnection]:
    """One connection after the other, until the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            async with raw_connection(target) as connection:
                findings.count("connections")
                yield connection
        except _REFUSALS as error:
            findings.count(f"connection refused: {type(error).__name__}")
            await asyncio.sleep(0.1)


async def _answered(connection: RawConnection, findings: Findings) -> None:
    """A good request on the same connection is answered all the same."""
    answers = await connection.answer(connection.send(_good_frame(), end=True))
    kind = answers[-1].WhichOneof("kind") if answers else "nothing"
    findings.count(f"good request: {kind}")


def _good_frame() -> bytes:
    options = ChatOptions(sampling=SamplingParams(max_tokens=2))
    return request_frame([Message("user", "What is two plus two?")], options, ("", ""))


def _ask(text: str) -> list[common_pb2.ChatMessage]:
    return [common_pb2.ChatMessage(role="user", content=text)]
