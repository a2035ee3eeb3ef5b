"""Chats over HTTP that run all the time, as behind a plain load balancer: a request that an edge
does not take is sent to the next edge; a reply that breaks off has failed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any, Final

from bench.faults.chats import ChatTotals, ReferenceChat
from bench.harness.http_client import HttpClient
from bench.harness.load import Answer
from bench.harness.mesh import Service

_TAKEN_LIMIT_S: Final = 60.0
_RETRY_S: Final = 0.1


class HttpLoad:
    """Keeps `num_chats` streamed chats going for as long as the context lasts, and compares every
    reply's text and number of tokens with the reference's."""

    def __init__(
        self, edges: Sequence[Service], key: str, references: list[ReferenceChat], num_chats: int
    ) -> None:
        self._edges = edges
        self._key = key
        self._references = references
        self._num_chats = num_chats
        self._random = random.Random(13)
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []
        self.totals = ChatTotals()

    async def __aenter__(self) -> HttpLoad:
        self._tasks = [asyncio.create_task(self._work(n)) for n in range(self._num_chats)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _work(self, number: int) -> None:
        while not self._is_over:
            await self._chat(number, self._random.choice(self._references))
            number += 1

    async def _chat(self, number: int, reference: ReferenceChat) -> None:
        self.totals.chats += 1
        body, began_at = _body(reference), time.monotonic()
        while True:
            edge = self._edges[number % len(self._edges)]
            answer = Answer()
            http = edge.values["http"]
            assert isinstance(http, dict)
            async with HttpClient(edge.host, http["port"], self._key) as client:
                text = await client.chat(body, answer)
            if text or not answer.error or time.monotonic() > began_at + _TAKEN_LIMIT_S:
                break
            number += 1
            await asyncio.sleep(_RETRY_S)
        if answer.error:
            self.totals.errors.append(f"HTTP: {answer.error}")
        else:
            self._count(reference, text, answer.num_tokens)

    def _count(self, reference: ReferenceChat, text: str, num_tokens: int) -> None:
        totals, expected = self.totals, len(reference.ids)
        totals.tokens += num_tokens
        totals.lost += max(0, expected - num_tokens)
        totals.doubled += max(0, num_tokens - expected)
        totals.inexact += text != reference.text


def _body(reference: ReferenceChat) -> dict[str, Any]:
    sampling = reference.sampling
    return {
        "messages": [{"role": "user", "content": reference.prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        # Named, because versions may differ in what they take for a field that is left out.
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "max_tokens": sampling.max_tokens,
        "ignore_eos": True,
    }
