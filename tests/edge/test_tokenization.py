"""Tokenization: small chats at once, others on the pool, never more than may wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from outrider.errors import InvalidRequestError, OverloadedError
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from services.edge.tokenization import Tokenization


@pytest.fixture
def tokenization(words: Vocabulary) -> Iterator[Tokenization]:
    made = Tokenization(words, inline_bytes=16, num_workers=1, max_queued=1)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("content", "small"), [("x" * 15, True), ("x" * 16, False), ("猫" * 5, True), ("猫" * 6, False)]
)
def test_small_is_counted_in_bytes(tokenization: Tokenization, content: str, small: bool) -> None:
    assert tokenization.is_small([Message("user", content)]) is small


async def test_both_ways_give_the_same_ids(tokenization: Tokenization, words: Vocabulary) -> None:
    ask = [Message("user", "the same, twice")]
    assert tokenization.encode(ask) == tuple(words.encode_chat(ask))
    assert await tokenization.submit(ask) == tokenization.encode(ask)


async def test_errors_come_through_the_future(tokenization: Tokenization) -> None:
    with pytest.raises(InvalidRequestError):
        await tokenization.submit([Message("nobody", "hello")])


async def test_a_full_queue_refuses_and_a_cancelled_prompt_makes_room(
    tokenization: Tokenization, words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    encode = Vocabulary.encode_chat

    def slow(self: Vocabulary, messages: Sequence[Message]) -> list[int]:
        assert gate.wait(5)
        return encode(self, messages)

    monkeypatch.setattr(Vocabulary, "encode_chat", slow)
    ask = [Message("user", "hello")]
    running = tokenization.submit(ask)
    waiting = tokenization.submit(ask)
    with pytest.raises(OverloadedError) as caught:
        tokenization.submit(ask)
    assert caught.value.retry_delay_ms > 0
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0)  # the cancelled future's callbacks run
    again = tokenization.submit(ask)
    gate.set()
    assert await running == await again == tuple(encode(words, ask))
