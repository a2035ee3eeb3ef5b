"""The pool: off the loop, chats in order of arrival, never more than may wait."""

from __future__ import annotations

import asyncio
import gc
import threading
from array import array
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TypeAlias

import pytest

from outrider.errors import (
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    PromptTooLongError,
)
from outrider.fair_work.job_queue import JobClass
from outrider.fair_work.turns import Requester
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.selection import select_backend
from outrider.tokenization.cut_proofs import rule_of
from outrider.tokenization.cuts import SLICE_CHARS
from outrider.tokenization.encoder import CachingEncoder, PartialPrompt
from outrider.tokenization.pool.pool import (
    PoolPolicy,
    Tier,
    TokenizationJob,
    TokenizationPool,
    TokenizationResult,
)
from tests.edge.integration.region import small_vocabulary

ASK = [Message("user", "hello")]
NEVER_INLINE = PoolPolicy(num_workers=1, max_queued=1, max_inline_chars=0, max_local_chars=0)


ONE, OTHER = Requester("one"), Requester("other")
Slices: TypeAlias = "Generator[int, None, array[int]]"


class Counted(TokenizationPool):
    """A pool that remembers which tiers answered."""

    def __init__(self, vocabulary: Vocabulary, policy: PoolPolicy) -> None:
        self.tiers: list[Tier] = []
        super().__init__(
            CachingEncoder(
                vocabulary,
                select_backend(vocabulary, REFERENCE),
                cuts=rule_of(vocabulary.tokenizer_json),
            ),
            policy,
            record=lambda tier, ms: self.tiers.append(tier),
        )


@pytest.fixture(scope="module")
def words() -> Vocabulary:
    return small_vocabulary()


@pytest.fixture
def tokenization(words: Vocabulary) -> Iterator[Counted]:
    made = Counted(words, NEVER_INLINE)
    yield made
    made.close()


def submit(
    tokenization: TokenizationPool,
    ask: list[Message],
    *,
    requester: Requester = ONE,
    is_typeahead: bool = False,
) -> tuple[TokenizationJob, asyncio.Future[TokenizationResult]]:
    future: asyncio.Future[TokenizationResult] = asyncio.get_running_loop().create_future()
    job = tokenization.submit(
        ask, future.set_result, requester=requester, scope=b"scope", is_typeahead=is_typeahead
    )
    return job, future


