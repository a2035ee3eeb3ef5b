"""Tokenization: off the loop, in order of arrival, never more than may wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from outrider.errors import InvalidRequestError, OutriderError, OverloadedError
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from services.edge.tokenization import Job, Outcome, Tokenization

ASK = [Message("user", "hello")]


@pytest.fixture
def tokenization(words: Vocabulary) -> Iterator[Tokenization]:
    made = Tokenization(words, num_workers=1, max_queued=1)
    yield made
    made.close()


def submit(
    tokenization: Tokenization, ask: list[Message], *, is_typed: bool = False
) -> tuple[Job, asyncio.Future[Outcome]]:
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    return tokenization.submit(ask, future.set_result, is_typed=is_typed), future


class Gate:
    """Holds every tokenization until it is opened; knows which thread each ran on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.threads: set[threading.Thread] = set()
        encode = Vocabulary.encode_chat

        def slow(vocabulary: Vocabulary, messages: Sequence[Message]) -> list[int]:
            self.threads.add(threading.current_thread())
            self.entered.release()
            assert self._open.wait(30)
            return encode(vocabulary, messages)

        monkeypatch.setattr(Vocabulary, "encode_chat", slow)

    def open(self) -> None:
        self._open.set()


async def test_ids_come_from_another_thread(
    tokenization: Tokenization, words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.open()
    _, ids = submit(tokenization, ASK)
    assert await ids == tuple(words.encode_chat(ASK))
    gate.threads.discard(threading.current_thread())
    assert len(gate.threads) == 1


async def test_errors_are_outcomes(tokenization: Tokenization) -> None:
    _, refused = submit(tokenization, [Message("nobody", "hello")])
    assert isinstance(await refused, InvalidRequestError)


async def test_a_defect_fails_its_chat_and_leaves_the_worker(
    tokenization: Tokenization, words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(vocabulary: Vocabulary, messages: Sequence[Message]) -> list[int]:
        raise ZeroDivisionError("secret words of a user")

    with monkeypatch.context() as patch:
        patch.setattr(Vocabulary, "encode_chat", broken)
        _, failed = submit(tokenization, ASK)
        outcome = await failed
    assert isinstance(outcome, OutriderError)
    assert outcome.message == "the edge failed to tokenize: ZeroDivisionError"
    _, ids = submit(tokenization, ASK)
    assert await ids == tuple(words.encode_chat(ASK))


async def test_a_full_queue_refuses_and_a_cancelled_chat_makes_room(
    tokenization: Tokenization, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    _, running = submit(tokenization, ASK)
    assert gate.entered.acquire(timeout=30)
    waiting, never = submit(tokenization, ASK)
    with pytest.raises(OverloadedError) as caught:
        submit(tokenization, ASK)
    assert caught.value.retry_delay_ms > 0
    tokenization.cancel(waiting)
    _, again = submit(tokenization, ASK)
    gate.open()
    assert await running == await again
    assert not never.done()


async def test_what_runs_when_it_is_cancelled_is_not_delivered(
    tokenization: Tokenization, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    running, never = submit(tokenization, ASK)
    assert gate.entered.acquire(timeout=30)
    tokenization.cancel(running)
    _, after = submit(tokenization, ASK)
    gate.open()
    await after  # delivered in order, so the first one would have come before
    assert not never.done()


async def test_closing_gives_up_what_waits_and_ends_the_threads(
    tokenization: Tokenization, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    _, running = submit(tokenization, ASK)
    assert gate.entered.acquire(timeout=30)
    _, never = submit(tokenization, ASK)
    tokenization.close()
    gate.open()
    await running
    (worker,) = gate.threads
    await asyncio.to_thread(worker.join, 30)
    assert not worker.is_alive() and not never.done()


async def test_text_being_typed_takes_no_chats_place_and_no_chats_turn(
    tokenization: Tokenization, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, order = Gate(monkeypatch), list[str]()
    _, running = submit(tokenization, ASK)
    assert gate.entered.acquire(timeout=30)
    typed = [submit(tokenization, ASK, is_typed=True)[1] for _ in range(2)]
    with pytest.raises(OverloadedError):
        submit(tokenization, ASK, is_typed=True)
    _, chat = submit(tokenization, ASK)
    chat.add_done_callback(lambda _: order.append("chat"))
    for outcome in typed:
        outcome.add_done_callback(lambda _: order.append("typed"))
    gate.open()
    await asyncio.gather(running, chat, *typed)
    assert order == ["chat", "typed", "typed"]


async def test_text_being_typed_leaves_a_worker_to_chats(
    words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, tokenization = Gate(monkeypatch), Tokenization(words, num_workers=2, max_queued=1)
    outcomes = [submit(tokenization, ASK, is_typed=True)[1] for _ in range(2)]
    assert gate.entered.acquire(timeout=30)
    cancelled, never = submit(tokenization, ASK, is_typed=True)
    tokenization.cancel(cancelled)
    outcomes.append(submit(tokenization, ASK)[1])
    assert gate.entered.acquire(timeout=30), "the chat runs beside the first of them"
    assert len(gate.threads) == 2
    assert not gate.entered.acquire(blocking=False)
    gate.open()
    await asyncio.gather(*outcomes)
    assert not never.done()
    tokenization.close()
