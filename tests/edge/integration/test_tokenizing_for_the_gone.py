"""Nothing is tokenized for clients that have left, on any route that tokenizes."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.tokenization.encoder import CachingEncoder, PartialPrompt
from outrider.tokenization.pool.pool import TokenizationJob, TokenizationPool
from services.edge.http.config import HttpConfig
from tests.edge.integration.http_client import RawRequest, plain, serving_http

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))

_TEXT = "one two three " * 400
_SAID = [{"role": "user", "content": _TEXT}]
_ASKED: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": _TEXT},
    "/v1/messages/count_tokens": {"messages": _SAID},
    "/v1/responses/input_tokens": {"input": _TEXT},
    "/v1/chat/completions": {"messages": _SAID},
    "/v1/completions": {"prompt": _TEXT},
    "/v1/messages": {"messages": _SAID, "max_tokens": 4},
    "/v1/responses": {"input": _TEXT},
}
"""Bodies by route; the model is the edge's own."""


@pytest.mark.parametrize("path", _ASKED)
async def test_a_text_whose_client_has_left_loses_its_place(
    path: str, words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, busy, given_up = threading.Event(), threading.Semaphore(0), list[TokenizationJob]()
    in_slices, cancel = CachingEncoder.in_slices, TokenizationPool.cancel
    enqueue, queued = TokenizationPool._enqueue, list[TokenizationJob]()

    def held(
        encoder: CachingEncoder, prompt: PartialPrompt, *, may_wait: bool = True
    ) -> Generator[int, None, array[int]]:
        busy.release()
        assert gate.wait(30)
        return (yield from in_slices(encoder, prompt, may_wait=may_wait))

    def enqueued(pool: TokenizationPool, job: TokenizationJob) -> None:
        queued.append(job)
        enqueue(pool, job)

    def cancelled(pool: TokenizationPool, job: TokenizationJob) -> None:
        given_up.append(job)
        cancel(pool, job)

    async with serving_http(words, tmp_path, max_context_tokens=1 << 14) as mesh:
        monkeypatch.setattr(CachingEncoder, "in_slices", held)
        monkeypatch.setattr(TokenizationPool, "_enqueue", enqueued)
        monkeypatch.setattr(TokenizationPool, "cancel", cancelled)
        try:
            async with plain(mesh) as client:
                model = (await client.get("/v1/models")).json()["data"][0]["id"]
            body = _ASKED[path] | {"model": model}
            asked = []
            for count in range(1, 4):  # there are two threads
                asked.append(await RawRequest.post(mesh, path, body))
                await eventually(lambda count=count: len(queued) == count)  # type: ignore[misc]
            await asyncio.to_thread(lambda: busy.acquire() and busy.acquire())
            for one in asked:
                one.close()
            await eventually(lambda: len(given_up) == 3)
            assert set(given_up) == set(queued)
        finally:
            gate.set()
    assert not busy.acquire(blocking=False), "what waited was never begun"
