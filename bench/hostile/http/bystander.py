"""A client that streams chats over HTTP all the while."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator

from bench.harness.http_client import HttpClient
from bench.harness.load import Answer
from bench.hostile.bystander import NUM_TOKENS, PROMPT, Chatting, chatting
from bench.hostile.target import Target
from outrider.errors import UnavailableError


class HttpBystander(Chatting):
    """Asks for what the native bystander asks for, so that both have to be told the same. Its
    connection is kept from chat to chat."""

    def __init__(self, target: Target, key: str) -> None:
        super().__init__()
        self._target = target
        self._key = key
        self._client: HttpClient | None = None

    async def ask(self) -> str:
        """As Chatting.ask."""
        if self._client is None:
            self._client = HttpClient(self._target.host, self._target.http_port, self._key)
        asked = {
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        done = Answer(began_at=time.perf_counter())
        text = await self._client.chat(asked, done)
        if done.error:
            await self.close()
            raise UnavailableError(f"a stream over HTTP: {done.error}")
        waits = self.waits
        waits.ttft_ms.append(done.ttft_ms)
        waits.itl_ms += done.gaps_ms()
        waits.gaps_ms += [done.ttft_ms, *done.gaps_ms()]
        return text

    async def pause(self) -> None:
        """As Chatting.pause. The edge closes a connection that is idle for long, so this one is
        closed first."""
        await super().pause()
        await self.close()

    async def close(self) -> None:
        """The next chat goes over another connection."""
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
            self._client = None


@contextlib.asynccontextmanager
async def http_bystanding(target: Target, key: str) -> AsyncIterator[HttpBystander]:
    """One that chats for as long as the context lasts."""
    bystander = HttpBystander(target, key)
    try:
        async with chatting(bystander):
            yield bystander
    finally:
        await bystander.close()
