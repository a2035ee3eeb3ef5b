"""Clients that have work begun and then reset, on every route and frame that computes: what is
computed for them afterwards is for nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final

from bench.hostile.bodies import text_of
from bench.hostile.http1 import connection, post
from bench.hostile.target import Findings, Target, certificate_of, turns
from outrider.client import Client, connect
from outrider.errors import OutriderError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams

_EACH: Final = 4
"""Requests of each kind at a time."""
_STAYS_S: Final = 0.3
_CHARS: Final = 150_000
_PATIENCE_S: Final = 5.0
"""Until all requests of a turn are sent."""
_TALE: Final = "Tell a long tale."


def routes(words: str) -> Mapping[str, Mapping[str, Any]]:
    """By path of a route that computes, a body that has it compute for long: a text that nobody has
    sent before, which begins with `words`; for embeddings many."""
    text = text_of(words, _CHARS)
    said = [{"role": "user", "content": text}]
    return {
        "/v1/chat/completions": {"messages": said},
        "/v1/completions": {"prompt": text},
        "/v1/responses": {"input": text},
        "/v1/responses/input_tokens": {"input": text},
        "/v1/messages": {"messages": said, "max_tokens": 400},
        "/v1/messages/count_tokens": {"messages": said},
        "/v1/embeddings": {"input": [f"{words} {number}" for number in range(500)]},
        "/tokenize": {"prompt": text},
        "/detokenize": {"tokens": list(range(1000, 9000))},
    }


async def resets_everywhere(target: Target, seconds: float, findings: Findings) -> None:
    """Texts of 150 KB and long replies are begun on every route over HTTP and every frame of the
    native protocol that computes, and once all are sent they are reset together, again and
    again."""
    async with connect(*target.address, ca=certificate_of(target), key=target.key) as client:
        for turn in turns(seconds):
            sent = asyncio.Semaphore(0)
            begun = [_begin(target, data, sent) for data in _requests(target, turn)]
            begun += [_native(client, f"native {turn} {number}", sent) for number in range(_EACH)]
            tasks = [asyncio.create_task(it) for it in begun]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    for _ in tasks:
                        await sent.acquire()
            await asyncio.sleep(_STAYS_S)
            for task in tasks:
                task.cancel()
            left = await asyncio.gather(*tasks, return_exceptions=True)
            findings.count("reset", sum(isinstance(it, asyncio.CancelledError) for it in left))


def _requests(target: Target, turn: int) -> list[bytes]:
    reply = {"messages": [{"role": "user", "content": _TALE}], "max_tokens": 400}
    rows = [
        row
        for number in range(_EACH)
        for row in (*routes(f"{turn} {number}").items(), ("/v1/chat/completions", reply))
    ]
    return [post(path, json.dumps(body).encode(), target) for path, body in rows]


async def _begin(target: Target, data: bytes, sent: asyncio.Semaphore) -> None:
    """Send a request and wait for ever; cancelled, it resets the connection."""
    try:
        async with connection(target) as (_, writer):
            writer.write(data)
            await writer.drain()
            sent.release()
            await asyncio.Event().wait()
    except OSError:
        sent.release()


async def _native(client: Client, words: str, sent: asyncio.Semaphore) -> None:
    """Ids of a text, a chat of as long a text, and a long reply."""
    text = text_of(words, _CHARS)
    async with asyncio.TaskGroup() as group:
        group.create_task(_ids(client, text))
        group.create_task(_chat(client, text))
        group.create_task(_chat(client, _TALE))
        sent.release()


async def _ids(client: Client, text: str) -> None:
    with contextlib.suppress(OutriderError):
        await client.tokenize(text)


async def _chat(client: Client, said: str) -> None:
    sampling = SamplingParams(max_tokens=400, ignore_eos=True)
    with contextlib.suppress(OutriderError):
        async with client.chat([Message("user", said)], sampling=sampling) as chat:
            async for _ in chat:
                pass
