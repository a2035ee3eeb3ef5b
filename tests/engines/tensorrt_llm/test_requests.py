"""Rows from the end of an answer; requests under a bound of memory; requests that fail."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from outrider.engines.base import LogitsRows, SequenceSlice
from outrider.engines.tensorrt_llm.requests import Flight, Request, RequestMaker
from outrider.engines.tensorrt_llm.rows import NO_ID, last_rows, leading_rows, whole_rows
from outrider.errors import EngineError
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler
from tests.engines.seam.driving import opened, random_ids, run, table
from tests.engines.tensorrt_llm.fake_llm import API, LLM, VOCABULARY, make_engine, top
from tests.engines.tensorrt_llm.fake_types import KvCacheConfig, Logprob


def answer(*best: int) -> list[dict[int, Logprob]]:
    """Rows whose likeliest id is given, the next id second, and a stray third entry of rank 9."""
    return [
        {99: Logprob(-7.0, 9), token + 1: Logprob(-2.0, 2), token: Logprob(-0.5, 1)}
        for token in best
    ]


def test_rows_are_counted_from_the_end() -> None:
    rows = last_rows(answer(10, 20, 30, 40), 2, 2, 100)
    assert rows.ids is not None
    assert rows.ids.tolist() == [[30, 31], [40, 41]]
    assert rows.logits.tolist() == [[-0.5, -2.0]] * 2
    assert rows.logits.dtype == np.float32
    assert rows.ids.dtype == np.int32


@pytest.mark.parametrize("missing", [None, []])
def test_an_answer_without_rows_has_none(missing: list[dict[int, Logprob]] | None) -> None:
    assert last_rows(missing, 3, 4, 100).logits.shape == (0, 4)
    assert last_rows(answer(1, 2), 0, 1, 100).logits.shape == (0, 1)
    assert last_rows(answer(1, 2), 3, 1, 100).logits.shape == (2, 1)


def test_a_row_without_its_likeliest_ids_is_refused() -> None:
    with pytest.raises(EngineError, match="rank 3 of 3"):
        last_rows(answer(1), 1, 3, 100)


def test_padding_ids_are_taken_out_and_rows_used_up_to_the_first_that_has_too_few() -> None:
    rows = last_rows(answer(3, 4, 5, 3), 4, 1, 5)
    assert rows.ids is not None
    assert rows.ids.tolist() == [[3], [4], [NO_ID], [3]]
    whole = whole_rows(rows)
    assert whole.ids is not None
    assert (whole.ids.tolist(), len(whole.logits)) == ([[3], [4]], 2)
    (only,) = answer(5)
    wide = last_rows([{5: only[5], 4: Logprob(-2.0, 2), 6: Logprob(-3.0, 3)}], 1, 1, 5, 3)
    assert wide.ids is not None
    assert (wide.ids.tolist(), wide.logits.tolist()) == ([[4]], [[-2.0]])
    assert len(whole_rows(last_rows(answer(4), 1, 2, 5)).logits) == 0
    assert len(whole_rows(last_rows([], 3, 2, 5)).logits) == 0


@pytest.mark.parametrize(
    ("num_last", "expected"), [(0, [1]), (2, [1]), (3, [1, 7, 8, 9]), (4, [1, 7, 8, 9])]
)
def test_leading_rows_have_no_gap(num_last: int, expected: list[int]) -> None:
    first = last_rows(answer(1), 1, 1, 100)
    last = last_rows(answer(6, 7, 8, 9)[4 - num_last :], 4, 1, 100)
    rows: LogitsRows = leading_rows(first, last, 4)
    assert rows.ids is not None
    assert rows.ids[:, 0].tolist() == expected


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, top_k=8, seed=3),
        SamplingParams(temperature=1.5, top_k=8, top_p=0.7, seed=4),
        SamplingParams(temperature=0.5, top_k=20, min_p=0.05, top_p=0.9, seed=5),
    ],
    ids=str,
)
def test_the_top_k_candidates_choose_what_the_whole_row_does(params: SamplingParams) -> None:
    sampler = Sampler(params, VOCABULARY, [])
    chosen = []
    for position in range(1, 200):
        prefix = [token % VOCABULARY for token in range(position, position + 3)]
        whole = last_rows([top(prefix, VOCABULARY, 0)], 1, VOCABULARY, VOCABULARY)
        some = last_rows([top(prefix, params.top_k, 5)], 1, params.top_k, VOCABULARY)
        assert whole.ids is not None
        assert some.ids is not None
        row = whole.logits[0][whole.ids[0].argsort()]
        chosen.append(sampler.choose(row, position))
        assert sampler.choose(some.logits[0], position, some.ids[0]) == chosen[-1]
    assert len(set(chosen)) > 10


def flight(max_rows: int) -> tuple[Flight, LLM]:
    llm = LLM("m", skip_tokenizer_init=True, max_seq_len=100, kv_cache_config=KvCacheConfig())
    row_bytes = VOCABULARY * 4
    return (
        Flight(
            llm,
            RequestMaker(API),
            row_bytes=row_bytes,
            max_bytes=max_rows * row_bytes,
            timeout_s=1.0,
        ),
        llm,
    )


def request(length: int, num_candidates: int = 1) -> Request:
    return Request(tuple(range(length)), length, num_candidates, b"")


def test_requests_without_rows_need_no_room() -> None:
    flying, llm = flight(max_rows=10)
    for _ in range(5):
        flying.submit(request(9, num_candidates=0))
    assert len(llm.in_flight) == 5
    assert flying.num_bytes == 0


def test_the_oldest_with_rows_is_waited_for() -> None:
    flying, llm = flight(max_rows=10)
    without, first, second = (flying.submit(request(*args)) for args in [(9, 0), (6, 1), (4, 1)])
    assert not first.landed
    third = flying.submit(request(5))
    assert (without.landed, first.landed, second.landed) == (False, True, False)
    assert flying.num_bytes == 9 * VOCABULARY * 4
    assert first.logprobs is not None
    assert flying.land(first) is first.logprobs
    flying.submit(request(50))
    assert second.landed
    assert third.landed, "one that exceeds the bound alone flies alone"
    flying.clear()
    assert flying.num_bytes == 0
    assert not llm.in_flight


def test_an_abort_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    flying, llm = flight(max_rows=10)
    ticket = flying.submit(request(5, num_candidates=0))

    def broken() -> None:
        raise RuntimeError("the worker is gone")

    monkeypatch.setattr(type(ticket.output), "abort", lambda self: broken())
    with pytest.raises(EngineError, match="failed to abort a request: RuntimeError: the worker"):
        flying.clear()
    flying.clear()
    assert llm.requests


def test_after_a_failing_request_none_is_in_flight_and_the_next_call_works() -> None:
    engine, llm = make_engine()
    ids = [random_ids(engine, 9, seed) for seed in range(3)]
    blocks = table(engine, 9)
    with opened(engine, *ids) as sequences:
        slices = [
            SequenceSlice(sequence, each, 0, blocks, 9)
            for sequence, each in zip(sequences, ids, strict=True)
        ]
        llm.fail_on = 2
        with pytest.raises(EngineError, match="RequestError: out of memory"):
            engine.step(slices)
        assert not any(request.aborted for request in llm.requests), "that would end the worker"
        assert not llm.in_flight
        llm.fail_on = None
        assert all(1 <= len(answer.logits) <= 9 for answer in engine.step(slices))
        llm.fail_on = 0
        with pytest.raises(EngineError, match="refused a request: RuntimeError"):
            engine.step(slices)


def test_a_failing_request_ends_the_prefill_of_others() -> None:
    engine, llm = make_engine()
    ids, blocks = random_ids(engine, 60), table(engine, 60)
    engine.open(1, ids)
    engine.open(2, ids)
    engine.step([SequenceSlice(1, ids[:40], 0, blocks, 0)])
    llm.fail_on = 2
    with pytest.raises(EngineError, match="out of memory"):
        engine.step([SequenceSlice(2, ids[:5], 0, blocks, 1)])
    assert llm.requests[0].aborted
    assert not llm.in_flight


def test_a_runtime_that_hangs_fails_every_call_and_can_be_closed() -> None:
    engine, llm = make_engine(request_timeout_s=0.2)
    ids = random_ids(engine, 9)
    llm.resume = threading.Event()
    engine.open(1, ids)
    for _ in range(3):
        with pytest.raises(EngineError, match=r"did not end a request within 0\.2 s; start the"):
            run(engine, 1, ids, 0, table(engine, 9), 1)
    assert len(llm.requests) == 1, "once is enough"
    assert not llm.requests[0].aborted
    engine.close_sequence(1)
    engine.close()
    assert llm.down
    llm.resume.set()
