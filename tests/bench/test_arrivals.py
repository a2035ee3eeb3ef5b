"""Arrivals and the arithmetic of who disturbs whom."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.arrivals import open_loop, prefill
from bench.arrivals.requests import LONG_TOKENS, RequestFactory
from bench.harness import TOO_FEW, Run
from bench.harness.load import (
    Answer,
    Request,
    Work,
    WorkResult,
    ask_all,
    from_json,
    poisson,
    to_json,
)
from bench.peers.lineup import OPENVINO, OURS_DRAFTS
from outrider.models.vocabulary import Vocabulary


@given(rate=st.floats(0.01, 1000), seed=st.integers(0, 10))
def test_arrivals_have_the_rate_and_the_same_pattern(rate: float, seed: int) -> None:
    due_s = poisson(400, rate, seed)
    assert due_s == sorted(due_s)
    assert 400 / due_s[-1] == pytest.approx(rate, rel=0.3)
    assert [at * rate for at in due_s] == pytest.approx(poisson(400, 1.0, seed))


def test_gaps_of_a_poisson_process_spread_as_exponentials_do() -> None:
    due_s = poisson(4000, 2.0, 3)
    gaps = [b - a for a, b in itertools.pairwise(due_s)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance / mean**2 == pytest.approx(1.0, abs=0.1)


def test_asks_never_repeat_a_question_but_when_told_to(vocabulary: Vocabulary) -> None:
    factory = RequestFactory(vocabulary)
    first, second = factory.chats([0.0, 1.0], 8)
    assert first.prompt != second.prompt
    texts = factory.texts(1)
    alone, loaded = (factory.requests(texts, [0.0], 8)[0] for _ in range(2))
    assert len(alone.prompt) == len(loaded.prompt)
    assert alone.prompt[:16] != loaded.prompt[:16]
    assert {len(d.prompt) in LONG_TOKENS for d in factory.documents([0.0] * 6, 8)} == {True}


async def test_open_loop_answers_count_from_the_arrival() -> None:
    async def ask(request: Request, answer: Answer) -> None:
        answer.ids += request.prompt
        answer.token_s.append(9.5)

    requests = (Request((1,), 8, due_s=0.0), Request((2,), 8, due_s=0.01))
    free = await ask_all(Work(requests), ask)
    assert [answer.ttft_ms for answer in free.answers] == [9500, 9490]
    bounded = await ask_all(Work(requests, concurrency=1), ask)
    assert bounded.answers[0].asked_s < 0.01 <= bounded.answers[1].asked_s
    assert bounded.replies == ((1,), (2,))


async def test_what_is_in_the_background_lasts_as_long_as_the_rest_and_keeps_what_came() -> None:
    gone = asyncio.Event()

    async def ask(request: Request, answer: Answer) -> None:
        answer.take(request.prompt)
        if request.max_tokens > 1:
            await asyncio.Event().wait()
        else:
            gone.set()

    requests = (Request((1,), 9), Request((2,), 9), Request((3,), 1, due_s=0.01))
    async with asyncio.timeout(30):
        done = await ask_all(Work(requests, num_background=2), ask)
    assert gone.is_set() and done.replies == ((1,), (2,), (3,))


def test_jobs_of_a_peer_s_process_keep_their_order() -> None:
    job = to_json(Work((Request((1, 2), 8, 0.5, 7),), temperature=0.8), [3, 2])
    assert job["requests"] == [{"prompt": (1, 2), "max_tokens": 8, "due_s": 0.5, "seed": 7}]
    assert (job["stop_ids"], job["temperature"], job["num_background"]) == ([2, 3], 0.8, 0)
    row = {"ids": [5], "asked_s": 0.5, "token_s": [0.75]}
    assert from_json({"seconds": 2.0, "answers": [row]}).answers[0].ttft_ms == 250


def chat(*token_s: float) -> Answer:
    return Answer([], 0.0, list(token_s))


def test_only_gaps_while_documents_are_read_count() -> None:
    chats = (chat(0.5, 0.9, 1.1, 2.0), chat(0.5, 6.0))
    assert prefill.chat_gaps(WorkResult(6, chats), 0) == pytest.approx([200, 900, 5500])
    disturbed = WorkResult(6, (*chats, Answer([], 1.0, [3.0, 5.0])))
    assert prefill.chat_gaps(disturbed, 1) == pytest.approx([200, 900])


def test_the_prefill_ratio_is_that_of_the_99th_percentiles() -> None:
    gaps = prefill.Gaps([[10.0] * 250] * 2, [[20.0] * 250, [30.0] * 250], [1000.0])
    run = Run("arrivals", quick=True, command="")
    prefill.report(run, {OURS_DRAFTS: gaps})
    (row,) = run.tables[0].rows
    assert row[1] == row[4] == 500
    assert row[-3:] == (3.0, 1, 1000.0)


def test_a_p99_of_few_gaps_is_not_shown_nor_a_ratio_of_it() -> None:
    run = Run("arrivals", quick=True, command="")
    prefill.report(run, {OURS_DRAFTS: prefill.Gaps([[10.0] * 499], [[20.0] * 500], [1000.0])})
    (row,) = run.tables[0].rows
    assert row[3] == row[7] == TOO_FEW
    assert row[6] == 20.0


def test_loads_are_compared_at_the_same_rate() -> None:
    slow, quick = (
        [WorkResult(1, (chat(at, at + gap, at + 2 * gap),))]
        for at, gap in ((0.4, 0.02), (0.2, 0.04))
    )
    measured = open_loop.Loads({OURS_DRAFTS: [5.0], OPENVINO: [4.0]})
    for name, done in ((OURS_DRAFTS, slow), (OPENVINO, quick)):
        measured.rates[open_loop.EQUAL, name] = 3.2
        measured.outcomes[open_loop.EQUAL, name] = done
    run = Run("arrivals", quick=True, command="")
    open_loop.report(run, measured)
    assert [row[2] for row in run.tables[0].rows] == [3.2, 3.2]
    assert run.tables[0].columns[3:6] == ("n, TTFT", "TTFT p50", "TTFT p95")
    assert run.tables[0].columns[6:] == ("n, ITL", "ITL p50", "ITL p95", "ITL p99")
    assert {row[3] for row in run.tables[0].rows} == {1}
    assert {row[5] for row in run.tables[0].rows} == {TOO_FEW}
    assert run.figures == {
        "ttft_p50_vs_best_peer": {OURS_DRAFTS: 2.0},
        "ttft_p95_vs_best_peer": {OURS_DRAFTS: 2.0},
        "itl_p95_vs_best_peer": {OURS_DRAFTS: 0.5},
    }
    assert open_loop.against_best_peer(open_loop.Loads()) == {}
