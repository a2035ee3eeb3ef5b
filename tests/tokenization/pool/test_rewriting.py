"""Chats are rewritten before they are tokenized, and again where they do not fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from outrider.fair_work.turns import Requester
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.selection import select_backend
from outrider.tokenization.encoder import CachingEncoder
from outrider.tokenization.pool.pool import (
    PoolPolicy,
    Shortened,
    TokenizationJob,
    TokenizationPool,
    TokenizationResult,
)
from outrider.tokenization.rewriting import Rewriter, RewritingPolicy
from tests.edge.integration.region import small_vocabulary

LONG = [Message("system", "rules"), Message("user", "x" * 500), Message("user", "why?")]


class Elsewhere:
    """Another process, which knows nothing of limits; it answers at once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @property
    def num_processes(self) -> int:
        return 1

    def offer(
        self, job: TokenizationJob, finish: Callable[[TokenizationJob, TokenizationResult], None]
    ) -> bool:
        finish(job, tuple(self._vocabulary.encode_chat(job.messages)))
        return True

    def close(self) -> None:
        """Nothing is open."""


async def outcome(
    chat: list[Message],
    policy: RewritingPolicy,
    *,
    elsewhere: bool = False,
    shortened: Shortened = lambda before, after: None,
) -> tuple[TokenizationResult, Vocabulary]:
    vocabulary = small_vocabulary()
    encoder = CachingEncoder(vocabulary, select_backend(vocabulary, REFERENCE))
    pool = TokenizationPool(
        encoder,
        # Without threads all of them are saturated.
        PoolPolicy(num_workers=0 if elsewhere else 1, max_inline_chars=0, max_tokens=200),
        rewriter=Rewriter(policy),
        shortened=shortened,
        overflow=Elsewhere(vocabulary) if elsewhere else None,
    )
    future: asyncio.Future[TokenizationResult] = asyncio.get_running_loop().create_future()
    pool.submit(chat, future.set_result, requester=Requester("one"))
    try:
        return await future, vocabulary
    finally:
        pool.close()
        pool.join()


async def test_what_does_not_fit_is_made_shorter_in_a_thread_and_elsewhere() -> None:
    policy = RewritingPolicy(too_long="cut_middle", min_reply_tokens=20)
    for elsewhere in (False, True):
        counted: list[tuple[int, int]] = []
        found, vocabulary = await outcome(
            *(LONG, policy),
            elsewhere=elsewhere,
            shortened=lambda before, after, counted=counted: counted.append((before, after)),  # type: ignore[misc]
        )
        assert isinstance(found, tuple) and 120 < len(found) <= 181, "a reply has its room"
        assert counted == [(len(vocabulary.encode_chat(LONG)), len(found))]
        text = vocabulary.decode(found)
        assert "rules" in text and "xxx\n[...]\nxxx" in text and "why?" in text


async def test_a_prefix_is_in_every_prompt() -> None:
    found, vocabulary = await outcome(LONG[2:], RewritingPolicy(system_prefix="House rules."))
    expected = [Message("system", "House rules."), LONG[2]]
    assert found == tuple(vocabulary.encode_chat(expected))