class Gate:
    """Holds every tokenization until it is opened; knows which thread each ran on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.threads: set[threading.Thread] = set()
        self.num_slices = 0
        in_slices = CachingEncoder.in_slices

        def slow(encoder: CachingEncoder, draft: PartialPrompt, *, may_wait: bool) -> Slices:
            slices = in_slices(encoder, draft, may_wait=may_wait)
            while True:
                self.num_slices += 1
                self.threads.add(threading.current_thread())
                self.entered.release()
                assert self._open.wait(30)
                try:
                    count = next(slices)
                except StopIteration as done:
                    ids: array[int] = done.value
                    return ids
                yield count

        monkeypatch.setattr(CachingEncoder, "in_slices", slow)

    def open(self) -> None:
        self._open.set()


async def test_ids_come_from_another_thread(
    tokenization: Counted, words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.open()
    _, ids = submit(tokenization, ASK)
    assert await ids == tuple(words.encode_chat(ASK))
    gate.threads.discard(threading.current_thread())
    assert len(gate.threads) == 1


class PanicException(BaseException):
    """What a Rust package raises that panics."""


@pytest.mark.parametrize("where", ["begin", "in_slices"])
@pytest.mark.parametrize("kind", [ZeroDivisionError, PanicException])
async def test_a_defect_fails_its_chat_and_leaves_the_worker(
    tokenization: Counted,
    words: Vocabulary,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
    where: str,
) -> None:
    def broken(*given: object, **options: object) -> array[int]:
        raise kind("secret words of a user")

    with monkeypatch.context() as patch:
        patch.setattr(CachingEncoder, where, broken)
        for _ in range(3):  # more than there are threads
            _, failed = submit(tokenization, ASK)
            outcome = await failed
            assert isinstance(outcome, OutriderError)
            assert outcome.message == f"the tokenizer failed: {kind.__name__}"
    _, ids = submit(tokenization, ASK)
    assert await ids == tuple(words.encode_chat(ASK))


async def test_a_chat_that_is_left_to_the_region_makes_room_and_is_counted_there_alone(
    tokenization: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    running, never = submit(tokenization, ASK)
    assert gate.entered.acquire(timeout=30)
    waiting, neither = submit(tokenization, ASK)
    for job in (waiting, running):
        tokenization.leave(job)
    _, ids = submit(tokenization, ASK)
    gate.open()
    await ids
    assert tokenization.tiers == [Tier.REGION, Tier.REGION, Tier.THREAD]
    assert not never.done() and not neither.done()


async def test_a_full_queue_refuses_and_a_cancelled_chat_makes_room(
    tokenization: Counted, monkeypatch: pytest.MonkeyPatch
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
    tokenization: Counted, monkeypatch: pytest.MonkeyPatch
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
    tokenization: Counted, monkeypatch: pytest.MonkeyPatch
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
    tokenization: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, order = Gate(monkeypatch), list[str]()
    _, running = submit(tokenization, ASK)
    assert gate.entered.acquire(timeout=30)
    typed = [submit(tokenization, ASK, is_typeahead=True)[1] for _ in range(2)]
    with pytest.raises(OverloadedError):
        submit(tokenization, ASK, is_typeahead=True)
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
    gate = Gate(monkeypatch)
    tokenization = Counted(words, replace(NEVER_INLINE, num_workers=2))
    outcomes = [submit(tokenization, ASK, is_typeahead=True)[1] for _ in range(2)]
    assert gate.entered.acquire(timeout=30)
    cancelled, never = submit(tokenization, ASK, is_typeahead=True)
    tokenization.cancel(cancelled)
    outcomes.append(submit(tokenization, ASK)[1])
    assert gate.entered.acquire(timeout=30), "the chat runs beside the first of them"
    assert len(gate.threads) == 2
    assert not gate.entered.acquire(blocking=False)
    gate.open()
    await asyncio.gather(*outcomes)
    assert not never.done()
    tokenization.close()


async def test_short_chats_are_answered_in_the_loop_after_submit_returns(words: Vocabulary) -> None:
    pool = Counted(words, PoolPolicy())
    for _ in range(2):
        _, ids = submit(pool, ASK)
        assert not ids.done()
        assert await ids == tuple(words.encode_chat(ASK))
    assert pool.tiers == [Tier.INLINE, Tier.CACHE]
    pool.close()


async def test_what_is_not_known_and_long_goes_to_a_thread(words: Vocabulary) -> None:
    pool, long = Counted(words, PoolPolicy()), [Message("user", "hello " * 200)]
    for _ in range(2):
        _, ids = submit(pool, long)
        assert await ids == tuple(words.encode_chat(long))
    huge = [Message("user", "hello " * 20_000)]
    _, ids = submit(pool, huge)
    assert await ids == tuple(words.encode_chat(huge))
    assert pool.tiers == [Tier.THREAD, Tier.CACHE, Tier.THREAD]
    pool.close()


class Full(Counted):
    """A pool whose threads have no room."""

    def __init__(self, vocabulary: Vocabulary, policy: PoolPolicy) -> None:
        super().__init__(vocabulary, policy)

        def refuse(
            job: TokenizationJob, job_class: JobClass, requester: Requester, size: int
        ) -> None:
            raise OverloadedError("no room", retry_delay_ms=100)

        self._threads.put = refuse  # type: ignore[method-assign]


async def test_the_last_resort_is_the_loop_once_in_a_turn_of_it(words: Vocabulary) -> None:
    pool = Full(words, replace(NEVER_INLINE, max_local_chars=10))
    _, first = submit(pool, ASK)
    with pytest.raises(OverloadedError):
        submit(pool, ASK)
    assert await first == tuple(words.encode_chat(ASK))
    _, second = submit(pool, ASK)
    await second
    with pytest.raises(OverloadedError):
        submit(pool, [Message("user", "eleven char")])
    with pytest.raises(OverloadedError):
        submit(pool, ASK, is_typeahead=True)
    assert pool.tiers == [
        *(Tier.FALLBACK, Tier.REFUSED, Tier.FALLBACK, Tier.REFUSED, Tier.DROPPED),
    ]
    pool.close()


async def test_a_prompt_that_does_not_fit_is_refused_with_its_length(words: Vocabulary) -> None:
    num_tokens = len(words.encode_chat(ASK))
    for policy in (PoolPolicy(), NEVER_INLINE):
        for max_tokens in (num_tokens, num_tokens - 1):
            pool = Counted(words, replace(policy, max_tokens=max_tokens))
            _, ids = submit(pool, ASK)
            outcome = await ids
            if max_tokens == num_tokens:
                assert outcome == tuple(words.encode_chat(ASK))
            else:
                assert isinstance(outcome, PromptTooLongError)
                assert f"{num_tokens} tokens, and at most {max_tokens}" in outcome.message
            pool.close()


async def test_a_refusal_keeps_nothing_of_its_prompt(words: Vocabulary) -> None:
    pool = Counted(words, replace(NEVER_INLINE, max_tokens=1))
    _, ids = submit(pool, [Message("user", "unlike any other")])
    refused = await ids
    pool.close()
    pool.join()
    assert isinstance(refused, PromptTooLongError)
    drafts = [one for one in gc.get_objects() if type(one) is PartialPrompt]
    assert not [draft for draft in drafts if "unlike any other" in str(draft.pieces)]


async def test_a_refusal_keeps_nothing_of_what_led_to_it(
    tokenization: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(encoder: CachingEncoder, draft: PartialPrompt, *, may_wait: bool) -> Slices:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            raise InvalidRequestError("it cannot be done") from error

    monkeypatch.setattr(CachingEncoder, "in_slices", refusing)
    _, ids = submit(tokenization, ASK)
    refused = await ids
    assert isinstance(refused, InvalidRequestError)
    assert (refused.__traceback__, refused.__cause__, refused.__context__) == (None, None, None)


async def test_plain_text_is_tokenized_in_a_thread_cut_and_not_cached(words: Vocabulary) -> None:
    made = Counted(words, replace(NEVER_INLINE, max_tokens=5))
    size = made.encoder.size
    for text in ("abc", "abcdefgh", "<|im_end|>"):
        answered: asyncio.Future[TokenizationResult] = asyncio.get_running_loop().create_future()
        made.submit_plain(text, answered.set_result, requester=ONE)
        assert await answered == tuple(words.encode(text)[:5]), "special text stays text"
    assert made.encoder.size == size
    assert made.tiers == [], "it is no chat"
    made.close()


async def test_plain_text_waits_for_a_thread_or_is_refused(
    tokenization: Counted, words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    answers: list[TokenizationResult] = []
    for _ in range(2):
        tokenization.submit_plain("abc", answers.append, requester=ONE)
    with pytest.raises(OverloadedError):
        tokenization.submit_plain("abc", answers.append, requester=ONE)
    gate.open()
    await eventually(lambda: len(answers) == 2)
    assert answers == [tuple(words.encode("abc"))] * 2


LONG = [Message("user", "hello " * SLICE_CHARS)]


async def test_a_long_text_is_cut_and_has_the_ids_of_the_whole(
    tokenization: Counted, words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.open()
    _, ids = submit(tokenization, LONG)
    assert await ids == tuple(words.encode_chat(LONG))
    assert gate.num_slices == 6


async def test_another_tenants_long_text_waits_for_one_slice_of_a_flood(
    words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    made = Counted(words, replace(NEVER_INLINE, max_queued=100))
    flood = [submit(made, LONG)[1] for _ in range(32)]
    assert gate.entered.acquire(timeout=30)
    mine = [Message("user", "hello " * (SLICE_CHARS // 8))]
    _, ids = submit(made, mine, requester=OTHER)
    gate.open()
    assert await ids == tuple(words.encode_chat(mine))
    assert not any(one.done() for one in flood)
    made.close()


async def test_a_full_pool_gives_up_what_floods_it_for_another_tenant(
    words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    made = Counted(words, replace(NEVER_INLINE, max_queued=2))
    _, running = submit(made, ASK)
    assert gate.entered.acquire(timeout=30)
    _, waiting = submit(made, ASK)
    _, last = submit(made, ASK)
    _, mine = submit(made, ASK, requester=OTHER)
    refused = await last
    assert isinstance(refused, OverloadedError) and refused.retry_delay_ms > 0
    gate.open()
    assert await mine == await waiting == await running
    assert made.tiers.count(Tier.REFUSED) == 1
    made.close()


async def test_a_cancelled_text_is_not_tokenized_further_than_its_slice(
    tokenization: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    running, never = submit(tokenization, LONG)
    assert gate.entered.acquire(timeout=30)
    tokenization.cancel(running)
    gate.open()
    _, after = submit(tokenization, ASK)
    await after
    assert gate.num_slices == 2
    assert not never.done()


async def test_what_is_far_too_long_is_not_counted_to_its_end(
    words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.open()
    made = Counted(words, replace(NEVER_INLINE, max_tokens=SLICE_CHARS // 2))
    _, ids = submit(made, LONG)
    refused = await ids
    assert isinstance(refused, PromptTooLongError)
    assert "tokens and more, and at most" in refused.message
    assert gate.num_slices == 2
    made.close()
