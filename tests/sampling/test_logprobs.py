"""Log probabilities against a plain log-softmax in float64."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InvalidSamplingError
from outrider.sampling.logprobs import token_logprobs
from outrider.sampling.params import MAX_LOGPROBS, SamplingParams
from outrider.sampling.sampler import Sampler
from outrider.session.types import MIN_LOGPROB, ScoredToken, TokenLogprobs
from outrider.speculation.verification import verify

SCORES = st.one_of(
    st.floats(-30, 30, width=32), st.sampled_from([0.0, 1.0, -math.inf, 30000.0, -30000.0])
)
ROWS = st.lists(SCORES, min_size=1, max_size=90).filter(lambda row: max(row) > -math.inf)


def plain(row: list[float]) -> list[float]:
    """The log-softmax of a row, by Python's own exactly rounded sum."""
    top = max(row)
    total = top + math.log(math.fsum(math.exp(score - top) for score in row))
    return [max(MIN_LOGPROB, score - total) for score in row]


@given(ROWS, st.integers(0, 89), st.integers(0, MAX_LOGPROBS))
def test_they_are_the_log_softmax_of_the_row(row: list[float], pick: int, count: int) -> None:
    chosen = pick % len(row)
    found = token_logprobs(np.array(row, np.float32), chosen, count)
    expected = plain(row)
    likeliest = sorted(range(len(row)), key=lambda token: (-row[token], token))[:count]
    assert [token.id for token in found.top] == likeliest
    assert found.chosen.id == chosen
    for token in (found.chosen, *found.top):
        assert token.logprob == pytest.approx(expected[token.id], rel=1e-6, abs=1e-7)
        assert token.logprob == float(np.float32(token.logprob)), "it travels as it is"
        assert MIN_LOGPROB <= token.logprob <= 0.0
    falling = [token.logprob for token in found.top]
    assert falling == sorted(falling, reverse=True)


def test_probabilities_of_a_whole_row_add_up_to_one() -> None:
    row = np.random.default_rng(3).standard_normal(49152).astype(np.float32) * 4
    wide = [token_logprobs(row, token, 0).chosen.logprob for token in range(0, len(row), 64)]
    total = float(np.exp(row.astype(np.float64) - row.max()).sum())
    expected = row[::64].astype(np.float64) - row.max() - math.log(total)
    assert np.allclose(wide, expected, rtol=1e-6)
    top = token_logprobs(row, 0, 20).top
    assert [token.id for token in top] == np.argsort(-row, kind="stable")[:20].tolist()


@given(ROWS, st.integers(0, 999), st.integers(0, MAX_LOGPROBS))
def test_candidates_bring_log_probabilities_in_any_order(
    row: list[float], seed: int, count: int
) -> None:
    values = np.array(plain(row), np.float32)
    order = np.random.default_rng(seed).permutation(len(row)).astype(np.int32)
    chosen = int(order[0])
    found = token_logprobs(values[order], chosen, count, order)
    likeliest = sorted(range(len(row)), key=lambda token: (-values[token], token))[:count]
    assert found.chosen == ScoredToken(chosen, float(values[chosen]))
    assert found.top == tuple(ScoredToken(token, float(values[token])) for token in likeliest)


def test_values_above_zero_by_rounding_are_zero() -> None:
    found = token_logprobs(np.array([1e-7], np.float32), 9, 1, np.array([9], np.int32))
    assert found == TokenLogprobs(ScoredToken(9, 0.0), (ScoredToken(9, 0.0),))


ROW: npt.NDArray[np.float32] = np.linspace(0.0, 3.0, 9).astype(np.float32)
ROUGH = SamplingParams(
    temperature=1.7,
    top_k=3,
    repetition_penalty=1.5,
    frequency_penalty=1.0,
    logit_bias={4: 9.0},
    seed=5,
    num_logprobs=2,
)


def test_they_do_not_depend_on_how_the_reply_is_sampled() -> None:
    for params in (SamplingParams(num_logprobs=2), ROUGH):
        sampler = Sampler(params, len(ROW), [1, 2])
        verdict = verify(sampler, ROW[None], None, [], 2, lambda token: False)
        (told,) = verdict.logprobs
        assert told == token_logprobs(ROW, verdict.ids[0], 2)
        assert [token.id for token in told.top] == [8, 7]


def test_accepted_drafts_have_theirs_lossy_ones_too() -> None:
    rows = np.stack([ROW, ROW[::-1], ROW])
    exact = SamplingParams(num_logprobs=1)
    verdict = verify(Sampler(exact, 9, [1]), rows, None, [8, 0], 1, lambda token: False)
    assert verdict.ids == (8, 0, 8)
    assert [told.chosen.id for told in verdict.logprobs] == [8, 0, 8]
    lossy = SamplingParams(num_logprobs=1, acceptance_threshold=1e-6)
    verdict = verify(Sampler(lossy, 9, [1]), rows, None, [3, 0], 1, lambda token: False)
    assert (verdict.ids, verdict.num_lossy) == ((3, 0, 8), 1)
    assert verdict.logprobs[0] == token_logprobs(ROW, 3, 1)


def test_a_session_that_does_not_ask_gets_none() -> None:
    verdict = verify(Sampler(SamplingParams(), 9, [1]), ROW[None], None, [], 1, lambda token: False)
    assert verdict.logprobs == ()


@pytest.mark.parametrize("count", [-2, 21, 1 << 40])
def test_no_other_numbers_are_taken(count: int) -> None:
    with pytest.raises(InvalidSamplingError, match="num_logprobs"):
        SamplingParams(num_logprobs=count)
