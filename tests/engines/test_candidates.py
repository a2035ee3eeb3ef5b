"""How many candidates a request's choices need, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.engines.base import EngineInfo
from outrider.engines.candidates import check_sampling, num_candidates
from outrider.errors import InvalidSamplingError
from outrider.reply_parsing.formats import REASONING_TAGS
from outrider.sampling.params import SamplingParams

WHOLE = EngineInfo("whole", 100, 16, 8, 1, 64)
SOME = replace(WHOLE, name="some", num_candidates=20)

DECIDED = [
    (SamplingParams(), 1),
    (SamplingParams(top_k=50, top_p=0.5), 1),
    (SamplingParams(temperature=0.8, top_k=7, top_p=0.9, min_p=0.1), 7),
    (SamplingParams(temperature=0.8, top_k=20), 20),
    (SamplingParams(acceptance_threshold=0.9, top_k=5), 5),
    (SamplingParams(num_logprobs=0), 1),
    (SamplingParams(num_logprobs=20), 20),
    (SamplingParams(temperature=0.8, top_k=7, num_logprobs=9), 9),
    (SamplingParams(temperature=0.8, top_k=7, num_logprobs=2), 7),
]
OPEN_ENDED = [
    (SamplingParams(temperature=0.8), 0),
    (SamplingParams(temperature=0.8, min_p=0.1), 0),
    (SamplingParams(temperature=0.8, top_k=21), 21),
    (SamplingParams(acceptance_threshold=0.9), 0),
]
RESCORED = [
    SamplingParams(repetition_penalty=0.9),
    SamplingParams(presence_penalty=-1.0, top_k=3),
    SamplingParams(frequency_penalty=1.0, top_k=3),
    SamplingParams(logit_bias={3: -100.0}),
]


@pytest.mark.parametrize(("params", "count"), DECIDED, ids=str)
def test_what_the_candidates_decide_is_served(params: SamplingParams, count: int) -> None:
    assert num_candidates(params) == count
    check_sampling(params, SOME)


@pytest.mark.parametrize(("params", "count"), OPEN_ENDED, ids=str)
def test_what_reaches_past_them_is_refused(params: SamplingParams, count: int) -> None:
    assert num_candidates(params) == count
    with pytest.raises(InvalidSamplingError, match=r"set top_k to 1\.\.20, or temperature to 0"):
        check_sampling(params, SOME)


@pytest.mark.parametrize("params", RESCORED, ids=str)
def test_what_reorders_them_is_always_refused(params: SamplingParams) -> None:
    assert num_candidates(params) == 0
    with pytest.raises(InvalidSamplingError, match="penalties and logit_bias"):
        check_sampling(params, SOME)


def test_whole_rows_decide_everything() -> None:
    for params in (*(params for params, _ in OPEN_ENDED), *RESCORED):
        check_sampling(params, WHOLE)


def test_reasoning_is_not_ended_where_its_end_may_be_no_candidate() -> None:
    params = SamplingParams(max_thinking_tokens=5, reasoning_tags=REASONING_TAGS[0])
    assert num_candidates(params) == 0
    with pytest.raises(InvalidSamplingError, match="end of reasoning"):
        check_sampling(params, SOME)
    check_sampling(params, WHOLE)
    check_sampling(replace(params, reasoning_tags=None), SOME)


def test_log_probabilities_of_more_ids_than_are_scored_are_refused() -> None:
    few = replace(SOME, num_candidates=5)
    for params in (SamplingParams(num_logprobs=6), SamplingParams(0.8, top_k=5, num_logprobs=6)):
        with pytest.raises(InvalidSamplingError, match="set num_logprobs to at most 5"):
            check_sampling(params, few)
        check_sampling(replace(params, num_logprobs=5), few)
        check_sampling(params, WHOLE)
